"""Merging rule sets: the compatible part of the Cartesian product, a budget, and the fold."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import BoolArray, IntArray
from solera.core.replies import Reply
from solera.learn.trees.fusion.rules import Ranks, RuleSet, rules_of
from solera.learn.trees.id3 import entropy
from solera.learn.trees.tree import Tree, starts_of

_PAIRS = 1 << 21
"""Pairs of rules compared at once."""


def merge(a: RuleSet, b: RuleSet) -> RuleSet:
    """Every compatible pair of rules, merged: the Cartesian product without empty boxes."""
    columns = [np.union1d(a.column_cuts(j), b.column_cuts(j)) for j in range(a.width)]
    a, b = a.on_cuts(columns), b.on_cuts(columns)
    i, k = compatible(a, b)
    unbounded = np.array([len(cuts) + 1 for cuts in columns], dtype=np.int32)
    lower = np.maximum(a.lower[i], b.lower[k])
    upper = np.minimum(a.upper[i], b.upper[k])
    empty = lower >= upper
    lower[empty] = upper[empty] = 0
    order = np.argsort(np.concatenate([a.trees, b.trees]), kind="stable")
    leaf_rows = [
        *np.split(a.leaf_rows, a.leaf_starts[1:-1]),
        *np.split(b.leaf_rows, b.leaf_starts[1:-1]),
    ]
    leaf_rows = [leaf_rows[t] for t in order]
    leaf = np.concatenate([a.leaf[i], b.leaf[k]], axis=1)
    return a.replaced(
        lower=lower,
        upper=upper,
        missing=a.missing[i] & b.missing[k],
        weights=a.weights[i] + b.weights[k],
        wide_lower=_least(a.wide_lower[i], b.wide_lower[k], np.int32(0), np.minimum),
        wide_upper=_least(a.wide_upper[i], b.wide_upper[k], unbounded, np.maximum),
        trees=np.concatenate([a.trees, b.trees])[order],
        leaf=leaf if (np.diff(order) > 0).all() else leaf[:, order],
        leaf_rows=np.concatenate(leaf_rows),
        leaf_starts=starts_of([len(rows) for rows in leaf_rows]),
    )


def _least(a: Ranks, b: Ranks, none: Any, choose: Any) -> Ranks:
    """The less restrictive of two bounds, the other one where one is absent."""
    return np.where(a == none, b, np.where(b == none, a, choose(a, b))).astype(np.int32)


def compatible(a: RuleSet, b: RuleSet) -> tuple[IntArray, IntArray]:
    """The pairs of rules, over the same cuts, that some row could satisfy both."""
    small = np.int16 if len(a.cuts) < 2**15 - 2 else np.int32
    bounds = [
        [column.astype(small) for column in ranks.T]
        for ranks in (a.lower, a.upper, b.lower, b.upper)
    ]

    def overlap(j: int, i: Any, k: Any) -> BoolArray:
        """Whether a value of column j satisfies the rules i of ``a`` and k of ``b``."""
        lower_a, upper_a, lower_b, upper_b = (side[j] for side in bounds)
        both = (lower_a[i] < upper_b[k]) & (lower_b[k] < upper_a[i])
        if _missing_alone(a, j) or _missing_alone(b, j):
            both |= a.missing[i, j] & b.missing[k, j]
        return np.asarray(both)

    columns = [j for j in range(a.width) if a.binds(j) and b.binds(j)]
    columns.sort(key=lambda j: -_selectivity(a, b, j))
    first = [np.zeros(0, dtype=np.int64)]  # a rule set without rules has no pairs
    second = [np.zeros(0, dtype=np.int64)]
    step = max(1, _PAIRS // max(1, len(b)))
    for begin in range(0, len(a), step):
        rows = np.arange(begin, min(begin + step, len(a)))[:, None]
        fit = np.ones((len(rows), len(b)), dtype=bool)
        for j in columns[:3]:  # the most telling columns on the whole grid, …
            fit &= overlap(j, rows, slice(None))
        i, k = np.nonzero(fit)
        i += begin
        for j in columns[3:]:  # … the others on the pairs that are left
            keep = overlap(j, i, k)
            i, k = i[keep], k[keep]
        first.append(i)
        second.append(k)
    return np.concatenate(first), np.concatenate(second)


def _selectivity(a: RuleSet, b: RuleSet, j: int) -> float:
    top = len(a.column_cuts(j)) + 1
    bound = [((r.lower[:, j] > 0) | (r.upper[:, j] < top)).mean() for r in (a, b)]
    return float(bound[0] * bound[1])


def _missing_alone(rules: RuleSet, j: int) -> bool:
    """Whether a missing value satisfies a condition that excludes some, or all, known values."""
    lower, upper = rules.lower[:, j], rules.upper[:, j]
    return bool(((rules.missing[:, j] & (lower > 0)) | (lower == upper)).any())


Weigh = Literal["rows", "rules"]


def prune(rules: RuleSet, max_rules: int, weigh: Weigh = "rows") -> tuple[IntArray, float]:
    """The places of the ``max_rules`` rules with the most expected rows, among equals the purest.

    With ``weigh="rules"`` it is those of least entropy, whatever their rows. Beside them is what
    the others have of the expected rows.
    """
    if len(rules) <= max_rules:
        return np.arange(len(rules)), 0.0
    expected = rules.expected_rows(sweeps=5)
    if weigh == "rules":
        order = np.argsort(entropy(rules.probabilities), kind="stable")
    else:
        purity = rules.probabilities.max(axis=1)
        order = np.lexsort((-purity, -expected))
    kept, dropped = order[:max_rules], order[max_rules:]
    return np.sort(kept), float(expected[dropped].sum() / expected.sum())


class RuleFold(Aggregation):
    """The merged rules of the trees that clients send, over ``width`` columns and ``classes``.

    With a budget of ``max_rules`` the order of merging decides which rules fall out on the way;
    without one the result is the same whatever the order. The partial counts what was dropped.
    """

    def __init__(
        self, width: int, classes: int, *, max_rules: int | None = None, weigh: Weigh = "rows"
    ) -> None:
        self.width = width
        self.classes = classes
        self.max_rules = max_rules
        self.weigh = weigh

    def lift(self, reply: Reply) -> Any:
        tree = Tree.from_payload(reply.payload["tree"], self.width, self.classes)
        return self._within(rules_of(tree, self.width, reply.client), 0, 0.0)

    def combine(self, a: Any, b: Any) -> Any:
        merged = merge(RuleSet(**a["rules"]), RuleSet(**b["rules"]))
        kept = (1 - a["dropped_share"]) * (1 - b["dropped_share"])
        return self._within(merged, a["dropped"] + b["dropped"], 1 - kept)

    def _within(self, rules: RuleSet, dropped: int, share: float) -> Any:
        kept = None
        if self.max_rules is not None:
            kept, pruned_share = prune(rules, self.max_rules, self.weigh)
            dropped += len(rules) - len(kept)
            share = 1 - (1 - share) * (1 - pruned_share)
        arrays = rules.ordered(kept).to_payload()
        return {"rules": arrays, "dropped": dropped, "dropped_share": share}

    def finish(self, partial: Any) -> dict[str, Any]:
        return {**partial, "rules": RuleSet(**partial["rules"])}
