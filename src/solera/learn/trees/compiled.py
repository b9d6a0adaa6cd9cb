"""The loops of boosting that numba compiles, where it is installed: the extra ``fast``.

Every loop here says the same as passes of NumPy elsewhere, to the bit, and takes a half to a tenth
of their time. Importing numba takes longer than boosting a few thousand rows, so it is left to
those who have more; what is compiled is kept on the disk for the next process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import FloatArray, IntArray

WORTHWHILE = 1 << 17
"""From so many cells of rows on the compiled loops are used."""


class Loops(NamedTuple):
    """The compiled loops, by name. Arrays are contiguous; the last ones are written to."""

    follow: Callable[..., bool]
    add: Callable[..., bool]
    best_splits: Callable[..., None]


def compiled(cells: int) -> Loops | None:
    """The compiled loops for rows of so many cells, or None where passes of NumPy serve."""
    return _loops() if cells >= WORTHWHILE else None


@cache
def _loops() -> Loops | None:
    if find_spec("numba") is None:
        return None
    from numba import float64, int32, int64, types

    def read(kind: Any, axes: int) -> Any:
        return types.Array(kind, axes, "C", readonly=True)

    cells, ints, sums = read(int32, 2), read(int64, 1), read(float64, 2)
    return Loops(
        follow=_compile(_follow, cells, ints, int64, ints, ints, ints, int64[::1]),
        add=_compile(_add, cells, ints, ints, ints, int64, sums, float64[:, ::1]),
        best_splits=_compile(
            _best_splits,
            *(read(float64, 3), ints, sums, sums, *[float64] * 4),
            *(int64[:, ::1], float64[:, ::1], float64[::1]),
        ),
    )


def _compile(loop: Callable[..., Any], *types: Any) -> Any:
    from numba import njit

    try:
        return njit(types, cache=True, nogil=True)(loop)
    except RuntimeError:  # no folder to keep it in
        return njit(types, nogil=True)(loop)


def _follow(
    cells: NDArray[np.int32],
    at: IntArray,
    steps: int,
    column: IntArray,
    offset: IntArray,
    following: IntArray,
    reached: IntArray,
) -> bool:
    """The nodes that rows reach (:func:`.binned_rows._next_nodes`); False if these do not fit."""
    nodes, ways = np.uint64(len(column)), np.uint64(len(following))
    for i in range(len(at)):
        node = at[i]
        for _ in range(steps):
            if np.uint64(node) >= nodes:
                return False
            way = cells[i, column[node]] + offset[node]
            if np.uint64(way) >= ways:
                return False
            node = following[way]
        reached[i] = node
    return True


def _add(
    cells: NDArray[np.int32],
    at: IntArray,
    bounds: IntArray,
    place: IntArray,
    total: int,
    values: FloatArray,
    sums: FloatArray,
) -> bool:
    """Add 2 or 3 values of rows to the sums of their client, node and cells, in the rows' order.

    The rows of client c begin at ``bounds[c]``; a row at node i adds from ``place[i]`` on, or
    nothing where that is negative. False, with sums of no use, where a row has other cells.
    """
    nodes = np.uint64(len(place))
    each = len(sums) // (len(bounds) - 1)
    here = np.empty(len(at) + 1, dtype=np.int64)
    first = np.empty(len(at) + 1, dtype=np.int64)
    count = 0
    for c in range(len(bounds) - 1):
        for i in range(bounds[c], bounds[c + 1]):
            if np.uint64(at[i]) >= nodes:
                return False
            start = place[at[i]]
            here[count] = i
            first[count] = c * each + start
            count += start >= 0  # no branch, for which rows count cannot be foreseen
    three = values.shape[1] == 3
    limit = np.uint32(total)
    for q in range(count):
        i = here[q]
        start = np.uint64(first[q])
        g, h = values[i, 0], values[i, 1]
        for j in range(cells.shape[1]):
            cell = np.uint32(cells[i, j])
            if cell >= limit:
                return False
            where = start + np.uint64(cell)
            sums[where, 0] += g
            sums[where, 1] += h
            if three:
                sums[where, 2] += values[i, 2]
    return True


def _best_splits(
    hist: FloatArray,
    starts: IntArray,
    totals: FloatArray,
    wholes: FloatArray,
    unit: float,
    fewest: float,
    least: float,
    l2: float,
    splits: IntArray,
    left: FloatArray,
    gains: FloatArray,
) -> None:
    """The best split of every node; see :meth:`.level_growth.GrowingTree._best`.

    ``unit`` parts hessians from rows where they share a number, else it is 0; ``fewest`` and
    ``least`` are the rows and hessians that a side needs. Written to: column, cell and whether
    missing values go left, Σg, Σh and rows to the left, and what both sides weigh.
    """
    inverse = 1 / unit if unit else 0.0
    below = np.empty((hist.shape[1], 3))  # sums up to every cell of its column
    for n in range(len(hist)):
        g = h = rows = 0.0
        for j in range(len(starts) - 1):
            for cell in range(starts[j], starts[j + 1]):
                begin = j > 0 and cell == starts[j]  # every column begins again at nothing
                g += hist[n, cell, 0] - (totals[n, 0] if begin else 0.0)
                h += hist[n, cell, 1] - (totals[n, 1] if begin else 0.0)
                rows += hist[n, cell, -1] - (totals[n, -1] if begin else 0.0)
                below[cell, 0], below[cell, 1], below[cell, 2] = g, h, rows
        all_g, all_h, all_rows = wholes[0, n], wholes[1, n], wholes[2, n]
        best = -np.inf
        for missing_left in (False, True):
            for j in range(len(starts) - 1):
                last = starts[j + 1] - 1
                none = hist[n, last, 0] == 0 and hist[n, last, 1] == 0 and hist[n, last, -1] == 0
                if missing_left and none:
                    continue  # the same splits again
                for cell in range(starts[j], last + 1):
                    g, h, rows = below[cell, 0], below[cell, 1], below[cell, 2]
                    if missing_left:
                        g += hist[n, last, 0]
                        h += hist[n, last, 1]
                        rows += hist[n, last, -1]
                    if unit:
                        packed = h
                        h = np.floor(packed * inverse)
                        rows = packed - h * unit
                    if rows < fewest or rows > all_rows - fewest:
                        continue
                    if h < least or h > all_h - least:
                        continue
                    other_g, other_h = all_g - g, all_h - h
                    gain = g * g / (h + l2) + other_g * other_g / (other_h + l2)
                    if gain > best:
                        best = gain
                        left[0, n], left[1, n], left[2, n] = g, h, rows
                        to_left = 2 * rows >= all_rows if none else missing_left
                        splits[0, n], splits[1, n], splits[2, n] = j, cell, to_left
        gains[n] = best
