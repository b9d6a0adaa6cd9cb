"""The groups of one client's rows, and what the rows of a group show; see :mod:`.groups`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray, IntArray, Rows
from solera.core.rng import generator
from solera.core.schema import Schema

_SIZE = 4
"""Groups that are cut off others have at least ``min_count`` rows times this."""
_STEP = 8
"""Values lie on a grid of the largest power of two below σ by this."""
_LEAST_WEIGHT = 0.05
"""What a column that tells nothing of the target weighs when groups are cut, beside 1."""
_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Quantiles by which classes are compared."""


@dataclass(frozen=True)
class Groups:
    """Rows, group after group, how many each group has, and the table of all."""

    rows: IntArray
    sizes: IntArray
    table: Rows


def group_rows(rows: Rows, schema: Schema, min_count: int, units: IntArray | None = None) -> Groups:
    """The groups of these rows; ``units`` says whose row each is."""
    X = rows.X.toarray() if hasattr(rows.X, "toarray") else np.asarray(rows.X)
    X = X.reshape(len(X), schema.width)
    y = None if rows.y is None else np.asarray(rows.y)
    numbers = (
        y.reshape(len(y), schema.outputs) if schema.target == "numbers" and y is not None else None
    )
    classes = np.zeros(len(X), np.int64) if y is None or numbers is not None else _codes(y)
    found: list[IntArray] = []
    common = _common(classes, units, min_count)
    if common:
        found = list(_Grouping(X, numbers, classes, min_count).cut_all(common, units))
    order = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    kinds = [feature.kind for feature in schema.features]
    columns = _Values(X, np.array(kinds) == "categorical", min_count, units).of_all(found)
    target = None if y is None else y[order]
    if numbers is not None and y is not None:
        plain = np.zeros(numbers.shape[1], dtype=bool)
        values = _Values(numbers, plain, min_count, units).of_all(found)
        target = values.reshape(-1, *y.shape[1:])
    sizes = np.array([len(group) for group in found], dtype=np.int64)
    return Groups(order, sizes, Rows(columns.reshape(-1, *np.shape(rows.X)[1:]), target))


def _codes(y: Array) -> IntArray:
    """A number for every class, or for every combination of labels."""
    _, codes = np.unique(y, axis=0, return_inverse=True)
    return np.asarray(codes.reshape(-1), dtype=np.int64)


def persons_among(units: IntArray | None, rows: IntArray) -> float:
    """How many persons these rows are of, those with many rows counted as they weigh.

    (Σ r_p)² / Σ r_p² with r_p the rows of person p.
    """
    if units is None:
        return float(len(rows))
    per_person = np.bincount(units[rows]).astype(float)
    return float(per_person.sum() ** 2 / max(1.0, (per_person**2).sum()))


def _common(classes: IntArray, units: IntArray | None, min_count: int) -> list[IntArray]:
    """The rows of every class that is large enough.

    The others have together at least ``min_count`` persons, so that no total gives them back.
    """
    members = [np.flatnonzero(classes == c) for c in range(int(classes.max(initial=-1)) + 1)]
    persons = np.array([persons_among(units, m) for m in members])
    kept = persons >= 2 * min_count - 1
    for c in np.argsort(persons, kind="stable"):
        if kept.all() or persons[~kept].sum() >= min_count:
            break
        kept[c] = False
    return [m for m, keep in zip(members, kept, strict=True) if keep]


class _Grouping:
    """Cuts rows at medians, along the column that spreads most and tells most of the target.

    All decisions come from ranks of values with at least ``min_count`` rows beyond them, so that a
    row left out moves them as many others would.
    """

    def __init__(self, X: Array, y: Array | None, classes: IntArray, min_count: int) -> None:
        columns = X if y is None else np.concatenate([X, y], axis=1)
        self.min_count = min_count
        self.ranks = np.stack([_ranks(c) for c in columns.T], axis=1)
        self.weights = np.ones(columns.shape[1])
        if y is not None:
            high = self.ranks[:, -1] > np.median(self.ranks[:, -1])
            classes = high.astype(np.int64)
        told = self._told(self.ranks[:, : X.shape[1]], classes)
        self.weights[: X.shape[1]] = np.maximum(told, _LEAST_WEIGHT)

    def _told(self, ranks: FloatArray, classes: IntArray) -> FloatArray:
        """How far apart the quantiles of the classes are, in ranks from 0 to 1."""
        members = [ranks[classes == c] for c in np.unique(classes)]
        members = [m for m in members if len(m) >= 2 * self.min_count - 1]
        if len(members) < 2:
            return np.ones(ranks.shape[1])
        found = np.stack([np.sort(m, axis=0)[self._places(len(m))] for m in members])
        return np.asarray((found.max(axis=0) - found.min(axis=0)).max(axis=0) / len(ranks))

    def _places(self, rows: int) -> IntArray:
        """Where quantiles are among sorted rows, the outer ones left alone."""
        places = (np.array(_LEVELS) * (rows - 1)).astype(np.int64)
        return np.clip(places, self.min_count - 1, rows - self.min_count)

    def cut_all(self, parts: Sequence[IntArray], units: IntArray | None) -> Iterator[IntArray]:
        """The groups of each of these sets of rows, left before right."""
        least = _SIZE * self.min_count
        waiting = list(reversed(parts))
        while waiting:
            rows = waiting.pop()
            left = self._cut(rows, least, units) if len(rows) >= 2 * least else None
            if left is None:
                yield rows
            else:
                waiting += [rows[~left], rows[left]]

    def _cut(self, rows: IntArray, least: int, units: IntArray | None) -> BoolArray | None:
        """Which of the rows go left; None where no cut leaves enough on both sides."""
        ranks = self.ranks[rows]
        ordered = np.sort(ranks, axis=0)
        spread = (ordered[-self.min_count] - ordered[self.min_count - 1]) * self.weights
        for column in np.argsort(-spread, kind="stable")[: np.count_nonzero(spread > 0)]:
            values = ordered[:, column]
            ends = np.flatnonzero(np.diff(values)) + 1  # how many rows are left of each cut
            ends = ends[(ends >= least) & (ends <= len(rows) - least)]
            if not len(ends):
                continue
            middle = ends[np.argmin(np.abs(2 * ends - len(rows)))]
            left = ranks[:, column] < values[middle]
            sides = rows[left], rows[~left]
            if units is None or all(persons_among(units, side) >= least for side in sides):
                return np.asarray(left)
        return None


def _ranks(column: Array) -> FloatArray:
    """How many values are below, and half of the equal ones; missing ones come last."""
    values = np.asarray(column, dtype=float)
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    return np.asarray(middle[codes.reshape(-1)])


# --- the values of a group ---


class _Values:
    """What the rows of a group show, column by column, each column in an order of its own."""

    def __init__(
        self, X: Array, categorical: BoolArray, min_count: int, units: IntArray | None
    ) -> None:
        self.X = X
        self.min_count = min_count
        self.units = units
        self.grid = Grid(X, min_count)
        self.categorical = np.flatnonzero(categorical).tolist()
        self._common = {
            j: self._common_codes(np.arange(len(X)), j, np.array([np.nan]))[:1]
            for j in self.categorical
        }

    def of_all(self, groups: Sequence[IntArray]) -> Array:
        """The table of these groups, one after the other."""
        tables = [self._of(group) for group in groups]
        return np.concatenate([self.X[:0], *tables]).astype(self.X.dtype)

    def _of(self, group: IntArray) -> FloatArray:
        values = self.grid.values_of(self._persons(group))
        blocks = np.arange(len(values))
        for j in self.categorical:
            codes = self._common_codes(group, j, self._common[j])
            values[:, j] = codes[(2 * blocks + 1) * len(codes) // (2 * len(blocks))]
        shuffled = np.take_along_axis(values, shuffles(*values.shape), axis=0)
        return shuffled[np.arange(len(group)) * len(blocks) // len(group)]

    def _persons(self, group: IntArray) -> FloatArray:
        """The values of a group, one row per person: the medians of theirs."""
        values = np.asarray(self.X[group], dtype=float)
        if self.units is None:
            return values
        units = self.units[group]
        return np.stack([lower_median(values[units == unit]) for unit in np.unique(units)])

    def _common_codes(self, group: IntArray, column: int, otherwise: FloatArray) -> FloatArray:
        """The codes of a group, those that few persons have replaced by the most common one."""
        codes = np.asarray(self.X[group, column], dtype=float)
        names, of = np.unique(codes, return_inverse=True)
        counts = [persons_among(self.units, group[of == k]) for k in range(len(names))]
        if not counts or max(counts) < self.min_count:
            return otherwise
        common = np.array(counts) >= self.min_count
        most = names[int(np.argmax(counts))]
        kept = np.where(common[of], codes, most)
        return np.sort(kept)[np.argsort(np.sort(kept) != most, kind="stable")]


@cache
def shuffles(blocks: int, columns: int) -> IntArray:
    """An order of blocks for every column, always the same for so many blocks."""
    draws = generator(0, "groups", blocks, columns).random((blocks, columns))
    return np.asarray(draws.argsort(axis=0))


class Grid:
    """Medians of columns, on multiples of the largest power of two below an eighth of σ.

    σ is read from the distance of quartiles, σ ≈ IQR / 1.35, or where these are equal a quarter of
    the distance of the ``min_count``-th values from either end. Where these are equal, too, the
    column has its overall median everywhere.
    """

    def __init__(self, columns: Array, min_count: int) -> None:
        self.min_count = min_count
        values = np.asarray(columns, dtype=float)
        rows = len(values)
        if not rows:
            return
        ordered = np.sort(values, axis=0)
        quarter, outer = rows // 4, min(min_count, (rows + 1) // 2) - 1
        known = np.where(np.isfinite(ordered), ordered, np.nan)
        spread = (known[rows - 1 - quarter] - known[quarter]) / 1.35
        tails = (known[rows - 1 - outer] - known[outer]) / 4
        sigma = np.where(np.nan_to_num(spread) > 0, spread, np.nan_to_num(tails))
        self.common = lower_median(values)
        self.constant = sigma <= 0
        with np.errstate(divide="ignore"):
            step = 2.0 ** np.floor(np.log2(sigma / _STEP))
        step = np.where(self.constant, 1.0, step)
        self.step = np.maximum(step, 1.0) if np.asarray(columns).dtype.kind in "iub" else step

    def values_of(self, group: FloatArray) -> FloatArray:
        """The medians of blocks of at least ``min_count`` sorted values, column by column.

        The first and the last ones are drawn in until ``min_count`` values are beyond them.
        """
        rows = len(group)
        blocks = max(1, rows // self.min_count)
        ends = np.arange(blocks + 1) * rows // blocks
        places = (ends[:-1] + ends[1:] - 1) // 2
        inner = np.clip(places, min(self.min_count, (rows + 1) // 2) - 1, rows - self.min_count)
        values = np.sort(group, axis=0)[inner]
        values = np.rint(values / self.step) * self.step
        return np.where(self.constant, self.common, values)


def lower_median(values: Array) -> FloatArray:
    """The middle value of every column, the lower one of two; missing values count as largest."""
    ordered = np.sort(np.asarray(values, dtype=float), axis=0)
    return np.asarray(ordered[(len(ordered) - 1) // 2])
