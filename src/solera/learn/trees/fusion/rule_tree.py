"""One tree out of merged rules.

The root holds all rules. A node is split where the size-weighted entropy of its children is least,
with the entropy that of the rules' most probable classes (the thesis's Eq. 2.1 and 2.2, whose sign
is reversed there):

    E = Σ_s |RS_s| · entropy(RS_s) / Σ_s |RS_s|

|RS_s| is what the rules of a child weigh: in the thesis one each, here the rows that each is
expected to hold, so that a corner cut into many tiny boxes does not outvote the bulk of the rows. A
rule goes to every child whose region it meets, its weight divided evenly. The node with most rows
is split next. Nodes stop when all rules agree on the class, when no split makes any child smaller,
when less than one row of all merged clients is expected there, or at the depth asked for; the tree,
when it has as many leaves as there are rules. A leaf predicts the weighted mean of its rules'
probabilities.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import BoolArray, FloatArray, IntArray
from solera.learn.trees.fusion.rules import RuleSet
from solera.learn.trees.id3 import entropy
from solera.learn.trees.tree import Tree, TreeBuilder, starts_of

_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Split:
    """A column, and for every branch the rules, their weights and the region behind it, or None."""

    column: int
    branches: list[tuple[IntArray, FloatArray, Any] | None]
    threshold: float | None = None
    missing_left: bool = True


def tree_of_rules(
    rules: RuleSet, weight: FloatArray, max_depth: int, *, sizes: IntArray | None = None
) -> Tree:
    """The global tree; with ``sizes``, categories per column, splits are categorical."""
    probabilities = rules.probabilities
    labels = probabilities.argmax(axis=1)
    weight = np.maximum(weight, _TOLERANCE * max(weight.sum(), 1.0))  # no rule counts for nothing
    splitter: _Thresholds | _Categories = (
        _Thresholds(rules, labels) if sizes is None else _Categories(rules, labels, sizes)
    )
    builder = TreeBuilder(probabilities.shape[1])
    queue: list[tuple[float, int, int, IntArray, FloatArray, Any]] = []

    def leaf(here: IntArray, share: FloatArray, region: Any, depth: int) -> int:
        rows = float(share.sum())
        node = builder.add(share @ probabilities[here] / rows, rows)
        if depth < max_depth and not (labels[here] == labels[here[0]]).all() and rows >= least:
            heapq.heappush(queue, (-rows, node, depth, here, share, region))
        return node

    least = 1 / max(1, len(rules.trees))
    leaf(np.arange(len(rules)), weight, splitter.everywhere(), 0)
    leaves = 1
    while queue and leaves < len(rules):
        _, node, depth, here, share, region = heapq.heappop(queue)
        split = splitter.split(here, share, region)
        if split is None or any(b is not None and not len(b[0]) for b in split.branches):
            continue  # sums of many weights can leave a rounding error where there is no rule
        children = [-1 if b is None else leaf(*b, depth + 1) for b in split.branches]
        leaves += sum(child >= 0 for child in children) - 1
        builder.split(
            node,
            split.column,
            children,
            threshold=split.threshold,
            missing_left=split.missing_left,
        )
    return builder.build()


class _Thresholds:
    """Binary splits at the cuts of the rules. A region is a box of ranks."""

    def __init__(self, rules: RuleSet, labels: IntArray) -> None:
        self.rules = rules
        self.labels = labels
        self.classes = rules.weights.shape[1]
        cuts = np.diff(rules.offsets)
        self.top = (cuts + 1).astype(np.int64)
        self.base = starts_of(cuts + 2)  # ranks 0 … top of every column
        self.column = np.repeat(np.arange(rules.width), cuts + 2)
        self.rank = np.arange(self.base[-1]) - np.repeat(self.base[:-1], cuts + 2)
        self.low = rules.lower + self.base[:-1]
        self.high = rules.upper + self.base[:-1]

    def everywhere(self) -> tuple[IntArray, IntArray]:
        """The region of the root."""
        return np.zeros_like(self.top), self.top

    def split(
        self, here: IntArray, weight: FloatArray, region: tuple[IntArray, IntArray]
    ) -> Split | None:
        """The best split of a node with these rules, or None when none makes a child smaller."""
        below = self._up_to(self.low[here], here, weight)  # rules that begin at or below each rank
        ended = self._up_to(self.high[here], here, weight)
        left = np.concatenate([np.zeros((1, self.classes)), below[:-1]])
        right = ended[self.base[1:] - 1][self.column] - ended
        rows = weight.sum()
        least = _TOLERANCE * rows
        n_left, n_right = left.sum(axis=1), right.sum(axis=1)
        first, last = region
        useful = (self.rank > first[self.column]) & (self.rank < last[self.column])
        useful &= (n_left > least) & (n_right > least)
        useful &= np.minimum(n_left, n_right) < rows - least
        if not useful.any():
            return None
        places = np.flatnonzero(useful)
        left, right = left[places], right[places]
        both = left + right - np.bincount(self.labels[here], weight, minlength=self.classes)
        left, right = left - both / 2, right - both / 2
        score = left.sum(axis=1) * entropy(left) + right.sum(axis=1) * entropy(right)
        ties = np.flatnonzero(score <= score.min() + least)
        best = places[ties[np.argmin(both.sum(axis=1)[ties])]]  # fewest rules on both sides
        return self._at(int(self.column[best]), int(self.rank[best]), here, weight, region)

    def _up_to(self, places: IntArray, here: IntArray, weight: FloatArray) -> FloatArray:
        """Weight of the rules by class whose bound is at most each rank, column by column."""
        cells = places * self.classes + self.labels[here, None]
        weights = np.repeat(weight, cells.shape[1])
        flat = np.bincount(cells.ravel(), weights, minlength=int(self.base[-1]) * self.classes)
        summed = np.cumsum(flat.reshape(-1, self.classes), axis=0)
        before = np.concatenate([np.zeros((1, self.classes)), summed])[self.base[:-1]]
        return np.asarray(summed - before[self.column], dtype=np.float64)

    def _at(
        self,
        column: int,
        rank: int,
        here: IntArray,
        weight: FloatArray,
        region: tuple[IntArray, IntArray],
    ) -> Split:
        lower, upper = self.rules.lower[here, column], self.rules.upper[here, column]
        known, missing = lower < upper, self.rules.missing[here, column]
        left, right = known & (lower < rank), known & (upper > rank)
        missing_left = int((missing & left).sum()) >= int((missing & right).sum())
        only_missing = missing & ~known
        left = left | (only_missing & missing_left)
        right = right | (only_missing & (not missing_left))
        share = np.where(left & right, weight / 2, weight)
        first, last = region
        ends, begins = last.copy(), first.copy()
        ends[column] = begins[column] = rank
        threshold = float(self.rules.column_cuts(column)[rank - 1])
        parts: list[tuple[IntArray, FloatArray, Any] | None] = [
            (here[left], share[left], (first, ends)),
            (here[right], share[right], (begins, last)),
        ]
        return Split(column, parts, threshold, missing_left)


class _Categories:
    """One branch per category. A region is the set of columns not used above."""

    def __init__(self, rules: RuleSet, labels: IntArray, sizes: IntArray) -> None:
        self.labels = labels
        self.classes = rules.weights.shape[1]
        self.sizes = sizes
        self.starts = starts_of(sizes + 1)
        lower, upper = rules.bounds()
        bound = np.isfinite(lower) | np.isfinite(upper)
        missing = rules.lower == rules.upper
        self.any = ~bound & ~missing
        self.code = np.where(missing, sizes, np.where(bound, upper, 0)).astype(np.int64)
        self.code = np.clip(self.code, 0, sizes)

    def everywhere(self) -> BoolArray:
        """The region of the root."""
        return np.ones(len(self.sizes), dtype=bool)

    def split(self, here: IntArray, weight: FloatArray, region: BoolArray) -> Split | None:
        """The best split of a node with these rules, or None when none makes a child smaller.

        Rules without a condition on the column are divided evenly over its branches.
        """
        label, free = self.labels[here], self.any[here]
        weights = np.broadcast_to(weight[:, None], free.shape)
        cells = (self.code[here] + self.starts[:-1]) * self.classes + label[:, None]
        total, columns = int(self.starts[-1]), len(self.sizes)
        counts = np.bincount(cells[~free], weights[~free], minlength=total * self.classes)
        counts = counts.reshape(total, self.classes)
        of_column = np.arange(columns) * self.classes + label[:, None]
        unbound = np.bincount(of_column[free], weights[free], minlength=columns * self.classes)
        there = counts.sum(axis=1) > 0
        branches = np.add.reduceat(there, self.starts[:-1])
        spread = unbound.reshape(columns, -1) / np.maximum(branches, 1)[:, None]
        counts = counts + np.repeat(spread, self.sizes + 1, axis=0) * there[:, None]
        score = np.add.reduceat(counts.sum(axis=1) * entropy(counts), self.starts[:-1])
        useful = region & ((branches > 1) | ((branches == 1) & free.any(axis=0)))
        if not useful.any():
            return None
        score = np.where(useful, score, np.inf)
        ties = np.flatnonzero(score <= score.min() + _TOLERANCE * weight.sum())
        best = int(ties[np.argmin(free.sum(axis=0)[ties])])  # fewest rules on several branches
        return self._at(best, int(branches[best]), here, weight, region)

    def _at(
        self, column: int, branches: int, here: IntArray, weight: FloatArray, region: BoolArray
    ) -> Split:
        code, free = self.code[here, column], self.any[here, column]
        share = np.where(free, weight / branches, weight)
        inside = region.copy()
        inside[column] = False
        parts: list[tuple[IntArray, FloatArray, Any] | None] = []
        for value in range(int(self.sizes[column]) + 1):
            bound = ~free & (code == value)
            chosen = bound | free
            parts.append((here[chosen], share[chosen], inside) if bound.any() else None)
        return Split(column, parts)
