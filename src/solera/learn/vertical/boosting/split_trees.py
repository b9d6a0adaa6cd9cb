"""A fitted model in parts: the label owner's trees, and every party's own conditions.

The label owner knows the shape of each tree, the values of its leaves and whose condition stands at
each node. What the condition is, only its owner knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray, IntArray
from solera.core.errors import DataError, PayloadError
from solera.core.schema import Feature
from solera.learn.conditions import Condition
from solera.learn.rows import dense


@dataclass(frozen=True)
class Conditions:
    """The conditions of one party: at which node of which tree, x ≤ threshold in which column."""

    features: tuple[Feature, ...]
    tree: IntArray
    node: IntArray
    column: IntArray
    threshold: FloatArray
    missing_left: BoolArray

    def __len__(self) -> int:
        return len(self.tree)

    @classmethod
    def none(cls, features: Sequence[Feature]) -> Conditions:
        empty = np.empty(0, dtype=np.int64)
        return cls(tuple(features), empty, empty, empty, np.empty(0), np.empty(0, dtype=bool))

    def to_payload(self) -> dict[str, Any]:
        columns = [[f.name, f.kind, list(f.categories)] for f in self.features]
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, "features": columns}

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Conditions:
        columns = payload["features"]
        features = tuple(Feature(name, kind, tuple(names)) for name, kind, names in columns)
        return cls(**{**payload, "features": features})

    def added(
        self, tree: int, node: int, column: int, threshold: float, missing_left: bool
    ) -> Conditions:
        """These and one more."""
        return replace(
            self,
            tree=np.append(self.tree, tree),
            node=np.append(self.node, node),
            column=np.append(self.column, column),
            threshold=np.append(self.threshold, threshold),
            missing_left=np.append(self.missing_left, missing_left),
        )

    def sides(self, X: Any) -> BoolArray:
        """Which rows each condition sends left, in the order of trees and nodes: conditions × rows.

        A value that is not finite is missing.
        """
        X = np.asarray(dense(X), dtype=np.float64)
        if X.shape[1] != len(self.features):
            raise DataError(
                f"this party has {X.shape[1]} columns, its part of the model {len(self.features)}"
            )
        found = np.empty((len(self), len(X)), dtype=bool)
        for line, i in enumerate(np.lexsort((self.node, self.tree))):
            x = X[:, self.column[i]]
            found[line] = np.where(np.isfinite(x), x <= self.threshold[i], self.missing_left[i])
        return found

    def at(self, tree: int, node: int) -> str:
        """The condition at a node, in words."""
        (i,) = np.flatnonzero((self.tree == tree) & (self.node == node))
        feature = self.features[self.column[i]]
        threshold = float(self.threshold[i])
        condition = Condition.on(feature, int(self.column[i]), -np.inf, threshold, False)
        return f"{condition} or missing" if self.missing_left[i] else str(condition)


@dataclass(frozen=True)
class SplitTree:
    """One tree: whose condition stands at each node (−1 at leaves), left children, and values."""

    owner: IntArray
    child: IntArray
    value: FloatArray
    support: FloatArray

    def to_payload(self) -> dict[str, Array]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> SplitTree:
        return cls(**payload)


def leaf_values(
    trees: Sequence[SplitTree], sides: Mapping[int, BoolArray], rows: int
) -> FloatArray:
    """The value of the leaf that every row reaches, tree by tree: trees × rows.

    ``sides`` are those of every party's conditions, in the order of trees and nodes.
    """
    for party, found in sides.items():
        needed = sum(int((tree.owner == party).sum()) for tree in trees)
        if found.shape != (needed, rows):
            raise PayloadError(
                f"{len(found)} conditions of {found.shape[1]} rows came, {needed} of {rows} are "
                "needed"
            )
    used = dict.fromkeys(sides, 0)
    reached = np.empty((len(trees), rows))
    every = np.arange(rows)
    for t, tree in enumerate(trees):
        left = np.zeros((len(tree.owner), rows), dtype=bool)
        for party, found in sides.items():
            nodes = np.flatnonzero(tree.owner == party)
            left[nodes] = found[used[party] : used[party] + len(nodes)]
            used[party] += len(nodes)
        at = np.zeros(rows, dtype=np.int64)
        while (inner := tree.owner[at] >= 0).any():
            at = np.where(inner, tree.child[at] + ~left[at, every], at)
        reached[t] = tree.value[at]
    return reached


def tree_lines(
    trees: Sequence[SplitTree], own: int, conditions: Conditions, names: Mapping[int, str]
) -> list[str]:
    """The trees as the label owner sees them: its own conditions in words, the others' by name."""
    lines = []

    def write(t: int, tree: SplitTree, node: int, depth: int, before: str) -> None:
        owner = int(tree.owner[node])
        if owner < 0:
            said = f"{tree.value[node]:+.4f} ({tree.support[node]:.0f} rows)"
        elif owner == own:
            said = conditions.at(t, node)
        else:
            said = f"condition {node} of {names.get(owner, owner)}"
        lines.append(f"{'  ' * depth}{before}{said}")
        if owner >= 0:
            child = int(tree.child[node])
            write(t, tree, child, depth + 1, "yes: ")
            write(t, tree, child + 1, depth + 1, "no: ")

    for t, tree in enumerate(trees):
        lines.append(f"tree {t}")
        write(t, tree, 0, 1, "")
    return lines


def condition_lines(conditions: Conditions) -> list[str]:
    """The conditions of a party that holds no labels."""
    return [
        f"tree {t}, condition {node}: {conditions.at(t, node)}"
        for t, node in sorted(zip(conditions.tree.tolist(), conditions.node.tolist(), strict=True))
    ]
