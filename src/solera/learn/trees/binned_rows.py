"""Rows as numbers of cells: sending them down a tree and adding up what they carry.

These two take most of the time of boosting on histograms, so both do all rows of all clients of a
call in a few passes over flat arrays.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import Array, FloatArray, IntArray
from solera.core.errors import DataError, Refusal

Cells = NDArray[np.int32]
_MOST = np.iinfo(np.int32).max
MOST_SUMS = 1 << 28
"""The most sums by node and cell that a client makes for one ask."""


def move(cells: Cells, at: IntArray, splits: IntArray, starts: IntArray) -> IntArray:
    """The nodes that rows at the nodes ``at`` reach down the splits of a tree.

    ``splits`` has a column for every node: the column to look at (−1 for none), the last cell that
    goes left, whether missing values go left, and the left child, before the right one. Column j
    owns the cells from ``starts[j]`` on, its last one for missing values.
    """
    column, offset, following = _next_nodes(splits, starts)
    flat, line = cells.reshape(-1), np.arange(0, cells.size, cells.shape[1])
    for _ in range(_steps(splits)):
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
        raise Refusal(f"{len(wanted):,} nodes by {total:,} cells are too many for one ask")
    shape = (len(sizes), len(wanted), total, values.shape[1])
    height, width = shape[0] * shape[1] * total, cells.shape[1]
    kind: Any = np.int32 if max(height, cells.size) <= _MOST else np.int64
    place: Array = np.full(int(max(at.max(initial=0), wanted.max())) + 1, -1, dtype=kind)
    place[wanted] = np.arange(len(wanted)) * total
    here = np.flatnonzero((place >= 0).take(at))
    bounds = np.searchsorted(here, [0, *sizes.cumsum()]).tolist()
    if len(here) < len(at):
        at, cells, values = at.take(here), cells.take(here, axis=0), values.take(here, axis=0)
    index = np.empty(cells.shape, dtype=kind)
    if len(wanted) == 1:  # a number for all rows of a client: many times faster than one for each
        for i, (a, b) in enumerate(pairwise(bounds)):
            np.add(cells[a:b], kind(i * total), out=index[a:b])
    else:
        first = place.take(at)
        first += np.arange(0, height, height // len(sizes), dtype=kind).repeat(np.diff(bounds))
        np.add(cells, first[:, None], out=index)
    index = index.ravel()
    highest = index.view(f"u{index.itemsize}").max(initial=0)
    if highest >= height:  # the product does not look where it writes
        raise DataError(f"the ask knows {total:,} cells, these rows have others")
    ends = np.arange(0, index.size + 1, width, dtype=kind)
    ones = _ones(index.size)
    from scipy.sparse import csc_array

    rows = csc_array((height, len(cells)))
    rows.data, rows.indices, rows.indptr = ones, index, ends  # no second look at every number
    return np.asarray(rows @ values).reshape(shape)
