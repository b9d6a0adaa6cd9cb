"""Sums of products of columns, and how many persons stand behind each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray, IntArray, Part
from solera.trust.cells import Behind, Cells
from solera.trust.contributions import Contribution, Norm, bound_rows, filled, own_bound
from solera.trust.members import Members, packed


class Gram(Contribution):
    """Xᵀ diag(w) Y for every weight and cell; of XᵀwX the upper triangle, row by row."""

    kind = "gram"
    in_one_pass: ClassVar[bool] = True
    """Whether it is made with all others of the same :class:`Members`."""

    def __init__(
        self,
        X: Any,
        Y: Any,
        weights: Array | None,
        cells: Cells | None,
        bound: tuple[float, float] | None,
        rows: IntArray | None,
        part: Part,
    ) -> None:
        super().__init__(rows, part)
        self.X = X
        self.Y = Y
        self.weights = weights
        self.cells = cells
        self.bound = bound
        if isinstance(X, Members) and self.in_one_pass:
            X.add(self)

    def numbers(self, behind: Behind) -> Any:
        if isinstance(self.X, Members):
            return self.X.numbers(self)
        if behind.owners is None:
            return self.of(self.X, slice(None))
        order = np.argsort(behind.owners, kind="stable")
        ends = np.cumsum(np.bincount(behind.owners, minlength=behind.clients))
        return np.stack([self.of(self.X[rows], rows) for rows in np.split(order, ends[:-1])])

    def of(self, X: Any, rows: Any) -> FloatArray:
        """The matrices of some rows, by number, of which X are the columns."""
        blocks = [self._matrix(*part) for part in self._parts(X, rows)]
        together = blocks[0] if len(blocks) == 1 else np.stack(blocks)
        return together.reshape(self._each + blocks[0].shape)

    def halves(self, X: Any, rows: Any) -> list[Any]:
        """A with AᵀA = XᵀwX for every matrix of some rows; no weight may be negative."""
        return [_with_root(part, weights) for part, _, weights in self._parts(X, rows)]

    def _parts(self, X: Any, rows: Any) -> Iterator[tuple[Any, Any, Array | None]]:
        """The columns, numbers and weights of the rows of every matrix, in order."""
        for part, numbers in self._by_cell(X, rows):
            weights = self.weights
            if weights is None or weights.ndim == 1:
                yield part, numbers, None if weights is None else weights[numbers]
                continue
            by_output = (weights if len(weights) == 1 else weights[numbers]).T
            yield from ((part, numbers, one) for one in by_output)

    def _by_cell(self, X: Any, rows: Any) -> Iterator[tuple[Any, Any]]:
        if self.cells is None:
            yield X, rows
            return
        numbers = np.arange(len(self._inside))[rows]
        for inside in self._inside[rows].T:
            chosen = np.flatnonzero(inside)
            yield X[chosen], numbers[chosen]

    @cached_property
    def _inside(self) -> BoolArray:
        """Which rows are in which cell, rows × cells."""
        assert self.cells is not None
        rows = self.X.shape[0]
        inside = np.zeros((rows, self.cells.size), dtype=bool)
        row, cell = self.cells.pairs(rows)
        inside[np.arange(rows)[row], cell] = True
        return inside

    def _matrix(self, X: Any, rows: Any, weights: Array | None) -> FloatArray:
        if self.Y is not None:
            matrix = X.T @ _times_rows(self.Y[rows], weights)
            return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)
        if weights is None or weights.min(initial=0) >= 0:
            half = _with_root(X, weights)
            matrix = half.T @ half  # the same twice: half the work
        else:
            matrix = X.T @ _times_rows(X, weights)
        matrix = np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)
        return np.asarray(packed(matrix))

    @property
    def _each(self) -> tuple[int, ...]:
        """How many matrices there are of the same rows: cells × outputs."""
        cells = () if self.cells is None else self.cells.shape
        return cells + (() if self.weights is None else self.weights.shape[1:])

    @property
    def repeats_rows(self) -> bool:
        return super().repeats_rows or (isinstance(self.X, Members) and self.X.rows is not None)

    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        of_x, of_rest = _gram_bounds(self.bound, clip)
        of_row = of_x * of_rest * (of_x if self.Y is None else 1.0)
        most = 1 if self.cells is None else self.cells.most
        if norm == "l2":
            return of_row * math.sqrt(most)
        width = self.X.shape[1]
        numbers = width * (width + 1) // 2 if self.Y is None else width * self.Y.shape[1]
        outputs = 1 if self.weights is None else math.prod(self.weights.shape[1:])
        return of_row * most * math.sqrt(numbers * outputs)

    def bounded(self, clip: float | None) -> Self:
        of_x, of_rest = _gram_bounds(self.bound, clip)
        if isinstance(self.X, Members):
            X: Any = Members(bound_rows(self.X.whole(), of_x))
        else:
            X = bound_rows(filled(self.X), of_x)
        Y = self.Y if self.Y is None else bound_rows(filled(self.Y), of_rest)
        weights = self.weights
        if self.Y is None and weights is not None:
            weights = bound_rows(weights, of_rest)
        return type(self)(X, Y, weights, self.cells, self.bound, self.rows, self.part)


def _gram_bounds(bound: tuple[float, float] | None, clip: float | None) -> tuple[float, float]:
    if bound is not None:
        return float(bound[0]), float(bound[1])
    return float(own_bound(None, clip)), 1.0


def _times_rows(Y: Any, weights: Array | None) -> Any:
    if weights is None:
        return Y.astype(np.float64) if Y.dtype == bool else Y
    return Y.multiply(weights[:, None]).tocsr() if hasattr(Y, "tocsr") else Y * weights[:, None]


def _with_root(X: Any, weights: Array | None) -> Any:
    """Rows whose products are those of X with weights."""
    if weights is None or (weights.dtype == bool and weights.all()):
        return X
    return X[weights] if weights.dtype == bool else _times_rows(X, np.sqrt(weights))
