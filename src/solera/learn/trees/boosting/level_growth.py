"""Growing one boosted tree level by level from summed histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray, IntArray
from solera.learn.trees.boosting.histograms import HistBins, Units
from solera.learn.trees.compiled import Loops, compiled
from solera.learn.trees.tree import TreeBuilder

_LEAST_HESSIAN = 1e-3
_KNOWN = float(np.finfo(np.float64).max)
"""A threshold above all values: the split parts known from missing ones."""


def threshold_of(edges: FloatArray, bin: int) -> float:
    """The largest value of a bin; of the last one, larger than all."""
    return float(edges[bin]) if bin < len(edges) else _KNOWN


class Limits(NamedTuple):
    """What bounds a tree besides its depth, and how far it steps."""

    l2: float
    lr: float
    min_rows: int


class GrowingTree:
    """One tree of a round. ``wanted`` are the nodes whose histograms are to be asked next.

    Of two children the smaller is wanted, for the other is the difference; ``_small`` tells which
    of the wanted have too few rows to be split themselves. In a closed job both are wanted, side by
    side, and ``groups`` are the groups of cells that were told of their parents.
    """

    groups: IntArray

    def __init__(self, bins: HistBins, units: Units, limits: Limits) -> None:
        self.bins = bins
        self.starts = bins.starts_
        self.column = np.repeat(np.arange(len(bins.edges_)), np.diff(self.starts))
        self._begin(units, limits, compiled(len(bins.edges_) << units.rows))

    def _begin(self, units: Units, limits: Limits, loops: Loops | None = None) -> None:
        self.limits = limits
        self.units = units
        self.g_unit, self.h_unit = 2.0**-units.gradient, 2.0**-units.hessian
        self.builder = TreeBuilder(1)
        self.builder.add(0.0, 0.0)
        self.wanted = np.array([0])
        self._siblings = np.array([-1])
        self._small = np.array([False])
        self._hist: IntArray | None = None
        self._told: BoolArray | None = None
        self._parents = np.array([-1])
        self._splits = np.empty((5, 0), dtype=np.int64)
        self._loops = loops

    def grow(self, sums: Any, told: BoolArray | None = None) -> None:
        """Split the open nodes, given the histograms of the wanted ones.

        ``told``: which cells hold the sum of their group, where not every cell is told.
        """
        if sums is None:
            self._splits = self._splits[:, :0]
            return
        asked = np.asarray(sums) if told is None else np.array(sums)  # totals are read-only
        self._told = told
        if self._loops is not None and told is None and self._fits(asked):
            hist, wholes, divided, splits, left = self._best_by(self._loops, asked)
        else:
            hist = self._all_histograms(asked)
            totals = self._totals(hist)
            wholes = np.stack(self.units.unpacked(totals.T))
            divided, splits, left = self._best(hist, totals, wholes)
        if len(self.builder) == 1:
            self.builder.set_value(0, float(self._values(wholes)[0]), float(wholes[2, 0]))
        nodes = self._open_nodes()
        sides = np.stack([left, wholes[:, divided] - left], axis=2)
        self._divide(nodes[divided], splits, sides.reshape(3, -1))
        rows = sides[2].T
        some = rows.max(axis=0) >= 2 * self.limits.min_rows  # the others cannot be split again
        if told is not None:
            self.wanted = np.add.outer(self._splits[4][some], [0, 1]).ravel()
            self.groups = (told.cumsum(axis=1) - told)[divided[some]]
            return
        first, larger_left = self._splits[4], rows[0] > rows[1]
        self.wanted, self._siblings = (first + larger_left)[some], (first + ~larger_left)[some]
        self._small = rows.min(axis=0)[some] < 2 * self.limits.min_rows
        self._hist, self._parents = hist, divided[some]

    def _totals(self, hist: IntArray) -> IntArray:
        """Sums over all rows of every node: nodes × k; of the first column that is told."""
        if self._told is None:
            return np.asarray(hist[:, : self.starts[1]].sum(axis=1))
        by_column = np.logical_or.reduceat(self._told, self.starts[:-1], axis=1)
        first = by_column.argmax(axis=1)[:, None, None]
        totals = np.add.reduceat(hist, self.starts[:-1], axis=1)
        return np.asarray(np.take_along_axis(totals, first, axis=1)[:, 0])

    def _open_nodes(self) -> IntArray:
        """Of the asked nodes those that may be split, and the siblings of all."""
        if self._hist is None:
            return self.wanted
        return np.concatenate([self.wanted[~self._small], self._siblings])

    def _all_histograms(self, asked: IntArray) -> IntArray:
        """Sums by cell of the open nodes, nodes × cells × k, as clients send them."""
        if self._hist is None:
            return asked
        return np.concatenate([asked[~self._small], self._hist[self._parents] - asked])

    def _best(
        self, hist: IntArray, totals: IntArray, wholes: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Which nodes gain by a split, their best ones, and Σg, Σh and rows to its left: 3 × nodes.

        Splits are columns, cells and whether missing values go left: 3 × nodes. Of equal ones the
        first is that of the lower cell with missing values to the right.
        """
        cell, sums = self._candidates(hist, totals)
        left = self.units.unpacked(sums)
        gains = self._gain(left, wholes)
        if self._told is not None:
            gains[~self._between_groups(cell)] = -np.inf
        place, each = gains.argmax(axis=1), np.arange(len(hist))
        chosen = np.stack([part[each, place] for part in left])
        gain = gains[each, place] - self._weight(*np.asarray(wholes[:2], np.float64))
        cell = cell[place]
        column = self.column[cell]
        none_missing = (hist[each, self.starts[column + 1] - 1] == 0).all(axis=1)
        missing_left = np.where(none_missing, 2 * chosen[2] >= wholes[2], place >= hist.shape[1])
        divided = np.flatnonzero(gain > 0)
        splits = np.stack([column, cell, missing_left])[:, divided]
        return divided, splits, chosen[:, divided]

    def _between_groups(self, cell: IntArray) -> BoolArray:
        """Which splits are after the last cell of a group, nodes × splits.

        With missing values to the left, those whose column tells these as a group of their own.
        """
        told, ends = self._told, self.starts[1:] - 1
        assert told is not None
        alone = (told[:, ends] & told[:, ends - 1]).take(self.column, axis=1)
        again = cell[told.shape[1] :]
        return np.concatenate([told, (told & alone).take(again, axis=1)], axis=1)

    def _fits(self, asked: Array) -> bool:
        """Whether these sums are such as the loop was compiled for, which does not look."""
        k = 2 if self.units.packed or self.units.counted else 3
        expected = asked.shape == (len(self.wanted), self.starts[-1], k)
        return expected and all(a is None or a.dtype == np.float64 for a in (asked, self._hist))

    def _best_by(
        self, loops: Loops, asked: Array
    ) -> tuple[Array, Array, IntArray, IntArray, Array]:
        """Sums by cell and over all rows of the open nodes, and :meth:`_best`, by one loop."""
        asked = np.ascontiguousarray(asked)
        if self._hist is None:
            before, parents, alone = asked, self._parents[:0], np.arange(len(asked))
        else:
            before, parents, alone = self._hist, self._parents, np.flatnonzero(~self._small)
        count = len(alone) + len(parents)
        hist = np.empty((count, *asked.shape[1:]))
        wholes, left, gains = np.empty((3, count)), np.empty((3, count)), np.empty(count)
        splits = np.empty((3, count), dtype=np.int64)
        unit = 2.0**self.units.rows if self.units.packed else 0.0
        limits = (self.limits.min_rows, self._least_hessian(), self.limits.l2 / self.h_unit)
        found = (hist, wholes, splits, left, gains)
        loops.divide(asked, before, parents, alone, self.starts, unit, *limits, *found)
        divided = np.flatnonzero(gains > 0)
        return hist, wholes, divided, splits[:, divided], left[:, divided]

    def _least_hessian(self) -> int:
        return math.ceil(_LEAST_HESSIAN / self.h_unit)

    def _candidates(self, hist: IntArray, totals: IntArray) -> tuple[IntArray, IntArray]:
        """The last cell to the left of every split to choose from, and what goes left.

        The sums are k × nodes × splits. First all cells with missing values to the right, then
        those of columns that have missing values, with these to the left.
        """
        cells, k = hist.shape[1:]
        missing = hist[:, self.starts[1:] - 1]
        again = np.flatnonzero(missing.any(axis=(0, 2)).take(self.column))
        sums = np.empty((k, len(hist), cells + len(again)), dtype=hist.dtype)
        firsts = self.starts[1:-1]
        hist[:, firsts] -= totals[:, None]  # every column begins again at nothing
        for part in range(k):
            np.cumsum(hist[:, :, part], axis=1, out=sums[part, :, :cells])
        hist[:, firsts] += totals[:, None]
        if len(again):
            more = missing.take(self.column[again], axis=1).transpose(2, 0, 1)
            np.add(sums[:, :, again], more, out=sums[:, :, cells:])
        return np.concatenate([np.arange(cells), again]), sums

    def _gain(self, left: Sequence[IntArray], totals: IntArray) -> FloatArray:
        """What both sides of every split weigh, where both are large enough."""
        rows, all_g, all_h, all_rows = left[2], *totals[:, :, None]
        fewest, least = self.limits.min_rows, self._least_hessian()
        good = rows >= fewest
        good &= rows <= all_rows - fewest
        good &= left[1] >= least
        good &= left[1] <= all_h - least
        g, h = np.asarray(left[0], np.float64), np.asarray(left[1], np.float64)
        gain = self._weight(g, h)
        gain += self._weight(all_g - g, all_h - h)
        np.copyto(gain, -np.inf, where=~good)
        return gain

    def _weight(self, g: FloatArray, h: FloatArray) -> FloatArray:
        """G²/(H + λ), in the units of the sums; no number where there are too few rows."""
        below = h + self.limits.l2 / self.h_unit if self.limits.l2 else h
        weight = np.multiply(g, g)
        with np.errstate(divide="ignore", invalid="ignore"):
            np.divide(weight, below, out=weight)
        return weight

    def _values(self, sums: IntArray) -> FloatArray:
        """What leaves of these sums add to a score: −η G/(H + λ)."""
        g, h = sums[0] * self.g_unit, sums[1] * self.h_unit
        return np.asarray(-self.limits.lr * g / np.maximum(h + self.limits.l2, _LEAST_HESSIAN))

    def _divide(self, nodes: IntArray, splits: IntArray, children: IntArray) -> None:
        """Split nodes; ``children`` are Σg, Σh and rows of the left and the right one of each."""
        first = len(self.builder) + 2 * np.arange(len(nodes))
        self.builder.add_all(self._values(children).tolist(), children[2].tolist())
        self._splits = np.stack([nodes, *splits, first])
        for node, column, cell, missing_left, child in self._splits.T.tolist():
            threshold = self._threshold(column, cell)
            self.builder.split(
                node,
                column,
                [child, child + 1],
                threshold=threshold,
                missing_left=bool(missing_left),
            )

    def _threshold(self, column: int, cell: int) -> float:
        return threshold_of(self.bins.edges_[column], cell - int(self.starts[column]))

    def last_splits(self) -> IntArray:
        """The splits of the last level, as clients follow them: 4 × nodes, −1 for none."""
        by_node = np.zeros((4, len(self.builder)), dtype=np.int64)
        by_node[0] = -1
        by_node[:, self._splits[0]] = self._splits[1:]
        return by_node
