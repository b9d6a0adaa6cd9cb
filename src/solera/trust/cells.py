"""Which cells every row is in, and sums over the rows of each cell.

A table of counts has a shape; its cells are numbered in C order. Rows of several simulated clients
are added up in one pass: the client is one more axis, before the others.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solera.core.clients import Array, BoolArray, FloatArray, IntArray
from solera.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Behind:
    """The rows that a contribution is about: how many, of which client, of which person.

    ``owners``: the place of each row's client among ``clients``; None where there is one client.
    ``units``: whose row each is, as codes 0, 1, …; None where every row is somebody else's.
    """

    rows: int
    owners: IntArray | None = None
    clients: int = 1
    units: IntArray | None = None

    def among(self, rows: IntArray) -> Behind:
        """The same for some of the rows, by number; one that comes several times is one person."""
        owners = None if self.owners is None else self.owners[rows]
        units = rows if self.units is None else self.units[rows]
        return Behind(len(rows), owners, self.clients, units)


class Cells(ABC):
    """The cells of every row. Results have the clients' axis first where there are several."""

    shape: tuple[int, ...]
    most: int = 1
    """The most cells that one row is in."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @abstractmethod
    def pairs(self, rows: int) -> tuple[IntArray | slice, IntArray]:
        """(row, cell) of every membership; a slice stands for all rows in order."""

    def count(self, behind: Behind) -> IntArray:
        """The rows of each cell."""
        row, cell = self.pairs(behind.rows)
        if behind.owners is not None:
            cell = behind.owners[row] * self.size + cell
        number = np.bincount(cell, minlength=behind.clients * self.size)
        counts: IntArray = self._shaped(number, behind)
        return counts

    def sum(self, values: Array, behind: Behind) -> FloatArray:
        """Sums of ``values``, rows × …, over the rows of each cell."""
        row, cell = self.pairs(behind.rows)
        if behind.owners is not None:
            cell = behind.owners[row] * self.size + cell
        total = sum_by_cell(values[row], cell, behind.clients * self.size)
        sums: FloatArray = self._shaped(total, behind)
        return sums

    def _shaped(self, total: Array, behind: Behind) -> Any:
        clients = () if behind.owners is None else (behind.clients,)
        return total.reshape(clients + self.shape + total.shape[1:])


class OneCell(Cells):
    """All rows are in one cell."""

    shape = ()

    def pairs(self, rows: int) -> tuple[slice, IntArray]:
        return slice(None), np.zeros(rows, dtype=np.int64)

    def count(self, behind: Behind) -> IntArray:
        if behind.owners is None:
            return np.asarray(behind.rows)
        return np.bincount(behind.owners, minlength=behind.clients)


class Indexed(Cells):
    """Rows by the numbers of their cells, rows × numbers; −1 for none.

    A row counts once in a cell, however often it names it; ``distinct`` says that none does so.
    """

    def __init__(self, index: IntArray, shape: tuple[int, ...], *, distinct: bool = False) -> None:
        index = index if distinct or index.ndim == 1 else _once(index)
        self.index = index
        self.shape = shape
        self.most = 1 if index.ndim == 1 else index.shape[1]
        least, largest = (index.min(), index.max()) if index.size else (0, -1)
        self._every = least >= 0
        """Whether every row is in its cells, none in less."""
        if least < -1 or largest >= self.size:
            raise UsageError(
                f"a row is in cell {largest if largest >= self.size else least}",
                hint=f"cells are 0 to {self.size - 1}, and −1 for none; cells= says how many",
            )

    def pairs(self, rows: int) -> tuple[IntArray | slice, IntArray]:
        cell = self.index.ravel()
        if self.index.ndim == 1 and self._every:
            return slice(None), cell
        inside = cell >= 0
        row = np.repeat(np.arange(rows), self.most)
        return row[inside], cell[inside]


class Marks(Cells):
    """Rows by marks, rows × cells; a row is in every cell where it has one."""

    def __init__(self, marks: BoolArray) -> None:
        self.marks = marks
        self.shape = marks.shape[1:]
        self.most = math.prod(self.shape)

    def pairs(self, rows: int) -> tuple[IntArray, IntArray]:
        row, cell = np.nonzero(self.marks.reshape(rows, self.size))
        return row, cell

    def count(self, behind: Behind) -> IntArray:
        counts: IntArray = sum_rows(self.marks, behind)
        return counts

    def sum(self, values: Array, behind: Behind) -> FloatArray:
        if behind.owners is not None:
            return super().sum(values, behind)
        flat = values.reshape(len(values), math.prod(values.shape[1:]))
        total = self.marks.reshape(len(values), self.size).T.astype(flat.dtype) @ flat
        return np.asarray(total.reshape(self.shape + values.shape[1:]))


class Intervals(Cells):
    """Values by the interval they are in, between edges: [a, b), open at both ends.

    Values are rows, or rows × columns with edges of every column; NaN is in no interval. The
    values are sorted once, when they are counted.
    """

    def __init__(self, values: ArrayLike, edges: ArrayLike) -> None:
        self.values = np.asarray(values)
        self.edges = np.asarray(edges)
        if not (np.diff(self.edges, axis=-1) >= 0).all():
            raise UsageError("the edges of intervals are not in order", hint="np.sort(edges)")
        self.shape = (*self.edges.shape[:-1], self.edges.shape[-1] + 1)
        self.most = math.prod(self.edges.shape[:-1])

    @property
    def _columns(self) -> Iterable[tuple[Array, Array]]:
        """The values of every column, and its edges."""
        if self.edges.ndim == 1:
            return [(self.values, self.edges)]
        return zip(self.values.T, self.edges, strict=True)

    @cached_property
    def index(self) -> IntArray:
        """The interval of every value, −1 for none."""
        index = np.stack([_interval(x, edges) for x, edges in self._columns], axis=1)
        return index[:, 0] if self.edges.ndim == 1 else index

    def pairs(self, rows: int) -> tuple[IntArray | slice, IntArray]:
        index = self.index
        if index.ndim == 2:
            first = np.arange(index.shape[1]) * self.shape[-1]
            index = np.where(index < 0, -1, index + first)
        return Indexed(index, self.shape).pairs(rows)

    def count(self, behind: Behind) -> IntArray:
        if behind.owners is None:
            counts = np.stack([_count_sorted(x, edges) for x, edges in self._columns])
            return counts.reshape(self.shape)
        columns = [_count_by_owner(x, edges, behind) for x, edges in self._columns]
        return np.stack(columns, axis=1).reshape(behind.clients, *self.shape)


def intervals(values: ArrayLike, edges: ArrayLike) -> Intervals:
    """The cells between ``edges``: fewer than the first, between two, at least the last.

    For :func:`count_by` and :func:`sum_by`. One more cell than there are edges; NaN is in none.

    Parameters
    ----------
    values: a number of every row, or rows × columns.
    edges: in rising order; with several columns a line of them for each.

    >>> import numpy as np
    >>> import solera as so
    >>> @so.task("demo.ages", many=True)
    ... def ages(client, ask):
    ...     return {"rows": so.count_by(so.intervals(client.data.X[:, 0], ask["edges"]))}
    >>> patients = np.array([[31.0], [47.0], [68.0], [np.nan], [65.0], [29.0]])
    >>> fed = so.simulate(patients, clients=2, seed=0)
    >>> fed.ask(ages, {"edges": np.array([40, 65])}).fold(so.aggregations.Sum())["rows"].tolist()
    [2, 1, 2]
    """
    return Intervals(values, edges)


def as_cells(cell: Any, cells: int | Sequence[int] | None) -> Cells:
    """What ``cell`` and ``cells`` of :func:`~.constructors.count_by` stand for."""
    if isinstance(cell, Cells):
        return cell
    if cell is None:
        return OneCell()
    if isinstance(cell, tuple):
        return _from_axes(cell, cells)
    index = np.asarray(cell)
    if index.dtype == bool:
        return Marks(index)
    if index.dtype.kind not in "iu":
        raise UsageError(
            f"cell= holds values of type {index.dtype}",
            hint="numbers of cells, marks, so.intervals(x, edges), a tuple of these, or None",
        )
    if cells is None:
        raise UsageError("cells= is missing: how many cells there are", hint="cells=k")
    shape = (int(cells),) if isinstance(cells, int | np.integer) else tuple(cells)
    return Indexed(index.astype(np.int64, copy=False), shape)


def _from_axes(axes: tuple[Any, ...], cells: int | Sequence[int] | None) -> Indexed:
    if cells is None or isinstance(cells, int) or len(cells) != len(axes):
        raise UsageError(
            f"cell= has {len(axes)} axes and cells={cells!r}", hint="cells=(k1, k2, …)"
        )
    shape = tuple(int(k) for k in cells)
    numbered = [axis.index if isinstance(axis, Intervals) else np.asarray(axis) for axis in axes]
    deepest = max(axis.ndim for axis in numbered)
    columns = [
        axis if axis.ndim == deepest or axis.ndim == 0 else axis[:, None] for axis in numbered
    ]
    index: NDArray[Any] = np.zeros((), dtype=np.int64)
    outside: NDArray[Any] = np.zeros((), dtype=bool)
    for axis, k in zip(columns, shape, strict=True):
        if axis.size and (axis.max() >= k or axis.min() < -1):
            raise UsageError(f"an axis of cell= holds {axis.max()}", hint=f"0 to {k - 1}, or −1")
        index = index * k + axis
        outside = outside | (axis < 0)
    distinct = any(axis.shape[0] == 1 and _all_differ(axis) for axis in columns if axis.ndim == 2)
    return Indexed(np.where(outside, -1, index).astype(np.int64), shape, distinct=distinct)


def _all_differ(axis: Array) -> bool:
    return len(np.unique(axis)) == axis.size


def _once(index: IntArray) -> IntArray:
    """The cells of every row without repetition; −1 in the place of what comes again."""
    ordered = np.sort(index, axis=1)
    again = ordered[:, 1:] == ordered[:, :-1]
    ordered[:, 1:][again] = -1
    return ordered


def _interval(values: Array, edges: Array) -> IntArray:
    place = np.searchsorted(edges, values, side="right")
    return np.where(np.isnan(values), -1, place).astype(np.int64)


def _count_sorted(values: Array, edges: Array) -> IntArray:
    if (edges == edges[:1]).all():  # nothing lies between them
        inner = np.count_nonzero(values < edges[:1])
        below, known = np.full(len(edges), inner), np.count_nonzero(~np.isnan(values))
    else:
        ordered = np.sort(values)  # NaN comes last
        below, known = ordered.searchsorted(edges), ordered.searchsorted(np.nan)
    return np.diff(below, prepend=0, append=known).astype(np.int64)


def _count_by_owner(values: Array, edges: Array, behind: Behind) -> IntArray:
    assert behind.owners is not None
    known = ~np.isnan(values)
    place = np.searchsorted(edges, values[known], side="right")
    cells = len(edges) + 1
    counts = np.bincount(behind.owners[known] * cells + place, minlength=behind.clients * cells)
    return counts.reshape(behind.clients, cells)


def sum_rows(values: Array, behind: Behind) -> Any:
    """Sums over the rows of each client, or of the one."""
    kind = np.int64 if values.dtype.kind in "biu" else None
    if behind.owners is None:
        return values.sum(axis=0, dtype=kind)
    total = np.zeros((behind.clients, *values.shape[1:]), dtype=kind or values.dtype)
    if len(values):
        first = np.flatnonzero(np.diff(behind.owners, prepend=-1))
        total[behind.owners[first]] = np.add.reduceat(values, first, axis=0, dtype=kind)
    return total


def sum_by_cell(values: Any, cell: IntArray, cells: int) -> Any:
    """Sums of rows by the number of their cell, cells × …; rows may be sparse."""
    from scipy.sparse import csr_matrix

    if not hasattr(values, "tocsr") and values.shape[1:] in ((), (1,)):
        weights = values if values.ndim == 1 else values[:, 0]
        return np.bincount(cell, weights=weights, minlength=cells).reshape(cells, *values.shape[1:])
    rows = values.shape[0]
    if not rows:
        return np.zeros((cells, *values.shape[1:]))
    flat = values if hasattr(values, "tocsr") else values.reshape(rows, -1)
    member = csr_matrix((np.ones(rows), cell, np.arange(rows + 1)), shape=(rows, cells))
    total = member.T @ flat
    total = total.toarray() if hasattr(total, "toarray") else total
    return np.asarray(total, dtype=np.float64).reshape(cells, *values.shape[1:])
