"""The rows behind the numbers of a reply: what each row gave to each of them.

A number that leaves a client is a sum of what its rows gave, s = Σᵢ cᵢ, or changes by about cᵢ when
row i is left out. How many rows stand behind it is not how many were added up, but how many of them
matter: the effective rows

    n = (Σᵢ |cᵢ|)² / Σᵢ cᵢ²

(Kish 1965, *Survey Sampling*, for weights), which are the rows of a plain count, and 1 for a sum in
which one row outweighs all others. Where one person has several rows, what they gave is added
first, so that persons are counted. The difference of two numbers is judged in the same way.

All numbers of our tasks are products of two factors, cᵢ = rightᵢₖ leftᵢⱼ. ``right`` is what the ask
chose (a cell, a node, a cluster, an error under some model), ``left`` what the rows are (1 for a
count, the columns for sums and gradients).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray, IntArray, Part


@dataclass(frozen=True, slots=True)
class Persons:
    """Whose row each row is; ``of`` is None where every row is somebody else's."""

    of: IntArray | None = None

    def among(self, rows: IntArray) -> Persons:
        """The same for some of the rows."""
        return self if self.of is None else Persons(self.of[rows])

    def sums(self, given: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Σ|c| and Σc² over persons, from what every row gave (rows × numbers)."""
        if self.of is not None:
            total = np.zeros((int(self.of.max(initial=-1)) + 1, *given.shape[1:]))
            np.add.at(total, self.of, given)
            given = total
        return np.abs(given).sum(axis=0), (given**2).sum(axis=0)

    def count(self, chosen: Array) -> IntArray:
        """How many persons have a chosen row, for every column of rows × columns."""
        if self.of is None:
            return np.asarray(chosen.sum(axis=0), dtype=np.int64)
        return np.array([len(np.unique(self.of[c])) for c in chosen.T], dtype=np.int64)

    def at_first_rows(self, given: Array) -> FloatArray:
        """What every row gave (rows × numbers), added up at the first row of each person."""
        given = given.astype(float)
        if self.of is None:
            return given
        _, first, person = np.unique(self.of, return_index=True, return_inverse=True)
        total = np.zeros_like(given)
        np.add.at(total, first[person], given)
        return total

    def first_rows(self, rows: int) -> BoolArray:
        """Marks the first row of every person, of so many rows."""
        first = np.full(rows, self.of is None)
        if self.of is not None:
            first[np.unique(self.of, return_index=True)[1]] = True
        return first


Left = Array | None


@dataclass(frozen=True, slots=True)
class Sums:
    """Numbers (k, j) = ``base`` + ``scale`` Σᵢ rightᵢₖ leftᵢⱼ; the asker knows base and scale.

    ``right``: rows × k, marks or numbers. ``left``: rows × j, or None for 1.
    ``part``: which rows these are. ``what`` tells kinds of numbers apart that nobody would
    subtract, such as gradients and counts. ``beyond``: rows count by what they give beyond the
    median of all, too. That is for sums in which the asker can make most rows give the same known
    number, such as the loss of a model that predicts ½ everywhere but at one row. ``mean``: the
    number is a mean of what rows gave, which a row left out changes by what it gave beyond it.
    ``margin``: so many times as many rows are needed, where c is only about what a row changes.
    """

    right: Array
    left: Left = None
    base: Any = 0.0
    scale: float = 1.0
    part: Part = "train"
    what: str = ""
    beyond: bool = False
    mean: bool = False
    margin: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        return self.right.shape[1], 1 if self.left is None else self.left.shape[1]

    def effective(self, persons: Persons, enough: float = np.inf) -> FloatArray:
        """The effective rows of every number, k × j, or a lower bound of at least ``enough``."""
        return self.effective_of(self.right, persons, enough)

    def effective_of(self, right: Array, persons: Persons, enough: float = np.inf) -> FloatArray:
        """The same where rows gave ``right``, as in the difference of two such sums."""
        rows = effective_of(right, self.left, persons)
        if self.beyond and len(right):
            right = right - np.median(right, axis=0)
            rows = np.minimum(rows, effective_of(right, self.left, persons))
        if self.mean and len(right):
            rows = np.minimum(
                rows, effective_beyond_mean(right, self.left, persons, enough * self.margin)
            )
        return rows / self.margin

    def counts(self, persons: Persons) -> IntArray:
        """The persons that gave anything to each k."""
        return persons.count(self.right != 0)


def cells(index: IntArray, number: int, left: Left = None, *, part: Part = "train") -> Sums:
    """Every row gives to the cell at its index, −1 for none."""
    return Sums(index[:, None] == np.arange(number), left, part=part)


def everyone(rows: int, *, part: Part = "train") -> Sums:
    """How many rows there are."""
    return Sums(np.ones((rows, 1), dtype=bool), part=part)


def effective_of(right: Array, left: Left, persons: Persons) -> FloatArray:
    """(Σ|c|)² / Σc² of every number; infinite where no row gave anything, which tells of none.

    0 where a row gave what is not finite: without it the number would be another.
    """
    return _rows(*sums_of(right, left, persons))


def _rows(absolute: FloatArray, squares: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        n = absolute**2 / squares
    rows: FloatArray = np.where(squares == 0, np.inf, np.nan_to_num(n, nan=0.0, posinf=0.0))
    return rows


def effective_beyond_mean(right: Array, left: Left, persons: Persons, enough: float) -> FloatArray:
    """The same of c less the mean of all rows, or a lower bound of at least ``enough``.

    With s = Σc over n rows, Σ|c − s/n| ≥ Σ|c| − |s| and Σ(c − s/n)² = Σc² − s²/n.
    """
    absolute, squares = sums_of(right, left, persons)
    total = _times(right.astype(float), left, np.asarray)
    rows = np.full(absolute.shape, 0.0)
    if persons.of is None:
        least = np.maximum(absolute - np.abs(total), 0.0) ** 2
        np.divide(least, squares - total**2 / len(right), out=rows, where=squares > 0)
    rows[np.isnan(rows)] = 0.0
    for k in np.flatnonzero((rows < enough).any(axis=1)).tolist():
        some = np.flatnonzero(rows[k] < enough)
        rows[k, some] = _exactly_beyond_mean(right[:, k], _columns(left, some), persons)
    return rows


def _exactly_beyond_mean(right: Array, left: Left, persons: Persons) -> FloatArray:
    given = _given(right, left)
    size = np.abs(given).max(axis=0)
    given = given - given.mean(axis=0)
    given[:, np.abs(given).max(axis=0) <= 1e-12 * size] = 0.0  # rounding tells of no row
    return _rows(*persons.sums(given))


def _columns(left: Left, some: IntArray) -> Left:
    return None if left is None else left[:, some]


def sums_of(right: Array, left: Left, persons: Persons) -> tuple[FloatArray, FloatArray]:
    """Σ|c| and Σc² of every number, k × j."""
    if persons.of is not None:
        pairs = [persons.sums(_given(column, left)) for column in right.T]
        return np.stack([a for a, _ in pairs]), np.stack([s for _, s in pairs])
    size = np.abs(right.astype(float))
    return _times(size, left, np.abs), _times(size**2, left, np.square)


def _times(right: FloatArray, left: Left, f: Any) -> FloatArray:
    """rightᵀ f(left)."""
    if left is None:
        return np.asarray(right.sum(axis=0)[:, None])
    return np.asarray(right.T @ f(left))


def _given(right: Array, left: Left) -> FloatArray:
    """What each row gave to the numbers of one k: rows × j."""
    if left is None:
        return right.astype(float)[:, None]
    return np.asarray(right[:, None] * left, dtype=float)
