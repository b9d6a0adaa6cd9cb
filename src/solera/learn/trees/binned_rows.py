"""Rows as numbers of cells: sending them down a tree and adding up what they carry.

These two take most of the time of boosting on histograms, so both do all rows of all clients of a
call in a few passes over flat arrays.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import Array, FloatArray, IntArray
from solera.core.errors import DataError, Refusal
from solera.learn.trees.compiled import compiled
from solera.learn.trees.tree import starts_of
from solera.trust import cells as trusted
from solera.trust.cells import Behind

Cells = NDArray[np.int32]
_MOST = np.iinfo(np.int32).max
MOST_SUMS = 1 << 28
"""The most sums by node and cell that a client makes for one ask."""


def move(
    cells: Cells, at: IntArray, splits: IntArray, starts: IntArray, out: IntArray | None = None
) -> IntArray:
    """The nodes that rows at the nodes ``at`` reach down the splits of a tree.

    ``splits`` has a column for every node: the column to look at (−1 for none), the last cell that
    goes left, whether missing values go left, and the left child, before the right one. Column j
    owns the cells from ``starts[j]`` on, its last one for missing values. They are written to
    ``out`` where it is given.
    """
    reached = np.empty_like(at) if out is None else out
    loops = compiled(cells.size)
    if loops is None:
        reached[:] = _moved(cells, at, splits, starts)
    elif not loops.follow(cells, at, splits, starts, reached):
        raise DataError("the splits of this ask are not those of these rows")
    return reached


def _moved(cells: Cells, at: IntArray, splits: IntArray, starts: IntArray) -> IntArray:
    steps = _steps(splits)
    if not steps:
        return at
    column, offset, following = _next_nodes(splits, starts)
    if not at.any():  # all rows look at the same column
        at = following.take(cells[:, column[0]] + offset[0])
        steps -= 1
    flat, line = cells.reshape(-1), np.arange(0, cells.size, cells.shape[1])
    for _ in range(steps):
        place = column.take(at)
        place += line
        place = flat.take(place) + offset.take(at)
        at = following.take(place)
    return at


def _next_nodes(splits: IntArray, starts: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Where a row goes from its node, looked up instead of compared.

    A row at node i with the cell c in the column ``column[i]`` is next at
    ``following[c + offset[i]]``; at a node without a split it stays.
    """
    feature, cut, missing_left, child = splits
    inner = feature >= 0
    column = np.where(inner, feature, 0)
    first, after = starts.take(column), starts.take(column + 1)
    if (after - first).sum() > MOST_SUMS:
        raise Refusal(f"{len(column):,} splits over these cells are too many for one ask")
    ends = (after - first).cumsum()
    offset = ends - after
    node = np.arange(len(column)).repeat(after - first)
    right = np.arange(len(node)) > (cut + offset).take(node)
    right[ends - 1] = missing_left == 0
    right &= inner.take(node)
    return column, offset, np.where(inner, child, np.arange(len(child))).take(node) + right


def _steps(splits: IntArray) -> int:
    """How many splits may follow one upon another."""
    feature, _, _, child = splits
    below, steps = np.flatnonzero(feature >= 0), 0
    while len(below):
        children = child.take(below)
        both = np.concatenate([children, children + 1])
        below, steps = both[feature.take(both) >= 0], steps + 1
    return steps


def _too_many(nodes: int, cells: int) -> Refusal:
    return Refusal(f"{nodes:,} nodes by {cells:,} cells are too many for one ask")


def _other_cells(total: int) -> DataError:
    return DataError(f"the ask knows {total:,} cells, these rows have others")


_longest = np.ones(0)


def _ones(size: int) -> FloatArray:
    """That many ones, out of the longest array that was asked for so far."""
    global _longest
    if len(_longest) < size:
        _longest = np.ones(size)
        _longest.flags.writeable = False
    return _longest[:size]


def add_up(
    cells: Cells, at: IntArray, sizes: IntArray, wanted: IntArray, values: FloatArray, total: int
) -> FloatArray:
    """Σ of what rows carry by client, wanted node and cell: clients × nodes × cells × k.

    ``values`` are rows × k, client after client of these ``sizes``; there are ``total`` cells. It
    is the product with the sparse matrix that has a one wherever a row is in a cell.
    """
    if len(wanted) * total * values.shape[1] > MOST_SUMS:
        raise _too_many(len(wanted), total)
    shape = (len(sizes), len(wanted), total, values.shape[1])
    height, width = shape[0] * shape[1] * total, cells.shape[1]
    place: Array = np.full(int(max(at.max(initial=0), wanted.max())) + 1, -1)
    place[wanted] = np.arange(len(wanted)) * total
    loops = compiled(cells.size)
    if loops is not None and values.shape[1] in (2, 3):
        summed = np.zeros((height, values.shape[1]))
        if not loops.add(cells, at, starts_of(sizes), place, total, values, summed):
            raise _other_cells(total)
        return summed.reshape(shape)
    kind: Any = np.int32 if max(height, cells.size) <= _MOST else np.int64
    place = place.astype(kind, copy=False)
    first = place.take(at)
    here = np.flatnonzero(first >= 0)
    if len(here) < len(at):
        first, cells, values = first.take(here), cells.take(here, axis=0), values.take(here, axis=0)
    if len(sizes) > 1:
        bounds = np.searchsorted(here, [0, *sizes.cumsum()])
        first += np.arange(0, height, height // len(sizes), dtype=kind).repeat(np.diff(bounds))
    index: Array = cells.astype(kind, copy=False)
    if height > total:
        index = index + first[:, None]
    index = index.ravel()
    highest = index.view(f"u{index.itemsize}").max(initial=0)
    if highest >= height:  # the product does not look where it writes
        raise _other_cells(total)
    ends = np.arange(0, index.size + 1, width, dtype=kind)
    from scipy.sparse import csc_array  # imported here: most programs sum no bins

    member = csc_array((height, len(cells)))
    member.data, member.indices, member.indptr = _ones(index.size), index, ends  # unchecked: above
    sums: Array = member @ np.asarray(values, dtype=np.float64)
    return sums.reshape(shape)


class AtNodes(trusted.Cells):
    """Rows at the ``wanted`` nodes of a tree, each in a cell of every column: nodes × cells."""

    def __init__(
        self, cells: Array, at: IntArray, wanted: IntArray, shape: tuple[int, ...]
    ) -> None:
        self.cells = cells
        self.at = at
        self.wanted = wanted
        self.shape = (len(wanted), *shape)
        self.most = cells.shape[1]
        if self.size > MOST_SUMS:
            raise _too_many(len(wanted), self.each)

    @property
    def each(self) -> int:
        """The cells of a node."""
        return math.prod(self.shape[1:])

    def pairs(self, rows: int) -> tuple[IntArray, IntArray]:
        place = np.full(int(max(self.at.max(initial=0), self.wanted.max(initial=0))) + 1, -1)
        place[self.wanted] = np.arange(len(self.wanted)) * self.each
        first = place.take(self.at)
        here = np.flatnonzero(first >= 0)
        cell = self.cells.take(here, axis=0) + first.take(here)[:, None]
        return np.repeat(here, self.most), cell.ravel()

    def sum(self, values: Array, behind: Behind) -> FloatArray:
        alone = np.array([behind.rows])
        owners = behind.owners
        sizes = alone if owners is None else np.bincount(owners, minlength=behind.clients)
        sums = add_up(self.cells, self.at, sizes, self.wanted, values, self.each)
        return sums.reshape(*sums.shape[: owners is not None], *self.shape, values.shape[1])
