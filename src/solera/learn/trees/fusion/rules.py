"""Rules as boxes, and the fold that merges the rules of many trees.

A rule is a condition on every column, weights of the classes, and through them its support. A
condition is an interval (lower, upper] and whether a missing value satisfies it; "feature = code v"
is the interval (v − 1, v], "any" is (−∞, ∞]. Bounds are kept as ranks in the sorted cuts of their
column, so that boxes are small integers and two rule sets are compared by whole arrays.

Two rules are compatible iff no column's conditions exclude each other. Merged, their conditions are
intersected and their class weights added: the probabilities of the merged rule are the
support-weighted mean, its support the sum. Intersection and addition are associative and
commutative, so folding rule sets is a monoid; see :mod:`.rule_fold`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import BoolArray, FloatArray, IntArray
from solera.core.errors import DataError
from solera.core.schema import Schema
from solera.learn.conditions import Condition
from solera.learn.rows import dense
from solera.learn.trees.compiled import compiled
from solera.learn.trees.explanation import node_bounds
from solera.learn.trees.export import Raw, as_it_is
from solera.learn.trees.tree import Arrays, Tree, shares, starts_of

Ranks = NDArray[np.int32]
Overlap = Literal["intersect", "relax"]

_BOUNDS = ("lower", "upper", "wide_lower", "wide_upper")
_BY_RULE = (*_BOUNDS, "missing", "weights", "leaf")
_ONE = 1 << 20
"""Shares of one row are multiples of 1/this."""


@dataclass(kw_only=True, eq=False, repr=False)
class RuleSet(Arrays):
    """Rules of one tree, or of several merged; arrays only.

    Parameters
    ----------
    cuts, offsets: the finite bounds of column j, sorted, are ``cuts[offsets[j] : offsets[j + 1]]``.
    lower, upper: rules × columns, ranks of the bounds: 0 is −∞, r is the r-th cut of the column,
        one more than there are cuts is ∞. ``lower == upper`` is satisfied by no value.
    missing: whether a missing value satisfies the condition.
    weights: rules × classes, training rows of every class; their sum is the support.
    wide_lower, wide_upper: the least restrictive bounds that any merged rule brought along.
    trees: whose trees were merged, by client.
    leaf: rules × trees, the leaf of each tree a rule was merged from.
    leaf_rows, leaf_starts: tree t's leaves have ``leaf_rows[leaf_starts[t] : leaf_starts[t + 1]]``
        rows.
    """

    cuts: FloatArray
    offsets: IntArray
    lower: Ranks
    upper: Ranks
    missing: BoolArray
    weights: FloatArray
    wide_lower: Ranks
    wide_upper: Ranks
    trees: IntArray
    leaf: Ranks
    leaf_rows: FloatArray
    leaf_starts: IntArray

    @classmethod
    def of(
        cls,
        lower: FloatArray,
        upper: FloatArray,
        missing: BoolArray,
        weights: FloatArray,
        client: int,
    ) -> Self:
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
            offsets=starts_of([len(cuts) for cuts in columns]),
            lower=low,
            upper=high,
            missing=missing,
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
    def probabilities(self) -> FloatArray:
        """Class probabilities of every rule."""
        return shares(self.weights)

    def expected_rows(self, sweeps: int = 10) -> FloatArray:
        """Rows that each rule holds of a client of average size, as far as the trees tell.

        A merged rule's support is the sum over its trees and says little about how many rows are in
        the intersection. Every tree says how many of its rows are in each of its leaves; among all
        ways to spread rows over the merged rules that agree with every leaf of every tree, this is
        the one of largest entropy, found by iterative proportional fitting (Deming & Stephan 1940):
        scale the rules of each leaf to the leaf's share, tree after tree, a few times.
        """
        total = np.add.reduceat(self.leaf_rows, self.leaf_starts[:-1])
        wanted = self.leaf_rows / np.maximum(total, 1.0).repeat(np.diff(self.leaf_starts))
        mass = np.full(len(self), 1 / max(1, len(self)))
        loops = compiled(self.leaf.size)
        if loops is None:
            mass = self._fitted(mass, wanted, sweeps)
        else:
            leaf_of = np.ascontiguousarray(self.leaf.T)
            if not loops.fit(leaf_of, wanted, self.leaf_starts, sweeps, mass):
                raise DataError("these rules name leaves that their trees do not have")
        return np.asarray(mass * (total.mean() if len(total) else 0.0))

    def _fitted(self, mass: FloatArray, wanted: FloatArray, sweeps: int) -> FloatArray:
        leaf_of = np.ascontiguousarray(self.leaf.T, dtype=np.intp)  # a tree's leaves side by side
        shares_of = np.split(wanted, self.leaf_starts[1:-1])
        factor = np.empty(len(self))
        for _ in range(sweeps):
            for leaf, share in zip(leaf_of, shares_of, strict=True):
                here = np.bincount(leaf, weights=mass, minlength=len(share))
                if here.all():
                    scale = share / here
                else:
                    scale = np.divide(share, here, out=np.ones(len(share)), where=here > 0)
                scale.take(leaf, out=factor, mode="clip")  # which is faster, and none is outside
                mass *= factor
        return mass

    def column_cuts(self, column: int) -> FloatArray:
        return self.cuts[self.offsets[column] : self.offsets[column + 1]]

    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds as numbers."""
        return self._numbers(self.lower), self._numbers(self.upper)

    def _numbers(self, ranks: Ranks) -> FloatArray:
        numbers = np.empty(ranks.shape)
        for j in range(self.width):
            numbers[:, j] = np.concatenate([[-np.inf], self.column_cuts(j), [np.inf]])[ranks[:, j]]
        return numbers

    def matches(self, X: Any) -> BoolArray:
        """Which rows satisfy which rules: rows × rules."""
        X = dense(X)
        matching = np.ones((len(X), len(self)), dtype=bool)
        for j in range(self.width):
            x = X[:, j]
            known = np.isfinite(x)
            cell = np.searchsorted(self.column_cuts(j), np.where(known, x, 0), side="left")[:, None]
            inside = (self.lower[:, j] <= cell) & (cell < self.upper[:, j])
            matching &= np.where(known[:, None], inside, self.missing[:, j])
        return matching

    # --- changing ---

    def take(self, chosen: Any) -> Self:
        """Some of the rules, and no cut that none of them uses."""
        kept = self.replaced(**{name: getattr(self, name)[chosen] for name in _BY_RULE})
        used = [kept._used(j) for j in range(self.width)]
        return kept.on_cuts([self.column_cuts(j)[u] for j, u in enumerate(used)])

    def _used(self, column: int) -> IntArray:
        """The cuts of a column that some rule uses, by number."""
        used = np.zeros(len(self.column_cuts(column)) + 2, dtype=bool)
        for name in _BOUNDS:
            used[getattr(self, name)[:, column]] = True
        return np.flatnonzero(used[1:-1])

    def on_cuts(self, columns: list[FloatArray]) -> Self:
        """The same rules over other cuts, among which are all that the rules use."""
        moved = {name: np.empty_like(getattr(self, name)) for name in _BOUNDS}
        for j, cuts in enumerate(columns):
            own = self.column_cuts(j)
            table = np.concatenate([[0], np.searchsorted(cuts, own) + 1, [len(cuts) + 1]])
            for name, ranks in moved.items():
                ranks[:, j] = table[getattr(self, name)[:, j]]
        offsets = starts_of([len(cuts) for cuts in columns])
        return self.replaced(cuts=np.concatenate(columns), offsets=offsets, **moved)

    def binds(self, column: int) -> bool:
        """Whether any rule has a condition on the column."""
        top = len(self.column_cuts(column)) + 1
        lower, upper = self.lower[:, column], self.upper[:, column]
        return bool((lower > 0).any() or (upper < top).any() or not self.missing[:, column].all())

    def ordered(self, chosen: IntArray | None = None) -> Self:
        """The rules, or those ``chosen``, in an order of their own, whatever order they came in."""
        chosen = np.arange(len(self)) if chosen is None else chosen
        keys = np.concatenate([self.lower, self.upper, self.missing], axis=1).T[::-1, chosen]
        telling = keys[(keys != keys[:, :1]).any(axis=1)]
        return self.take(chosen[np.lexsort(telling)] if len(telling) else chosen)

    def relaxed(self, expected: FloatArray) -> tuple[Self, FloatArray]:
        """Every rule with the least restrictive conditions it was merged from; equal ones joined.

        The thesis's text merges x > 32.5 and x > 35 into x > 32.5. Such rules overlap. ``expected``
        rows of joined rules are added like their weights; the leaf of the first stands for them.
        """
        wide = self.replaced(lower=self.wide_lower, upper=self.wide_upper)
        keys = np.concatenate([wide.lower, wide.upper, wide.missing], axis=1)
        _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        group = group.reshape(-1)
        weights = np.zeros((len(first), self.weights.shape[1]))
        np.add.at(weights, group, self.weights)
        joined = wide.take(first).replaced(weights=weights)
        return joined, np.asarray(np.bincount(group, expected, len(first)), np.float64)


def rules_of(tree: Tree, width: int, client: int = 0) -> RuleSet:
    """One rule for every leaf: the conditions between the root and it.

    Where a category was not seen in training the node itself answers. That is a rule too, of its
    distribution and the support of a single row.
    """
    lower, upper, missing = node_bounds(tree, width)
    splits, ways = tree.branch_places
    unseen = (tree.branches < 0) & (ways < tree.arity[splits] - 1)
    stops, code = splits[unseen], ways[unseen]
    ends = np.concatenate([tree.leaves, stops])
    lower, upper, missing, weights = lower[ends], upper[ends], missing[ends], tree.value[ends]
    rules, column = np.arange(len(tree.leaves), len(ends)), tree.feature[stops]
    lower[rules, column], upper[rules, column], missing[rules, column] = code - 1, code, False
    weights[rules] = np.rint(shares(weights[rules]) * _ONE) / _ONE  # sums stay exact
    return RuleSet.of(lower, upper, missing, weights, client)


def rule_table(
    rules: RuleSet, expected: FloatArray, schema: Schema, raw: Raw = as_it_is
) -> list[dict[str, Any]]:
    """Rules as a table, those with the most expected rows first."""
    lower, upper = rules.bounds()
    bound = np.isfinite(lower) | np.isfinite(upper) | (rules.lower == rules.upper)
    probabilities, support = rules.probabilities, rules.weights.sum(axis=1)
    missing = rules.missing
    best = probabilities.argmax(axis=1)
    table = []
    for i in np.argsort(-expected, kind="stable").tolist():
        conditions = [
            raw(Condition.on(schema.features[j], j, lower[i, j], upper[i, j], bool(missing[i, j])))
            for j in np.flatnonzero(bound[i]).tolist()
        ]
        table.append(
            {
                "rule": " and ".join(map(str, conditions)) or "always",
                "class": schema.classes[best[i]].item(),
                "probability": float(probabilities[i, best[i]]),
                "support": float(support[i]),
                "expected_rows": float(expected[i]),
            }
        )
    return table
