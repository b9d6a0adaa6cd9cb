"""Loops of trees that numba compiles, where it is installed: the extra ``fast``.

Every loop here says the same as passes of NumPy elsewhere, to the bit, and takes a half to a tenth
of their time. Importing numba takes longer than boosting a few thousand rows, so it is left to
those who have more; what is compiled is kept on the disk for the next process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import FloatArray, IntArray

WORTHWHILE = 1 << 17
"""From so many numbers to look at on the compiled loops are used."""


class Loops:
    """The loops, each compiled when first used. Their arrays are contiguous.

    Only the last ones are written to; the others may be such as cannot be.
    """

    @cached_property
    def follow(self) -> Callable[..., bool]:
        from numba import int64

        return _compile(_follow, _cells(), _ints(), _ints(2), _ints(), int64[::1])

    @cached_property
    def add(self) -> Callable[..., bool]:
        from numba import float64, int64

        places = [_ints()] * 3
        return _compile(_add, _cells(), *places, int64, _floats(2), float64[:, ::1])

    @cached_property
    def divide(self) -> Callable[..., None]:
        from numba import float64, int64

        read = [_floats(3), _floats(3), *[_ints()] * 3, *[float64] * 4]
        of_nodes = [float64[:, ::1], int64[:, ::1], float64[:, ::1], float64[::1]]
        return _compile(_divide, *read, float64[:, :, ::1], *of_nodes)

    @cached_property
    def fit(self) -> Callable[..., bool]:
        from numba import float64, int64

        return _compile(_fit, _cells(), _floats(1), _ints(), int64, float64[::1])


@cache
def _loops() -> Loops | None:
    return None if find_spec("numba") is None else Loops()


def compiled(numbers: int) -> Loops | None:
    """The compiled loops for so many numbers, or None where passes of NumPy serve."""
    return _loops() if numbers >= WORTHWHILE else None


def _read(kind: str, axes: int) -> Any:
    import numba

    return numba.types.Array(getattr(numba, kind), axes, "C", readonly=True)


def _cells() -> Any:
    return _read("int32", 2)


def _ints(axes: int = 1) -> Any:
    return _read("int64", axes)


def _floats(axes: int) -> Any:
    return _read("float64", axes)


def _compile(loop: Callable[..., Any], *types: Any) -> Any:
    from numba import njit

    how: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(types, cache=True, **how)(loop)
    except RuntimeError:  # no folder to keep it in
        return njit(types, **how)(loop)


def _follow(
    cells: NDArray[np.int32],
    at: IntArray,
    splits: IntArray,
    starts: IntArray,
    reached: IntArray,
) -> bool:
    """:func:`.binned_rows.move`; False where nodes, cells and splits do not fit together."""
    nodes, width = splits.shape[1], len(starts) - 1
    if len(at) != len(cells) or cells.shape[1] != width:
        return False
    missing = np.zeros(nodes, dtype=np.int64)
    below = np.zeros(nodes, dtype=np.int64)  # how many splits may follow one upon another
    steps = 0
    for i in range(nodes - 1, -1, -1):
        if splits[0, i] < 0:
            continue
        if splits[0, i] >= width or splits[3, i] <= i or splits[3, i] >= nodes - 1:
            return False
        missing[i] = starts[splits[0, i] + 1] - 1
        below[i] = 1 + max(below[splits[3, i]], below[splits[3, i] + 1])
        steps = max(steps, below[i])
    for i in range(len(at)):
        node = at[i]
        if node < 0 or node >= nodes:
            return False
        for _ in range(steps):
            column = max(splits[0, node], 0)
            cell = cells[i, column]
            right = splits[2, node] == 0 if cell == missing[node] else cell > splits[1, node]
            node = splits[3, node] + right if splits[0, node] >= 0 else node
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
    if len(at) != len(cells) or len(values) != len(cells) or bounds[-1] != len(cells):
        return False
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


def _divide(
    asked: FloatArray,
    before: FloatArray,
    parents: IntArray,
    alone: IntArray,
    starts: IntArray,
    unit: float,
    fewest: float,
    least: float,
    l2: float,
    hist: FloatArray,
    wholes: FloatArray,
    splits: IntArray,
    left: FloatArray,
    gains: FloatArray,
) -> None:
    """The open nodes of a level and the best split of each; see :class:`.level_growth.GrowingTree`.

    Open are first those ``asked`` ones that ``alone`` names, then the siblings of all asked ones,
    where their parents were ``before``. ``unit`` parts hessians from rows where they share a
    number, else it is 0; ``fewest`` and ``least`` are the rows and hessians that a side needs.

    Written to: sums by cell, Σg, Σh and rows of every open node; column, cell and whether missing
    values go left, Σg, Σh and rows to the left, and the gain of its best split.
    """
    inverse = 1 / unit
    _, cells, k = hist.shape
    total = np.empty(3)
    below = np.empty((cells, 3))  # sums up to every cell of its column
    for n in range(len(hist)):
        q = alone[n] if n < len(alone) else n - len(alone)
        own, other = hist[n].ravel(), asked[q].ravel()
        if n < len(alone):
            own[:] = other
        else:
            both = before[parents[q]].ravel()
            for cell in range(len(own)):
                own[cell] = both[cell] - other[cell]
        total[:] = 0.0
        for cell in range(starts[1]):
            total[0] += hist[n, cell, 0]
            total[1] += hist[n, cell, 1]
            total[2] += hist[n, cell, k - 1]
        all_g, all_h, all_rows = total[0], total[1], total[2]
        if unit:
            all_h = np.floor(total[1] * inverse)
            all_rows = total[1] - all_h * unit
        wholes[0, n], wholes[1, n], wholes[2, n] = all_g, all_h, all_rows
        best = -np.inf
        sum_g = sum_h = sum_rows = 0.0
        for missing_left in (False, True):
            for j in range(len(starts) - 1):
                last = starts[j + 1] - 1
                none = hist[n, last, 0] == 0 and hist[n, last, 1] == 0 and hist[n, last, k - 1] == 0
                if missing_left and none:
                    continue  # the same splits again
                for cell in range(starts[j], last + 1):
                    if missing_left:
                        g = below[cell, 0] + hist[n, last, 0]
                        h = below[cell, 1] + hist[n, last, 1]
                        rows = below[cell, 2] + hist[n, last, k - 1]
                    else:
                        g, h, rows = hist[n, cell, 0], hist[n, cell, 1], hist[n, cell, k - 1]
                        if cell == starts[j] and j > 0:  # every column begins again at nothing
                            g, h, rows = g - total[0], h - total[1], rows - total[2]
                        sum_g += g
                        sum_h += h
                        sum_rows += rows
                        g, h, rows = sum_g, sum_h, sum_rows
                        below[cell, 0], below[cell, 1], below[cell, 2] = g, h, rows
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
        gains[n] = best - all_g * all_g / (all_h + l2)


def _fit(
    leaf_of: NDArray[np.int32],
    wanted: FloatArray,
    starts: IntArray,
    sweeps: int,
    mass: FloatArray,
) -> bool:
    """Proportional fitting of :meth:`.fusion.rules.RuleSet.expected_rows`.

    Tree t wants ``wanted[starts[t] : starts[t + 1]]`` in its leaves, where rules are by
    ``leaf_of[t]``. False where a rule is in no leaf of a tree.
    """
    if not len(mass):
        return True
    most = 0
    for t in range(len(leaf_of)):
        leaves = starts[t + 1] - starts[t]
        most = max(most, leaves)
        for r in range(len(mass)):
            if leaf_of[t, r] < 0 or leaf_of[t, r] >= leaves:
                return False
    scale, here = np.ones(most), np.empty(most)
    before = leaf_of[0]  # the tree whose scale is yet to be applied
    for _ in range(sweeps):
        for t in range(len(leaf_of)):
            own = leaf_of[t]
            here[:] = 0.0
            leaf, total = own[0], 0.0  # of neighbours in a leaf the sum stays at hand
            for r in range(len(mass)):
                mass[r] *= scale[before[r]]
                if own[r] != leaf:
                    here[leaf] = total
                    leaf = own[r]
                    total = here[leaf]
                total += mass[r]
            here[leaf] = total
            for place in range(starts[t + 1] - starts[t]):
                some = here[place] > 0
                scale[place] = wanted[starts[t] + place] / here[place] if some else 1.0
            before = own
    for r in range(len(mass)):
        mass[r] *= scale[before[r]]
    return True
