"""FedForest: clients' random forests, some trees of each, as one forest."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from solera.core.clients import Client, FloatArray, IntArray
from solera.core.constraints import Count
from solera.core.errors import UsageError
from solera.core.federation import Federation
from solera.core.rng import generator
from solera.core.schema import class_codes
from solera.core.task import task
from solera.learn.rows import dense
from solera.learn.trees.client_trees import CollectTrees, checked_rows
from solera.learn.trees.predictor import TreePredictor
from solera.learn.trees.tree import Tree


@task("trees.forest")
def grow_forest(client: Client, ask: Any) -> dict[str, Any]:
    """Trees of a random forest of this client's rows (Breiman 2001), by scikit-learn."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    from solera.learn.trees.sklearn_trees import from_sklearn

    rows = client.data.part("train")
    X = checked_rows(client, rows, ask["width"])
    options = {
        "n_estimators": ask["trees"],
        "max_depth": ask["max_depth"],
        "min_samples_leaf": ask["min_rows"],
        "random_state": int(client.rng.integers(2**31)),
    }
    classes = ask["classes"]
    if classes is None:
        y = np.asarray(rows.y, dtype=np.float64).reshape(-1)
        forest = RandomForestRegressor(**options).fit(X, y)
    else:
        forest = RandomForestClassifier(**options).fit(X, class_codes(rows.y, classes))
        classes = np.arange(len(classes))
        for tree in forest.estimators_:
            tree.classes_ = forest.classes_  # the forest numbers the classes that are present anew
    trees = [from_sklearn(tree, classes=classes, rows=X) for tree in forest.estimators_]
    return {"trees": [tree.to_payload() for tree in trees], "rows": len(rows)}


class FedForest(TreePredictor):
    """A forest of trees from every client's own random forest, in one message.

    Each client grows a forest; the coordinator draws ``per_client`` of its trees without
    replacement (Hauschild et al. 2022, FedRF). Rows are decided by the majority of the trees, or by
    the mean of their class probabilities. Numbers are averaged. Missing values are welcome.

    Parameters
    ----------
    trees: trees that each client grows. per_client: how many of them are drawn; all by default.
    vote: "majority" or "mean"; for classes.
    max_depth, min_rows: of each tree: levels (None: no limit), fewest rows of a leaf.

    Attributes
    ----------
    trees_, owners_: the trees, and the client each comes from.
    """

    trees_: list[Tree]
    owners_: IntArray

    def __init__(
        self,
        *,
        trees: Count = 20,
        per_client: Count | None = None,
        vote: Literal["majority", "mean"] = "majority",
        max_depth: Count | None = None,
        min_rows: Count = 1,
    ) -> None:
        self.trees = trees
        self.per_client = per_client
        self.vote = vote
        self.max_depth = max_depth
        self.min_rows = min_rows

    def check_params(self) -> None:
        super().check_params()
        if self.per_client is not None and self.per_client > self.trees:
            raise UsageError.of(
                self, "per_client", self.per_client, f"must be at most trees={self.trees}"
            )

    def train(self, federation: Federation) -> None:
        self.check_target()
        ask = self._ask()
        outputs = 1 if ask["classes"] is None else len(ask["classes"])
        forests = federation.ask(grow_forest, ask).fold(CollectTrees(self.schema_.width, outputs))
        self.trees_ = []
        owners: list[int] = []
        for client, trees in forests.items():
            draw = generator(federation.seed, "trees.forest_draw", 0, client)
            count = min(self.per_client or self.trees, len(trees))
            drawn = np.sort(draw.choice(len(trees), size=count, replace=False))
            self.trees_ += [trees[i] for i in drawn]
            owners += [client] * count
        self.owners_ = np.array(owners, dtype=np.int64)

    def _ask(self) -> dict[str, Any]:
        return {
            "trees": self.trees,
            "max_depth": self.max_depth,
            "min_rows": self.min_rows,
            "width": self.schema_.width,
            "classes": self.schema_.classes if self.schema_.target == "classes" else None,
        }

    def outputs(self, X: Any) -> FloatArray:
        """Votes, mean probabilities or mean numbers: rows × outputs."""
        X = dense(self.check_rows(X))
        total = np.zeros((len(X), self.trees_[0].value.shape[1]))
        for tree in self.trees_:
            if self.schema_.target != "classes":
                total += tree.values(X)
            elif self.vote == "mean":
                total += tree.predict_proba(X)
            else:
                total[np.arange(len(X)), tree.values(X).argmax(axis=1)] += 1
        return total / len(self.trees_)

    @property
    def feature_importances_(self) -> FloatArray:
        """Mean over the trees of each column's share in the reduction of impurity."""
        self.check_fitted()
        width = self.schema_.width
        return np.asarray(np.mean([tree.importance(width) for tree in self.trees_], axis=0))
