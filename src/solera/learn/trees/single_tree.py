"""What a single tree can say for itself: predictions, explanations, tables, pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.errors import DataError
from solera.core.schema import Feature, Schema
from solera.learn.base import Predictor
from solera.learn.trees import export
from solera.learn.trees.fusion.rules import RuleSet
from solera.learn.trees.tree import Floats, Tree, dense, shares


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
        parts = []
        if self.lower > -export.HUGE:
            parts.append(f"{self.feature} > {self.lower:.6g}")
        if self.upper < export.HUGE:
            parts.append(f"{self.feature} ≤ {self.upper:.6g}")
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
    parent, branch = tree.parents
    path = []
    node = end
    while parent[node] >= 0:
        path.append((int(parent[node]), int(branch[node])))
        node = int(parent[node])
    found: dict[int, Condition] = {}
    for above, way in reversed(path):
        column = int(tree.feature[above])
        found[column] = _narrowed(found.get(column), tree, above, way, schema.features[column])
    labels = schema.classes.tolist()
    chances = shares(tree.value[end]).tolist()
    return Explanation(
        tuple(found.values()),
        dict(zip(labels, chances, strict=True)),
        float(tree.support[end]),
    )


def _narrowed(
    known: Condition | None, tree: Tree, node: int, way: int, feature: Feature
) -> Condition:
    column = int(tree.feature[node])
    if tree.categorical[node]:
        if way == tree.arity[node] - 1:
            return Condition(feature.name, column, 0, 0, missing=True)
        return Condition(feature.name, column, way - 1, way, feature.categories[way])
    lower, upper, missing = (
        (-np.inf, np.inf, True) if known is None else (known.lower, known.upper, known.missing)
    )
    cut = float(tree.threshold[node])
    missing = missing and (way == 0) == bool(tree.missing_left[node])
    if way == 0:
        return Condition(feature.name, column, lower, min(upper, cut), missing=missing)
    return Condition(feature.name, column, max(lower, cut), upper, missing=missing)


def rule_rows(rules: RuleSet, expected: Floats, schema: Schema) -> list[dict[str, Any]]:
    """Rules as a table, those with the most expected rows first."""
    lower, upper = rules.bounds()
    empty = rules.lower == rules.upper
    bound = np.isfinite(lower) | np.isfinite(upper) | empty
    probabilities = rules.probabilities
    best = probabilities.argmax(axis=1)
    table = []
    for i in np.argsort(-expected, kind="stable").tolist():
        conditions = [
            _condition(schema.features[j], j, lower[i, j], upper[i, j], bool(rules.gaps[i, j]))
            for j in np.flatnonzero(bound[i]).tolist()
        ]
        table.append(
            {
                "rule": " and ".join(map(str, conditions)) or "always",
                "class": schema.classes[best[i]].item(),
                "probability": float(probabilities[i, best[i]]),
                "support": float(rules.support[i]),
                "expected_rows": float(expected[i]),
            }
        )
    return table


def _condition(feature: Feature, column: int, low: float, high: float, gap: bool) -> Condition:
    name = None
    if feature.kind == "categorical" and high - low == 1 and 0 <= high < len(feature.categories):
        name = feature.categories[int(high)]
    return Condition(feature.name, column, float(low), float(high), name, gap)


class ReadableTree(Predictor, abstract=True):
    """A classifier that is one tree."""

    allows_missing = True
    tree_: Tree

    def predict_proba(self, X: Any) -> Floats:
        """Probability of every class."""
        X = dense(self.check_rows(X))
        return self.tree_.predict_proba(X)

    def predict(self, X: Any) -> NDArray[Any]:
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.schema_.classes[best])

    @property
    def feature_importances_(self) -> Floats:
        """Share of each column in the reduction of Gini impurity."""
        self.check_fitted()
        return self.tree_.importance(self.schema_.width)

    def explain(self, x: Any, *, client: int | None = None) -> Explanation | Comparison:
        """Why the tree answers as it does for one row.

        With ``client``, the explanation of that client's own tree beside it (thesis Table 2.6).
        """
        self.check_fitted()
        here = explain(self.tree_, x, self.schema_)
        if client is None:
            return here
        return Comparison(explain(self.local_tree(client), x, self.schema_), here)

    def local_tree(self, client: int) -> Tree:
        """The tree that a client grew on its own rows, for learners that merge such trees."""
        raise DataError(f"{type(self).__name__} has one tree, grown by all clients together")

    def to_text(self) -> str:
        """The tree as indented text."""
        self.check_fitted()
        return export.to_text(self.tree_, self.schema_)

    def to_json(self) -> str:
        """The tree as nested JSON."""
        self.check_fitted()
        return export.to_json(self.tree_, self.schema_)

    def to_graphviz(self) -> str:
        """The tree in the language of Graphviz."""
        self.check_fitted()
        return export.to_graphviz(self.tree_, self.schema_)

    def to_svg(self, *, max_depth: int = 5) -> str:
        """The upper part of the tree as a picture in SVG."""
        self.check_fitted()
        return export.to_svg(self.tree_, self.schema_, max_depth=max_depth)

    def plot(self, *, ax: Any = None, max_depth: int = 4) -> Any:
        """The upper part of the tree, as a matplotlib figure."""
        from solera.learn.trees.plots import plot_tree

        self.check_fitted()
        return plot_tree(self.tree_, self.schema_, ax=ax, max_depth=max_depth)

    def report_sections(self) -> list[tuple[str, Any]]:
        """What a report shows of the tree: its upper part and the importance of columns."""
        from solera.learn.trees.plots import plot_importance

        importance = plot_importance(self.feature_importances_, self.schema_)
        return [("Tree", self.plot()), ("Importance", importance)]
