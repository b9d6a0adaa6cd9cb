"""Growing one boosted tree level by level from summed histograms."""

from __future__ import annotations

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
        totals = hist[:, :, : self.starts[1]].sum(axis=2)
        if len(self.builder) == 1:
            self._settle(0, totals[:, 0])
        best = self._best(hist, totals)
        wanted, siblings = [], []
        divided = np.flatnonzero(best.gain > 0)
        for i in divided.tolist():
            left = self._split(int(nodes[i]), i, best, totals[:, i])
            smaller_left = best.left[2, i] <= totals[2, i] - best.left[2, i]
            wanted.append(left if smaller_left else left + 1)
            siblings.append(left + 1 if smaller_left else left)
        self.wanted, self._siblings = np.array(wanted, int), np.array(siblings, int)
        self._parents = hist.take(divided, axis=1)

    def _all_histograms(self, told: Any) -> tuple[Ints, Floats]:
        """Open nodes and their Σg, Σh and rows by cell, 3 × nodes × cells: whole numbers."""
        asked = self.units.unpacked(told)
        if self._parents is None:
            return self.wanted, asked
        return (
            np.concatenate([self.wanted, self._siblings]),
            np.concatenate([asked, self._parents - asked], axis=1),
        )

    def _best(self, hist: Floats, totals: Floats) -> _Best:
        """The split of largest gain of each node; first the lower cell, missing values right."""
        firsts = self.starts[1:-1]
        hist[:, :, firsts] -= totals[:, :, None]  # every column begins again at nothing
        left = np.cumsum(hist, axis=2)
        hist[:, :, firsts] += totals[:, :, None]
        gaps = hist[:, :, self.starts[1:] - 1]
        ways = [left]
        if gaps[2].any():
            ways.append(left + np.repeat(gaps, np.diff(self.starts), axis=2))
        gains = np.concatenate([self._gain(way, totals) for way in ways], axis=1)
        place = gains.argmax(axis=1)
        each, cells = np.arange(len(gains)), left.shape[2]
        way, cell = place // cells, place % cells
        chosen = np.where(way == 0, ways[0][:, each, cell], ways[-1][:, each, cell])
        column = self.column[cell]
        no_gap = gaps[2, each, column] == 0
        missing_left = np.where(no_gap, 2 * chosen[2] >= totals[2], way == 1)
        gain = gains[each, place] - self._weight(totals)
        return _Best(gain, cell, column, missing_left, chosen)

    def _gain(self, left: Floats, totals: Floats) -> Floats:
        """What both sides of every split weigh, where both are large enough."""
        right = totals[:, :, None] - left
        good = np.minimum(left[2], right[2]) >= self.limits.min_rows
        good &= np.minimum(left[1], right[1]) >= _LEAST_HESSIAN / self.h_unit
        return np.where(good, self._weight(left) + self._weight(right), -np.inf)

    def _weight(self, sums: Floats) -> Floats:
        """G²/(H + λ), in the units of the sums."""
        l2, least = self.limits.l2 / self.h_unit, _LEAST_HESSIAN / self.h_unit
        return np.asarray(sums[0] ** 2 / np.maximum(sums[1] + l2, least))

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
