"""Why a tree answers as it does: the conditions between its root and a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import BoolArray, FloatArray
from solera.core.schema import Schema
from solera.learn.conditions import Condition
from solera.learn.trees.tree import Tree, shares


@dataclass(frozen=True)
class Explanation:
    """Why one tree answers as it does: the conditions on the way down, and the classes there."""

    conditions: tuple[Condition, ...]
    probabilities: dict[Any, float]
    support: float

    @property
    def prediction(self) -> Any:
        """The most probable class."""
        return max(self.probabilities, key=lambda name: self.probabilities[name])

    def __str__(self) -> str:
        path = " and ".join(map(str, self.conditions)) or "always"
        shown = ", ".join(f"{name}: {p:.3f}" for name, p in self.probabilities.items())
        return f"{self.prediction} because {path}  ({shown})"


@dataclass(frozen=True)
class Comparison:
    """The explanations of a client's own tree and of the global tree, side by side."""

    local: Explanation
    of_global: Explanation

    def __str__(self) -> str:
        return f"local:  {self.local}\nglobal: {self.of_global}"


def branch_bounds(tree: Tree, node: int, way: int) -> tuple[float, float, bool]:
    """The interval (lower, upper] that takes a branch of a node, and whether missing values do."""
    if tree.categorical[node]:
        is_missing = way == tree.arity[node] - 1
        return (0.0, 0.0, True) if is_missing else (way - 1.0, float(way), False)
    threshold, missing = float(tree.threshold[node]), (way == 0) == bool(tree.missing_left[node])
    return (-np.inf, threshold, missing) if way == 0 else (threshold, np.inf, missing)


def branch_condition(tree: Tree, node: int, way: int, schema: Schema) -> Condition:
    """What rows satisfy that take a branch of a node."""
    column = int(tree.feature[node])
    return Condition.on(schema.features[column], column, *branch_bounds(tree, node, way))


def explain(tree: Tree, x: FloatArray, schema: Schema) -> Explanation:
    """The path of one row as conditions, one per column, and the class distribution at its end."""
    end = int(tree.apply(x[None])[0])
    parent, branch = tree.parents
    conditions: dict[int, Condition] = {}
    if tree.feature[end] >= 0:  # its category has no branch
        column = int(tree.feature[end])
        code = float(x[column])
        only = Condition.on(schema.features[column], column, code - 1, code, missing=False)
        conditions[column] = only.at(code)
    node = end
    while parent[node] >= 0:
        condition = branch_condition(tree, int(parent[node]), int(branch[node]), schema)
        below = conditions.pop(condition.column, condition)
        conditions[condition.column] = condition.within(below)
        node = int(parent[node])
    probabilities = dict(
        zip(schema.classes.tolist(), shares(tree.value[end]).tolist(), strict=True)
    )
    return Explanation(tuple(conditions.values())[::-1], probabilities, float(tree.support[end]))


def node_bounds(tree: Tree, width: int) -> tuple[FloatArray, FloatArray, BoolArray]:
    """What rows that reach a node satisfy: nodes × columns.

    The value of a column is in (lower, upper], or it is missing where the last array says so.
    ``lower ≥ upper`` is satisfied by no value.
    """
    lower, upper = np.full((len(tree), width), -np.inf), np.full((len(tree), width), np.inf)
    missing = np.ones((len(tree), width), dtype=bool)
    parent, branch = tree.parents
    for node in range(1, len(tree)):
        above = int(parent[node])
        j = int(tree.feature[above])
        lower[node], upper[node], missing[node] = lower[above], upper[above], missing[above]
        low, high, is_missing = branch_bounds(tree, above, int(branch[node]))
        lower[node, j] = max(lower[node, j], low)
        upper[node, j] = min(upper[node, j], high)
        missing[node, j] &= is_missing
    return lower, upper, missing
