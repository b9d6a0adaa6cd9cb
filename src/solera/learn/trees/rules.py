"""Rules as boxes, and the fold that merges the rules of many trees.

A rule is a condition on every column, weights of the classes, and through them its support. A
condition is an interval (lower, upper] and whether a missing value satisfies it; "feature = code v"
is the interval (v − 1, v], "any" is (−∞, ∞]. Bounds are kept as ranks in the sorted cuts of their
column, so that boxes are small integers and two rule sets are compared by whole arrays.

Two rules are compatible iff no column's conditions exclude each other. Merged, their conditions are
intersected and their class weights added: the probabilities of the merged rule are the
support-weighted mean, its support the sum. Intersection and addition are associative and
commutative, so folding rule sets is a monoid; :class:`RuleFold` says so to the rest of Solera.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solera.core.aggregation import Aggregation
from solera.core.component import Component
from solera.core.replies import Reply
from solera.learn.trees.tree import Bools, Floats, Ints, Tree, dense, shares

Ranks = NDArray[np.int32]
Overlap = Literal["intersect", "relax"]

_PAIRS = 1 << 21
"""Pairs of rules compared at once."""
_ONE = 1 << 20
"""Shares of one row are multiples of 1/this."""


class RuleSet(Component):
    """Rules of one tree, or of several merged; arrays only.

    Parameters
    ----------
    cuts, offsets: the finite bounds of column j, sorted, are ``cuts[offsets[j] : offsets[j + 1]]``.
    lower, upper: rules × columns, ranks of the bounds: 0 is −∞, r is the r-th cut of the column,
        one more than there are cuts is ∞. ``lower == upper`` is satisfied by no value.
    gaps: whether a missing value satisfies the condition.
    weights: rules × classes, training rows of every class; their sum is the support.
    wide_lower, wide_upper: the least restrictive bounds that any merged rule brought along.
    trees: whose trees were merged, by client.
    leaf: rules × trees, the leaf of each tree a rule was merged from.
    leaf_rows, leaf_starts: rows of tree t's leaves, ``leaf_rows[leaf_starts[t] : leaf_starts[t+1]]``.
    """

    def __init__(
        self,
        *,
        cuts: ArrayLike,
        offsets: ArrayLike,
        lower: ArrayLike,
        upper: ArrayLike,
        gaps: ArrayLike,
        weights: ArrayLike,
        wide_lower: ArrayLike,
        wide_upper: ArrayLike,
        trees: ArrayLike,
        leaf: ArrayLike,
        leaf_rows: ArrayLike,
        leaf_starts: ArrayLike,
    ) -> None:
        self.cuts: Floats = np.asarray(cuts)
        self.offsets: Ints = np.asarray(offsets)
        self.lower: Ranks = np.asarray(lower)
        self.upper: Ranks = np.asarray(upper)
        self.gaps: Bools = np.asarray(gaps)
        self.weights: Floats = np.asarray(weights)
        self.wide_lower: Ranks = np.asarray(wide_lower)
        self.wide_upper: Ranks = np.asarray(wide_upper)
        self.trees: Ints = np.asarray(trees)
        self.leaf: Ranks = np.asarray(leaf)
        self.leaf_rows: Floats = np.asarray(leaf_rows)
        self.leaf_starts: Ints = np.asarray(leaf_starts)

    @classmethod
    def of(cls, lower: Floats, upper: Floats, gaps: Bools, weights: Floats, client: int) -> Self:
        """The rules of one tree from bounds that may be infinite; ``lower ≥ upper`` is empty."""
        empty = lower >= upper
        columns = [
            np.unique(np.concatenate([b[np.isfinite(b)] for b in bounds]))
            for bounds in zip(lower.T, upper.T, strict=True)
        ]
        low, high = np.zeros((2, *lower.shape), dtype=np.int32)
        for j, cuts in enumerate(columns):
            low[:, j] = np.searchsorted(cuts, lower[:, j], side="right")
            high[:, j] = np.searchsorted(cuts, upper[:, j], side="left") + 1
        low[empty] = high[empty] = 0
        return cls(
            cuts=np.concatenate(columns),
            offsets=np.concatenate([[0], np.cumsum([len(cuts) for cuts in columns])]),
            lower=low,
            upper=high,
            gaps=gaps,
            weights=weights,
            wide_lower=low,
            wide_upper=high,
            trees=np.array([client]),
            leaf=np.arange(len(low), dtype=np.int32)[:, None],
            leaf_rows=weights.sum(axis=1),
            leaf_starts=np.array([0, len(low)]),
        )

    # --- reading ---

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def width(self) -> int:
        return len(self.offsets) - 1

    @property
    def support(self) -> Floats:
        """Training rows behind every rule."""
        return np.asarray(self.weights.sum(axis=1))

    @property
    def probabilities(self) -> Floats:
        """Class probabilities of every rule."""
        return shares(self.weights)

    def expected_rows(self, sweeps: int = 10) -> Floats:
        """Rows that each rule holds of a client of average size, as far as the trees tell.

        A merged rule's support is the sum over its trees and says little about how many rows are in
        the intersection. Every tree says how many of its rows are in each of its leaves; among all
        ways to spread rows over the merged rules that agree with every leaf of every tree, this is
        the one of largest entropy, found by iterative proportional fitting (Deming & Stephan 1940):
        scale the rules of each leaf to the leaf's share, tree after tree, a few times.
        """
        mass = np.full(len(self), 1 / max(1, len(self)))
        total = np.add.reduceat(self.leaf_rows, self.leaf_starts[:-1])
        for _ in range(sweeps):
            for t, (first, last) in enumerate(pairwise(self.leaf_starts.tolist())):
                here = np.bincount(self.leaf[:, t], weights=mass, minlength=last - first)
                wanted = self.leaf_rows[first:last] / max(total[t], 1.0)
                scale = np.divide(wanted, here, out=np.ones(last - first), where=here > 0)
                mass = mass * scale[self.leaf[:, t]]
        return np.asarray(mass * (total.mean() if len(total) else 0.0))

    @property
    def purity(self) -> Floats:
        """The largest class probability of every rule."""
        return np.asarray(self.probabilities.max(axis=1))

    def column_cuts(self, column: int) -> Floats:
        return self.cuts[self.offsets[column] : self.offsets[column + 1]]

    def bounds(self) -> tuple[Floats, Floats]:
        """Lower and upper bounds as numbers."""
        return self._numbers(self.lower), self._numbers(self.upper)

    def _numbers(self, ranks: Ranks) -> Floats:
        found = np.empty(ranks.shape)
        for j in range(self.width):
            found[:, j] = np.concatenate([[-np.inf], self.column_cuts(j), [np.inf]])[ranks[:, j]]
        return found

    def matches(self, X: Any) -> Bools:
        """Which rows satisfy which rules: rows × rules."""
        X = dense(X)
        found = np.ones((len(X), len(self)), dtype=bool)
        for j in range(self.width):
            x = X[:, j]
            known = np.isfinite(x)
            cell = np.searchsorted(self.column_cuts(j), np.where(known, x, 0), side="left")[:, None]
            inside = (self.lower[:, j] <= cell) & (cell < self.upper[:, j])
            found &= np.where(known[:, None], inside, self.gaps[:, j])
        return found

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the rule a row satisfies (the mean of several); even where there is none."""
        X = dense(X)
        step = max(1, _PAIRS // max(1, len(self)))
        parts = [
            self.matches(X[begin : begin + step]) @ self.probabilities
            for begin in range(0, len(X), step)
        ]
        return shares(np.concatenate(parts)) if parts else np.empty((0, self.weights.shape[1]))

    # --- changing ---

    def take(self, chosen: Any) -> Self:
        """Some of the rules, and no cut that none of them uses."""
        kept = self._with(
            lower=self.lower[chosen],
            upper=self.upper[chosen],
            gaps=self.gaps[chosen],
            weights=self.weights[chosen],
            wide_lower=self.wide_lower[chosen],
            wide_upper=self.wide_upper[chosen],
            leaf=self.leaf[chosen],
        )
        used = [kept._used(j) for j in range(self.width)]
        return kept.on_cuts([self.column_cuts(j)[u] for j, u in enumerate(used)])

    def _used(self, column: int) -> Ints:
        ranks = [r[:, column] for r in (self.lower, self.upper, self.wide_lower, self.wide_upper)]
        found = np.unique(np.concatenate(ranks))
        return found[(found > 0) & (found <= len(self.column_cuts(column)))] - 1

    def _with(self, **changed: Any) -> Self:
        return type(self)(**{**self.get_params(deep=False), **changed})

    def on_cuts(self, columns: list[Floats]) -> Self:
        """The same rules over other cuts, among which are all that the rules use."""
        moved = {
            name: np.empty_like(getattr(self, name))
            for name in ("lower", "upper", "wide_lower", "wide_upper")
        }
        for j, cuts in enumerate(columns):
            own = self.column_cuts(j)
            table = np.concatenate([[0], np.searchsorted(cuts, own) + 1, [len(cuts) + 1]])
            for name, ranks in moved.items():
                ranks[:, j] = table[getattr(self, name)[:, j]]
        offsets = np.concatenate([[0], np.cumsum([len(cuts) for cuts in columns])])
        return self._with(cuts=np.concatenate(columns), offsets=offsets, **moved)

    def _binds(self, column: int) -> bool:
        """Whether any rule has a condition on the column."""
        top = len(self.column_cuts(column)) + 1
        lower, upper = self.lower[:, column], self.upper[:, column]
        return bool((lower > 0).any() or (upper < top).any() or not self.gaps[:, column].all())

    def ordered(self) -> Self:
        """The rules in an order of their own, whatever order they came in."""
        keys = np.concatenate([self.lower, self.upper, self.gaps], axis=1).T[::-1]
        return self.take(np.lexsort(keys))

    def relaxed(self, expected: Floats) -> tuple[Self, Floats]:
        """Every rule with the least restrictive conditions it was merged from; equal ones joined.

        The thesis's text merges x > 32.5 and x > 35 into x > 32.5. Such rules overlap. ``expected``
        rows of joined rules are added like their weights; the leaf of the first stands for them.
        """
        wide = self._with(lower=self.wide_lower, upper=self.wide_upper)
        keys = np.concatenate([wide.lower, wide.upper, wide.gaps], axis=1)
        _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        group = group.reshape(-1)
        weights = np.zeros((len(first), self.weights.shape[1]))
        np.add.at(weights, group, self.weights)
        joined = wide.take(first)._with(weights=weights)
        return joined, np.bincount(group, weights=expected, minlength=len(first))


def rules_of(tree: Tree, width: int, client: int = 0) -> RuleSet:
    """One rule for every leaf: the conditions between the root and it.

    Where a category was not seen in training the node itself answers. That is a rule too, of its
    distribution and the support of a single row.
    """
    ends, conditions = _conditions(tree, width)
    weights = tree.value[ends]
    unseen = np.flatnonzero(tree.feature[ends] >= 0)
    weights[unseen] = np.rint(shares(weights[unseen]) * _ONE) / _ONE  # sums stay exact
    return RuleSet.of(*conditions, weights, client)


def _conditions(tree: Tree, width: int) -> tuple[Ints, tuple[Floats, Floats, Bools]]:
    """The node behind every rule, and lower and upper bounds and gaps of the rule."""
    lower, upper = np.full((len(tree), width), -np.inf), np.full((len(tree), width), np.inf)
    gaps = np.ones((len(tree), width), dtype=bool)
    parent, branch = tree.parents
    for node in range(1, len(tree)):
        above, way = int(parent[node]), int(branch[node])
        j = int(tree.feature[above])
        lower[node], upper[node], gaps[node] = lower[above], upper[above], gaps[above]
        if tree.categorical[above]:
            missing = way == tree.arity[above] - 1
            lower[node, j], upper[node, j] = (0, 0) if missing else (way - 1, way)
            gaps[node, j] = missing
            continue
        gaps[node, j] &= (way == 0) == tree.missing_left[above]
        if way == 0:
            upper[node, j] = min(upper[node, j], tree.threshold[above])
        else:
            lower[node, j] = max(lower[node, j], tree.threshold[above])
    splits = np.repeat(np.arange(len(tree)), tree.arity)
    way = np.arange(len(tree.branches)) - tree.start[splits]
    unseen = (tree.branches < 0) & (way < tree.arity[splits] - 1)
    stops, code = splits[unseen], way[unseen]
    ends = np.concatenate([tree.leaves, stops])
    lower, upper, gaps = lower[ends], upper[ends], gaps[ends]
    rules, column = np.arange(len(tree.leaves), len(ends)), tree.feature[stops]
    lower[rules, column], upper[rules, column], gaps[rules, column] = code - 1, code, False
    return ends, (lower, upper, gaps)


# --- merging ---


def merge(a: RuleSet, b: RuleSet) -> RuleSet:
    """Every compatible pair of rules, merged: the part of the Cartesian product that is not empty."""
    columns = [np.union1d(a.column_cuts(j), b.column_cuts(j)) for j in range(a.width)]
    a, b = a.on_cuts(columns), b.on_cuts(columns)
    i, k = compatible(a, b)
    unbounded = np.array([len(cuts) + 1 for cuts in columns], dtype=np.int32)
    lower = np.maximum(a.lower[i], b.lower[k])
    upper = np.minimum(a.upper[i], b.upper[k])
    empty = lower >= upper
    lower[empty] = upper[empty] = 0
    order = np.argsort(np.concatenate([a.trees, b.trees]), kind="stable")
    leaf_rows = [*np.split(a.leaf_rows, a.leaf_starts[1:-1]), *np.split(b.leaf_rows, b.leaf_starts[1:-1])]
    leaf_rows = [leaf_rows[t] for t in order]
    return a._with(
        lower=lower,
        upper=upper,
        gaps=a.gaps[i] & b.gaps[k],
        weights=a.weights[i] + b.weights[k],
        wide_lower=_least(a.wide_lower[i], b.wide_lower[k], np.int32(0), np.minimum),
        wide_upper=_least(a.wide_upper[i], b.wide_upper[k], unbounded, np.maximum),
        trees=np.concatenate([a.trees, b.trees])[order],
        leaf=np.concatenate([a.leaf[i], b.leaf[k]], axis=1)[:, order],
        leaf_rows=np.concatenate(leaf_rows),
        leaf_starts=np.concatenate([[0], np.cumsum([len(rows) for rows in leaf_rows])]),
    )


def _least(a: Ranks, b: Ranks, none: Any, choose: Any) -> Ranks:
    """The less restrictive of two bounds, the other one where one is absent."""
    return np.where(a == none, b, np.where(b == none, a, choose(a, b))).astype(np.int32)


def compatible(a: RuleSet, b: RuleSet) -> tuple[Ints, Ints]:
    """The pairs of rules, over the same cuts, that some row could satisfy both."""
    bounds = [
        [c.astype(np.int16 if len(a.cuts) < 2**15 - 2 else np.int32) for c in r.T]
        for r in (a.lower, a.upper, b.lower, b.upper)
    ]
    columns = [j for j in range(a.width) if a._binds(j) and b._binds(j)]
    columns.sort(key=lambda j: -_selectivity(a, b, j))
    first: list[Ints] = []
    second: list[Ints] = []
    step = max(1, _PAIRS // max(1, len(b)))
    for begin in range(0, len(a), step):
        rows = slice(begin, begin + step)
        fit = np.ones((min(step, len(a) - begin), len(b)), dtype=bool)
        for j in columns[:3]:  # the most telling columns on the whole grid, …
            la, ua, lb, ub = (side[j] for side in bounds)
            both = (la[rows, None] < ub) & (lb < ua[rows, None])
            if _gap_alone(a, b, j):
                both |= a.gaps[rows, j, None] & b.gaps[:, j]
            fit &= both
        i, k = np.nonzero(fit)
        i += begin
        for j in columns[3:]:  # … the others on the pairs that are left
            la, ua, lb, ub = (side[j] for side in bounds)
            keep = (la[i] < ub[k]) & (lb[k] < ua[i])
            if _gap_alone(a, b, j):
                keep |= a.gaps[i, j] & b.gaps[k, j]
            i, k = i[keep], k[keep]
        first.append(i)
        second.append(k)
    return np.concatenate(first), np.concatenate(second)


def _selectivity(a: RuleSet, b: RuleSet, j: int) -> float:
    top = len(a.column_cuts(j)) + 1
    bound = [((r.lower[:, j] > 0) | (r.upper[:, j] < top)).mean() for r in (a, b)]
    return float(bound[0] * bound[1])


def _gap_alone(a: RuleSet, b: RuleSet, j: int) -> bool:
    """Whether a missing value could satisfy two conditions that no known value does."""
    return bool((a.gaps[:, j] & (a.lower[:, j] > 0)).any() or (a.lower[:, j] == a.upper[:, j]).any()
                or (b.gaps[:, j] & (b.lower[:, j] > 0)).any()
                or (b.lower[:, j] == b.upper[:, j]).any())  # fmt: skip


class Pruned(NamedTuple):
    """What a budget kept of a rule set, and what it dropped."""

    kept: RuleSet
    dropped: RuleSet
    dropped_share: float
    """Of the expected rows."""


def prune(rules: RuleSet, max_rules: int) -> Pruned:
    """The ``max_rules`` rules with the most expected rows, among equals the purest."""
    if len(rules) <= max_rules:
        return Pruned(rules, rules.take(slice(0, 0)), 0.0)
    expected = rules.expected_rows(sweeps=5)
    order = np.lexsort((-rules.purity, -expected))
    kept, dropped = order[:max_rules], order[max_rules:]
    share = float(expected[dropped].sum() / expected.sum())
    return Pruned(rules.take(np.sort(kept)), rules.take(np.sort(dropped)), share)


class RuleFold(Aggregation):
    """The merged rules of the trees that clients send, over ``width`` columns and ``classes``.

    With a budget of ``max_rules`` the order of merging decides which rules fall out on the way;
    without one the result is the same whatever the order. The partial counts what was dropped.
    """

    def __init__(self, width: int, classes: int, *, max_rules: int | None = None) -> None:
        self.width = width
        self.classes = classes
        self.max_rules = max_rules

    def lift(self, reply: Reply) -> Any:
        tree = Tree.from_payload(reply.payload["tree"], self.width, self.classes)
        return self._within(rules_of(tree, self.width, reply.client), 0, 0.0)

    def combine(self, a: Any, b: Any) -> Any:
        merged = merge(RuleSet(**a["rules"]), RuleSet(**b["rules"]))
        kept = (1 - a["dropped_share"]) * (1 - b["dropped_share"])
        return self._within(merged, a["dropped"] + b["dropped"], 1 - kept)

    def _within(self, rules: RuleSet, dropped: int, share: float) -> Any:
        if self.max_rules is not None:
            pruned = prune(rules, self.max_rules)
            rules = pruned.kept
            dropped += len(pruned.dropped)
            share = 1 - (1 - share) * (1 - pruned.dropped_share)
        arrays = rules.ordered().get_params(deep=False)
        return {"rules": arrays, "dropped": dropped, "dropped_share": share}

    def finish(self, partial: Any) -> dict[str, Any]:
        return {**partial, "rules": RuleSet(**partial["rules"])}
