"""Growing one boosted tree level by level from summed histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from solera.learn.trees.histograms import HistBins, Units
from solera.learn.trees.tree import Bools, Floats, Ints, TreeBuilder

_LEAST_HESSIAN = 1e-3
_KNOWN = float(np.finfo(np.float64).max)
"""A threshold above all values: the split parts known from missing ones."""


class Limits(NamedTuple):
    """What bounds a tree besides its depth, and how far it steps."""

    l2: float
    lr: float
    min_rows: int


class _Best(NamedTuple):
    """The best split of every node: its gain, cell, column, and what goes left."""

    gain: Floats
    cell: Ints
    column: Ints
    missing_left: Bools
    left: Floats
    """Σg, Σh and rows to the left: 3 × nodes."""


class GrowingTree:
    """One tree of a round. ``wanted`` are the nodes whose histograms are to be asked next."""

    def __init__(self, bins: HistBins, units: Units, limits: Limits) -> None:
        self.bins = bins
        self.limits = limits
        self.units = units
        self.g_unit, self.h_unit = 2.0**-units.gradient, 2.0**-units.hessian
        self.starts = bins.starts_
        self.column = np.repeat(np.arange(len(bins.edges_)), np.diff(self.starts))
        self.builder = TreeBuilder(1)
        self.builder.add(0.0, 0.0)
        self.wanted = np.array([0])
        self._siblings = np.array([-1])
        self._parents: Floats | None = None
        self._splits: list[tuple[int, int, int, bool, int]] = []

    def grow(self, told: Any) -> None:
        """Split the open nodes, given the histograms of the wanted ones."""
        self._splits = []
        if told is None:
            return
        nodes, hist = self._all_histograms(told)
        totals = hist[:, : self.starts[1]].sum(axis=1)
        best = self._best(hist, totals)
        wholes = np.stack(self.units.unpacked(totals.T))
        if len(self.builder) == 1:
            self._settle(0, wholes[:, 0])
        wanted, siblings = [], []
        divided = np.flatnonzero(best.gain > 0)
        for i in divided.tolist():
            left = self._split(int(nodes[i]), i, best, wholes[:, i])
            smaller_left = best.left[2, i] <= wholes[2, i] - best.left[2, i]
            wanted.append(left if smaller_left else left + 1)
            siblings.append(left + 1 if smaller_left else left)
        self.wanted, self._siblings = np.array(wanted, int), np.array(siblings, int)
        self._parents = hist.take(divided, axis=0)

    def _all_histograms(self, told: Any) -> tuple[Ints, Floats]:
        """Open nodes and their sums by cell, nodes × cells × k, as clients send them."""
        if self._parents is None:
            return self.wanted, told
        asked = len(told)
        hist = np.empty((2 * asked, *told.shape[1:]))
        hist[:asked] = told
        np.subtract(self._parents, told, out=hist[asked:])
        return np.concatenate([self.wanted, self._siblings]), hist

    def _best(self, hist: Floats, totals: Floats) -> _Best:
        """The split of largest gain of each node; first the lower cell, missing values right."""
        cell, sums = self._candidates(hist, totals)
        left, wholes = self.units.unpacked(sums), self.units.unpacked(totals.T)
        gains = self._gain(left, wholes)
        place, each = gains.argmax(axis=1), np.arange(len(hist))
        chosen = np.stack([part[each, place] for part in left])
        column = self.column[cell[place]]
        no_gap = (hist[each, self.starts[column + 1] - 1] == 0).all(axis=1)
        missing_left = np.where(
            no_gap, 2 * chosen[2] >= wholes[2], place >= hist.shape[1]
        )
        gain = gains[each, place] - self._weight(wholes[0], wholes[1])
        return _Best(gain, cell[place], column, missing_left, chosen)

    def _candidates(self, hist: Floats, totals: Floats) -> tuple[Ints, Floats]:
        """The last cell to the left of every split to choose from, and what goes left.

        The sums are k × nodes × splits. First all cells with missing values to the right, then
        those of columns that have missing values, with these to the left.
        """
        cells, k = hist.shape[1:]
        gaps = hist[:, self.starts[1:] - 1]
        again = np.flatnonzero(gaps.any(axis=(0, 2)).take(self.column))
        sums = np.empty((k, len(hist), cells + len(again)))
        firsts = self.starts[1:-1]
        hist[:, firsts] -= totals[:, None]  # every column begins again at nothing
        for part in range(k):
            np.cumsum(hist[:, :, part], axis=1, out=sums[part, :, :cells])
        hist[:, firsts] += totals[:, None]
        if len(again):
            missing = gaps.take(self.column[again], axis=1).transpose(2, 0, 1)
            np.add(sums[:, :, again], missing, out=sums[:, :, cells:])
        return np.append(np.arange(cells), again), sums

    def _gain(self, left: Sequence[Floats], totals: Sequence[Floats]) -> Floats:
        """What both sides of every split weigh, where both are large enough."""
        g, h, rows = left
        all_g, all_h, all_rows = (total[:, None] for total in totals)
        least, fewest = np.ceil(_LEAST_HESSIAN / self.h_unit), self.limits.min_rows
        good = (rows >= fewest) & (rows <= all_rows - fewest)
        good &= (h >= least) & (h <= all_h - least)
        gain = self._weight(g, h)
        gain += self._weight(all_g - g, all_h - h)
        return np.where(good, gain, -np.inf)

    def _weight(self, g: Floats, h: Floats) -> Floats:
        """G²/(H + λ), in the units of the sums."""
        l2, least = self.limits.l2 / self.h_unit, _LEAST_HESSIAN / self.h_unit
        below = h + l2
        np.maximum(below, least, out=below)
        return np.divide(g * g, below, out=below)

    def _settle(self, node: int, sums: Floats) -> None:
        g, h = float(sums[0]) * self.g_unit, float(sums[1]) * self.h_unit
        value = -self.limits.lr * g / max(h + self.limits.l2, _LEAST_HESSIAN)
        self.builder.settle(node, value, float(sums[2]))

    def _split(self, node: int, i: int, best: _Best, totals: Floats) -> int:
        """Make the children of a node; the number of the left one."""
        column, cell = int(best.column[i]), int(best.cell[i])
        left, right = self.builder.add(0.0, 0.0), self.builder.add(0.0, 0.0)
        self._settle(left, best.left[:, i])
        self._settle(right, totals - best.left[:, i])
        edges, bin = self.bins.edges_[column], cell - int(self.starts[column])
        threshold = float(edges[bin]) if bin < len(edges) else _KNOWN
        missing_left = bool(best.missing_left[i])
        self.builder.split(
            node, column, [left, right], threshold=threshold, missing_left=missing_left
        )
        self._splits.append((node, column, cell, missing_left, left))
        return left

    def last_splits(self) -> Ints:
        """The splits of the last level, as clients follow them: 4 × nodes, −1 for none."""
        found = np.zeros((4, len(self.builder)), dtype=np.int64)
        found[0] = -1
        for node, column, cell, missing_left, left in self._splits:
            found[:, node] = column, cell, missing_left, left
        return found
