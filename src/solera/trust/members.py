"""Gram matrices of many samples of rows and columns, made in one pass over the samples.

Each member of an ensemble sees some rows and some columns. Taking them out of the table costs about
as much as multiplying them, so what needs the same sample is computed from it together.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
from threadpoolctl import threadpool_limits

from solera.core.clients import Array, FloatArray, IntArray

if TYPE_CHECKING:
    from solera.trust.grams import Gram

_CHUNK = 1 << 24
"""Numbers held at once."""
_PAYS = 3 * 10**8
_PARTS = 8


class Members:
    """Samples of the rows and columns of a table, for :func:`~.contributions.gram`.

    Parameters
    ----------
    X: the table, or what ``features`` makes it of.
    rows, columns: members × rows and members × columns, by number; None: one member, with all.
    features: rows of X → rows of the table; where there is one member, a chunk at a time.
    width: how many columns a member has, where ``features`` makes them.

    >>> X = np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 4.0]])
    >>> two = Members(X, np.array([[0, 1], [2, 2]]), np.array([[0, 1], [0, 1]]))
    >>> gram(two).numbers(Behind(3)).tolist()
    [[2.0, 5.0, 13.0], [2.0, 8.0, 32.0]]
    """

    def __init__(
        self,
        X: Any,
        rows: IntArray | None = None,
        columns: IntArray | None = None,
        *,
        features: Callable[[Any], FloatArray] = np.asarray,
        width: int | None = None,
    ) -> None:
        self.X = X
        self.rows = rows
        self.columns = columns
        self.features = features
        wide = X.shape[1] if width is None else width
        self.shape = X.shape[0], wide if columns is None else columns.shape[1]
        self._asked: list[ref[Gram]] = []
        self._made: dict[int, FloatArray] = {}
        self._table: FloatArray | None = None

    @property
    def members(self) -> int:
        return 1 if self.rows is None else len(self.rows)

    def add(self, gram: Gram) -> None:
        """Another matrix of every member, to be made with the others."""
        self._asked.append(ref(gram))

    def numbers(self, gram: Gram) -> FloatArray:
        """The matrices of all members; the first time those of all Grams are made."""
        if id(gram) not in self._made:
            grams = [gram]
            if gram.in_one_pass:
                grams = [one for asked in self._asked if (one := asked()) is not None]
            made = self._by_chunk(grams) if self.rows is None else self._by_member(grams)
            self._made |= {id(one): values for one, values in zip(grams, made, strict=True)}
        return self._made[id(gram)]

    def whole(self) -> FloatArray:
        """The table, all rows at once."""
        if self._table is None:
            self._table = self.features(self.X)
        return self._table

    def tables(self) -> Iterator[tuple[FloatArray, IntArray | slice]]:
        """What every member sees, and which rows these are; the one member's in chunks."""
        if self.rows is None or self.columns is None:
            step = max(self.shape[1], _CHUNK // self.shape[1])
            if self.shape[0] <= step:
                yield self.whole(), slice(None)
                return
            for start in range(0, self.shape[0], step):
                rows = slice(start, min(start + step, self.shape[0]))
                yield self.features(self.X[rows]), rows
            return
        for sample, columns in zip(self.rows, self.columns, strict=True):
            yield self.whole()[np.ix_(sample, columns)], sample

    def _by_chunk(self, grams: Sequence[Gram]) -> list[FloatArray]:
        total: list[FloatArray] = []
        for X, rows in self.tables():
            part = [gram.of(X, rows)[None] for gram in grams]
            total = [a + b for a, b in zip(total, part, strict=True)] if total else part
        return total

    def _by_member(self, grams: Sequence[Gram]) -> list[FloatArray]:
        assert self.rows is not None
        assert self.columns is not None
        rows, columns = self.rows, self.columns
        self.whole()  # before threads ask for it
        count, width = rows.shape[1], columns.shape[1]
        parallel = threads_pay(len(rows) * count * width**2)
        step = max(1, _CHUNK // (count * width))
        if parallel:
            step = min(step, -(-len(rows) // _PARTS))
        starts = range(0, len(rows), step)

        def some(start: int) -> list[FloatArray]:
            chosen = slice(start, start + step)
            return self._of_several(grams, rows[chosen], columns[chosen])

        if parallel:
            with threadpool_limits(1), ThreadPoolExecutor() as pool:
                parts = list(pool.map(some, starts))
        else:
            parts = [some(start) for start in starts]
        return [np.concatenate(of_gram) for of_gram in zip(*parts, strict=True)]

    def _of_several(
        self, grams: Sequence[Gram], rows: IntArray, columns: IntArray
    ) -> list[FloatArray]:
        """The matrices of some members, in one product each where no weight differs by row."""
        if not all(map(_is_plain, grams)):
            pairs = list(zip(rows, columns, strict=True))
            tables = [self.whole()[np.ix_(r, c)] for r, c in pairs]
            return [
                np.stack([gram.of(X, r) for X, (r, _) in zip(tables, pairs, strict=True)])
                for gram in grams
            ]
        X = self.whole()[rows[:, :, None], columns[:, None, :]]
        turned = X.transpose(0, 2, 1)
        made = []
        for gram in grams:
            if gram.Y is not None:
                made.append(turned @ gram.Y[rows])
                continue
            matrices = packed(turned @ X)
            alike = gram.weights
            made.append(matrices if alike is None else matrices[:, None] * alike.T)
        return made


def _is_plain(gram: Gram) -> bool:
    """Whether all rows weigh the same."""
    weights, Y = gram.weights, gram.Y
    if gram.cells is not None or (Y is not None and (weights is not None or Y.dtype == bool)):
        return False
    return weights is None or weights.shape[:1] == (1,)


def threads_pay(work: int) -> bool:
    """Whether so many multiplications are worth the threads.

    Measured on two cores: threads cost 4 ms to set up and gain from 3e8 multiplications on (2.6×
    at 8e8). The answer depends on the work alone, never on the clock, and every member is computed
    by one thread, so that results are the same bits each time. Worker processes have company and
    stay on one core.
    """
    alone = multiprocessing.parent_process() is None
    return work >= _PAYS and alone and (os.cpu_count() or 1) > 1


@lru_cache(maxsize=4)
def _upper(columns: int) -> tuple[IntArray, IntArray]:
    return np.triu_indices(columns)


def packed(matrix: Array) -> Any:
    """The upper triangles of symmetric matrices, row by row, along the last axis."""
    i, j = _upper(matrix.shape[-1])
    return matrix[..., i, j]


def symmetric(triangle: Array) -> FloatArray:
    """The matrices whose upper triangles these are (:func:`packed`), along the last axis."""
    width = int(np.sqrt(2 * triangle.shape[-1]))  # width (width + 1) / 2 numbers
    i, j = _upper(width)
    matrix = np.empty((*triangle.shape[:-1], width, width))
    matrix[..., i, j] = triangle
    matrix[..., j, i] = triangle
    return matrix
