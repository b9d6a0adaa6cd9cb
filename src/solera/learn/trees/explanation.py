"""Why a tree answers as it does: the conditions between its root and a node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from solera.core.clients import BoolArray, FloatArray
from solera.core.errors import DataError
from solera.core.schema import Feature, Schema
from solera.learn.rows import dense
from solera.learn.trees.export import HUGE
from solera.learn.trees.tree import Tree, shares


@dataclass(frozen=True)
class Condition:
    """One condition on the way down: "age ≤ 32.5", "job = clerk", "job is missing"."""

    feature: str
    column: int
    lower: float
    upper: float
    category: str | None = None
    missing: bool = False
    """Whether a missing value satisfies it."""
    of: Feature | None = field(default=None, repr=False, compare=False)
    """The column, whose categories and dates are shown as such."""

    @classmethod
    def on(
        cls, feature: Feature, column: int, lower: float, upper: float, missing: bool
    ) -> Condition:
        """The condition (lower, upper] of a column; one that a single category satisfies names it.

        Bounds one apart hold a single code; with ``lower ≥ upper`` only a missing value is left.
        """
        single = 0 <= upper < len(feature.categories) and upper - lower == 1
        category = feature.categories[int(upper)] if single else None
        return cls(feature.name, column, lower, upper, category, missing, feature)

    def holds(self, value: float) -> bool:
        """Whether a value, a code for a category, satisfies the condition."""
        if not np.isfinite(value):
            return self.missing
        return self.lower < value <= self.upper

    def __str__(self) -> str:
        if self.category is not None:
            return f"{self.feature} = {self.category}"
        if self.lower >= self.upper:
            return f"{self.feature} is missing"
        feature = Feature(self.feature) if self.of is None else self.of
        if names := feature.names_between(self.lower, self.upper):
            return f"{self.feature} = {' or '.join(names)}"
        parts = []
        if self.lower > -HUGE:
            parts.append(f"{self.feature} > {feature.text(self.lower)}")
        if self.upper < HUGE:
            parts.append(f"{self.feature} ≤ {feature.text(self.upper)}")
        return " and ".join(parts) or f"{self.feature} is known"


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


def explain(tree: Tree, x: Any, schema: Schema) -> Explanation:
    """The path of one row as conditions, one per column, and the class distribution at its end."""
    row = np.asarray(dense(x if np.ndim(x) == 2 else np.asarray(x)[None]), dtype=np.float64)
    if row.shape != (1, schema.width):
        raise DataError(f"explain takes one row of {schema.width} columns, not {row.shape}")
    end = int(tree.apply(row)[0])
    lower, upper, missing = (bounds[end].tolist() for bounds in node_bounds(tree, schema.width))
    parent, _ = tree.parents
    splits: dict[int, int] = {}
    node = int(parent[end])
    while node >= 0:
        splits[int(tree.feature[node])] = node
        node = int(parent[node])
    conditions = []
    for column, _ in sorted(splits.items(), key=lambda item: item[1]):
        bounds = lower[column], upper[column], missing[column]
        conditions.append(Condition.on(schema.features[column], column, *bounds))
    probabilities = dict(
        zip(schema.classes.tolist(), shares(tree.value[end]).tolist(), strict=True)
    )
    return Explanation(tuple(conditions), probabilities, float(tree.support[end]))


def node_bounds(tree: Tree, width: int) -> tuple[FloatArray, FloatArray, BoolArray]:
    """What rows that reach a node satisfy: nodes × columns.

    The value of a column is in (lower, upper], or it is missing where the last array says so.
    ``lower ≥ upper`` is satisfied by no value.
    """
    lower, upper = np.full((len(tree), width), -np.inf), np.full((len(tree), width), np.inf)
    missing = np.ones((len(tree), width), dtype=bool)
    parent, branch = tree.parents
    for node in range(1, len(tree)):
        above, way = int(parent[node]), int(branch[node])
        j = int(tree.feature[above])
        lower[node], upper[node], missing[node] = lower[above], upper[above], missing[above]
        if tree.categorical[above]:
            is_missing = way == tree.arity[above] - 1
            lower[node, j], upper[node, j] = (0, 0) if is_missing else (way - 1, way)
            missing[node, j] = is_missing
            continue
        missing[node, j] &= (way == 0) == tree.missing_left[above]
        if way == 0:
            upper[node, j] = min(upper[node, j], tree.threshold[above])
        else:
            lower[node, j] = max(lower[node, j], tree.threshold[above])
    return lower, upper, missing
