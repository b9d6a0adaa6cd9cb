"""One tree out of merged rules.

The root holds all rules. A node is split where the size-weighted entropy of its children is least,
with the entropy that of the rules' most probable classes (the thesis's Eq. 2.1 and 2.2, whose sign
is reversed there):

    E = Σ_s |RS_s| · entropy(RS_s) / Σ_s |RS_s|

|RS_s| is what the rules of a child weigh: in the thesis one each, here the rows that each is expected
to hold, so that a corner cut into many tiny boxes does not outvote the bulk of the rows. A rule goes
to every child whose region it meets. Nodes stop when all rules agree on the class, when no split
makes any child smaller, or at the depth asked for. A leaf predicts the mean probabilities of its
rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from solera.learn.trees.id3 import cell_starts, entropy
from solera.learn.trees.rules import RuleSet
from solera.learn.trees.tree import Floats, Ints, Tree, TreeBuilder

_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Split:
    """A column, and for every branch the rules and the region behind it, or None."""

    column: int
    branches: list[tuple[Ints, Any] | None]
    threshold: float | None = None
    missing_left: bool = True


class _Splitter(Protocol):
    def everywhere(self) -> Any:
        """The region of the root."""

    def split(self, here: Ints, region: Any) -> Split | None:
        """The best split of a node with these rules, or None when none makes a child smaller."""


def tree_of_rules(
    rules: RuleSet, weight: Floats, max_depth: int, *, sizes: Ints | None = None
) -> Tree:
    """The global tree; with ``sizes``, categories per column, splits are categorical."""
    probabilities = rules.probabilities
    labels = probabilities.argmax(axis=1)
    weight = np.maximum(weight, _TOLERANCE * max(weight.sum(), 1.0))  # no rule counts for nothing
    splitter: _Splitter = (
        _Thresholds(rules, labels, weight)
        if sizes is None
        else _Categories(rules, labels, weight, sizes)
    )

    def leaf(chosen: Ints) -> int:
        rows = weight[chosen].sum()
        return builder.add(weight[chosen] @ probabilities[chosen] / rows, rows)

    builder = TreeBuilder(probabilities.shape[1])
    leaf(np.arange(len(rules)))
    todo = [(0, np.arange(len(rules)), splitter.everywhere(), 0)]
    for node, here, region, depth in todo:  # grows while it is walked: level after level
        if depth == max_depth or (labels[here] == labels[here[0]]).all():
            continue
        split = splitter.split(here, region)
        if split is None:
            continue
        children = []
        for branch in split.branches:
            if branch is None:
                children.append(-1)
                continue
            chosen, inside = branch
            child = leaf(chosen)
            children.append(child)
            todo.append((child, chosen, inside, depth + 1))
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

    def __init__(self, rules: RuleSet, labels: Ints, weight: Floats) -> None:
        self.rules = rules
        self.labels = labels
        self.weight = weight
        self.classes = rules.weights.shape[1]
        cuts = np.diff(rules.offsets)
        self.top = (cuts + 1).astype(np.int64)
        self.base = np.concatenate([[0], np.cumsum(cuts + 2)])  # ranks 0 … top of every column
        self.column = np.repeat(np.arange(rules.width), cuts + 2)
        self.rank = np.arange(self.base[-1]) - np.repeat(self.base[:-1], cuts + 2)
        self.low = rules.lower + self.base[:-1]
        self.high = rules.upper + self.base[:-1]

    def everywhere(self) -> tuple[Ints, Ints]:
        return np.zeros_like(self.top), self.top

    def split(self, here: Ints, region: tuple[Ints, Ints]) -> Split | None:
        below = self._up_to(self.low[here], here)  # rules that begin at or below each rank
        ended = self._up_to(self.high[here], here)
        left = np.concatenate([np.zeros((1, self.classes)), below[:-1]])
        right = ended[self.base[1:] - 1][self.column] - ended
        n_left, n_right = left.sum(axis=1), right.sum(axis=1)
        first, last = region
        inside = (self.rank > first[self.column]) & (self.rank < last[self.column])
        all_rows = self.weight[here].sum()
        least = _TOLERANCE * all_rows
        useful = inside & (n_left > least) & (n_right > least)
        useful &= np.minimum(n_left, n_right) < all_rows - least
        if not useful.any():
            return None
        places = np.flatnonzero(useful)
        left, right = left[places], right[places]
        sizes = np.stack([n_left[places], n_right[places]])
        score = (sizes * np.stack([entropy(left), entropy(right)])).sum(axis=0) / sizes.sum(axis=0)
        ties = np.flatnonzero(score <= score.min() + _TOLERANCE)
        best = places[ties[np.argmin(sizes.sum(axis=0)[ties])]]  # fewest rules on both sides
        return self._at(int(self.column[best]), int(self.rank[best]), here, region)

    def _up_to(self, places: Ints, here: Ints) -> Floats:
        """Weight of the rules by class whose bound is at most each rank, column by column."""
        cells = places * self.classes + self.labels[here, None]
        weights = np.repeat(self.weight[here], cells.shape[1])
        flat = np.bincount(cells.ravel(), weights, minlength=int(self.base[-1]) * self.classes)
        summed = np.cumsum(flat.reshape(-1, self.classes), axis=0)
        before = np.concatenate([np.zeros((1, self.classes)), summed])[self.base[:-1]]
        return np.asarray(summed - before[self.column], dtype=np.float64)

    def _at(self, column: int, rank: int, here: Ints, region: tuple[Ints, Ints]) -> Split:
        lower, upper = self.rules.lower[here, column], self.rules.upper[here, column]
        known, gap = lower < upper, self.rules.gaps[here, column]
        left, right = known & (lower < rank), known & (upper > rank)
        missing_left = int((gap & left).sum()) >= int((gap & right).sum())
        only_gap = gap & ~known
        left, right = left | (only_gap & missing_left), right | (only_gap & (not missing_left))
        first, last = region
        ends, begins = last.copy(), first.copy()
        ends[column] = begins[column] = rank
        threshold = float(self.rules.column_cuts(column)[rank - 1])
        parts: list[tuple[Ints, Any] | None] = [
            (here[left], (first, ends)),
            (here[right], (begins, last)),
        ]
        return Split(column, parts, threshold, missing_left)


class _Categories:
    """One branch per category. A region is the set of columns not used above."""

    def __init__(self, rules: RuleSet, labels: Ints, weight: Floats, sizes: Ints) -> None:
        self.labels = labels
        self.weight = weight
        self.classes = rules.weights.shape[1]
        self.sizes = sizes
        self.starts = cell_starts(sizes)
        lower, upper = rules.bounds()
        bound = np.isfinite(lower) | np.isfinite(upper)
        missing = rules.lower == rules.upper
        self.any = ~bound & ~missing
        self.code = np.where(missing, sizes, np.where(bound, upper, 0)).astype(np.int64)
        self.code = np.clip(self.code, 0, sizes)

    def everywhere(self) -> frozenset[int]:
        return frozenset(range(len(self.sizes)))

    def split(self, here: Ints, region: frozenset[int]) -> Split | None:
        counts, free = self._counts(here)
        all_rows = self.weight[here].sum()
        best: tuple[float, float, int] | None = None
        for column in sorted(region):
            told = counts[self.starts[column] : self.starts[column + 1]]
            told = told[told.sum(axis=1) > 0]
            if not len(told):
                continue
            told = told + free[column]
            rows = told.sum(axis=1)
            if rows.min() >= all_rows * (1 - _TOLERANCE):
                continue
            score = float((rows * entropy(told)).sum() / rows.sum())
            found = (score, float(rows.sum()), column)
            if best is None or found[0] < best[0] - _TOLERANCE or (
                found[0] <= best[0] + _TOLERANCE and found[1] < best[1]
            ):  # fmt: skip
                best = found
        if best is None:
            return None
        return self._at(best[2], here, region)

    def _counts(self, here: Ints) -> tuple[Floats, Floats]:
        """Rules' weight by category and class of every column, and without a condition on it."""
        label = self.labels[here]
        free, code = self.any[here], self.code[here]
        total = int(self.starts[-1])
        weight = np.broadcast_to(self.weight[here, None], code.shape)
        cells = (code + self.starts[:-1]) * self.classes + label[:, None]
        bound = np.bincount(cells[~free], weight[~free], minlength=total * self.classes)
        columns = np.arange(len(self.sizes)) * self.classes + label[:, None]
        size = len(self.sizes) * self.classes
        unbound = np.bincount(columns[free], weight[free], minlength=size)
        return bound.reshape(total, self.classes), unbound.reshape(-1, self.classes)

    def _at(self, column: int, here: Ints, region: frozenset[int]) -> Split:
        code, free = self.code[here, column], self.any[here, column]
        branches: list[tuple[Ints, Any] | None] = []
        for value in range(int(self.sizes[column]) + 1):
            bound = ~free & (code == value)
            branches.append((here[bound | free], region - {column}) if bound.any() else None)
        return Split(column, branches)
