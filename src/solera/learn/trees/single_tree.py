"""What learners share whose model is one tree: predictions, explanations, exports, plots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from solera.core.clients import FloatArray
from solera.core.errors import DataError
from solera.learn.base import Transformer
from solera.learn.conditions import Condition
from solera.learn.preprocess.pipeline import Pipeline
from solera.learn.rows import dense
from solera.learn.trees import export
from solera.learn.trees.client_trees import with_missing
from solera.learn.trees.explanation import Comparison, Explanation, explain
from solera.learn.trees.predictor import TreePredictor
from solera.learn.trees.tree import Tree


class SingleTree(TreePredictor, abstract=True):
    """A classifier that is one tree."""

    tree_: Tree
    _pipeline: Pipeline | None = None
    """The pipeline whose last step this is, where it speaks of the rows before the others."""

    def outputs(self, X: Any) -> FloatArray:
        X = dense(self.check_rows(X))
        return self.tree_.predict_proba(X)

    def check_target(self) -> None:
        """Refuse a target that is not classes."""
        target = self.schema_.target
        if target != "classes":
            raise DataError(
                f"{type(self).__name__} predicts classes, the target is {target}",
                hint="FedHistGBDT and FedForest predict numbers too, FedLinear and FedAvg labels",
            )

    @property
    def feature_importances_(self) -> FloatArray:
        """Share of each column in the reduction of Gini impurity."""
        self.check_fitted()
        return self.tree_.importance(self.schema_.width)

    def explain(self, x: Any, *, client: int | None = None) -> Explanation | Comparison:
        """Why the tree answers as it does for one row: a vector, or named as in a frame.

        With ``client``, the explanation of that client's own tree beside it (thesis Table 2.6).
        """
        row = (self if self._pipeline is None else self._pipeline).check_row(x)
        of_global = self._explained(self.tree_, row)
        if client is None:
            return of_global
        return Comparison(self._explained(self.local_tree(client), row), of_global)

    def _explained(self, tree: Tree, row: Any) -> Explanation:
        """The explanation in words of the row; a value that misses is said to."""
        prepared = row if self._pipeline is None else self._pipeline.prepared(row)
        explanation = explain(tree, with_missing(prepared)[0], self.schema_)
        values = dense(row)[0]
        conditions = (self._raw(condition) for condition in explanation.conditions)
        at_row = tuple(condition.at(values[condition.column]) for condition in conditions)
        return replace(explanation, conditions=at_row)

    def _raw(self, condition: Condition) -> Condition:
        """A condition on the columns before the pipeline."""
        for step in [] if self._pipeline is None else reversed(self._pipeline.steps_[:-1]):
            assert isinstance(step, Transformer)
            condition = step.condition_before(condition)
        return condition

    def local_tree(self, client: int) -> Tree:
        """The tree that a client grew on its own rows, for learners that merge such trees."""
        raise DataError(f"{type(self).__name__} has one tree, grown by all clients together")

    def to_text(self) -> str:
        """The tree as indented text."""
        self.check_fitted()
        return export.to_text(self.tree_, self.schema_, self._raw)

    def to_json(self) -> str:
        """The tree as nested JSON."""
        self.check_fitted()
        return export.to_json(self.tree_, self.schema_, self._raw)

    def to_graphviz(self) -> str:
        """The tree in the language of Graphviz."""
        self.check_fitted()
        return export.to_graphviz(self.tree_, self.schema_, self._raw)

    def to_svg(self, *, max_depth: int = 5) -> str:
        """The upper part of the tree as a picture in SVG."""
        from solera.learn.trees.plots import to_svg

        return to_svg(self.plot(max_depth=max_depth))

    def plot(self, *, ax: Any = None, max_depth: int = 4) -> Any:
        """The upper part of the tree, as a matplotlib figure."""
        from solera.learn.trees.plots import plot_tree

        self.check_fitted()
        return plot_tree(self.tree_, self.schema_, self._raw, ax=ax, max_depth=max_depth)

    def report_sections(self) -> list[tuple[str, Any]]:
        """What a report shows of the tree: its upper part and the importance of columns."""
        return [("Tree", self.plot()), *super().report_sections()]
