"""FedForest: clients' random forests, some trees of each, as one forest."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from solera.core.aggregation import Collect
from solera.core.clients import Client
from solera.core.errors import DataError, PayloadError, Refusal, UsageError
from solera.core.federation import Federation
from solera.core.replies import Reply
from solera.core.rng import generator
from solera.core.schema import class_codes
from solera.core.task import task
from solera.learn.base import Predictor
from solera.learn.trees.fusion.tasks import with_gaps
from solera.learn.trees.tree import Floats, Ints, Tree, dense


@task("trees.forest")
def grow_forest(client: Client, ask: Any) -> dict[str, Any]:
    """Trees of a random forest of this client's rows (Breiman 2001), by scikit-learn."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    from solera.learn.trees.sklearn_trees import from_sklearn

    rows = client.data.part("train")
    if not len(rows):
        raise Refusal(f"client {client.id} has no rows to train on")
    X = with_gaps(rows.X)
    if X.shape[1] != ask["width"]:
        raise DataError(f"client {client.id} has {X.shape[1]} columns, the model {ask['width']}")
    options = {
        "n_estimators": ask["trees"],
        "max_depth": ask["max_depth"],
        "min_samples_leaf": ask["min_rows"],
        "random_state": int(client.rng.integers(2**31)),
    }
    gaps = np.asarray(np.isnan(X).any(axis=0))
    if ask["classes"] is None:
        y = np.asarray(rows.y, dtype=np.float64).reshape(-1)
        forest = RandomForestRegressor(**options).fit(X, y)
        trees = [from_sklearn(tree, gaps=gaps) for tree in forest.estimators_]
    else:
        codes = class_codes(rows.y, ask["classes"])
        present = np.unique(codes)
        forest = RandomForestClassifier(**options).fit(X, codes)
        trees = []
        for tree in forest.estimators_:
            found = from_sklearn(tree, gaps=gaps)
            value = np.zeros((len(found), len(ask["classes"])))
            value[:, present] = found.value
            trees.append(Tree(**{**found.get_params(deep=False), "value": value}))
    return {"trees": [tree.to_payload() for tree in trees], "rows": len(rows)}


class CollectForests(Collect):
    """Every client's trees; a reply whose arrays make no trees is a failure of that client."""

    def __init__(self, width: int, outputs: int) -> None:
        self.width = width
        self.outputs = outputs

    def lift(self, reply: Reply) -> Any:
        self._check(reply)
        return super().lift(reply)

    def fold(self, batch: Any) -> Any:
        for reply in batch:
            self._check(reply)
        return super().fold(batch)

    def _check(self, reply: Reply) -> None:
        if not reply.payload["trees"]:
            raise PayloadError("a forest without trees")
        for tree in reply.payload["trees"]:
            Tree.from_payload(tree, self.width, self.outputs)


class FedForest(Predictor):
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

    allows_missing = True
    trees_: list[Tree]
    owners_: Ints

    def __init__(
        self,
        *,
        trees: int = 20,
        per_client: int | None = None,
        vote: Literal["majority", "mean"] = "majority",
        max_depth: int | None = None,
        min_rows: int = 1,
    ) -> None:
        self.trees = trees
        self.per_client = per_client
        self.vote = vote
        self.max_depth = max_depth
        self.min_rows = min_rows

    def train(self, federation: Federation) -> None:
        self._check_params()
        classes = self.schema_.classes if self.schema_.target == "classes" else None
        ask = {
            "trees": self.trees,
            "max_depth": self.max_depth,
            "min_rows": self.min_rows,
            "width": self.schema_.width,
            "classes": classes,
        }
        outputs = 1 if classes is None else len(classes)
        fold = CollectForests(self.schema_.width, outputs)
        told = federation.ask(grow_forest, ask).fold(fold)
        drawn: list[Tree] = []
        owners: list[int] = []
        for client, reply in told.items():
            draw = generator(federation.seed, "trees.forest_draw", 0, client)
            count = min(self.per_client or self.trees, len(reply["trees"]))
            for i in np.sort(draw.choice(len(reply["trees"]), size=count, replace=False)).tolist():
                drawn.append(Tree(**reply["trees"][i]))
                owners.append(client)
        self.trees_, self.owners_ = drawn, np.array(owners, dtype=np.int64)

    def _outputs(self, X: Any) -> Floats:
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

    def predict_proba(self, X: Any) -> Floats:
        """Share of the trees that vote for each class, or the mean of their probabilities."""
        self.check_fitted()
        if self.schema_.target != "classes":
            raise UsageError("FedForest was fitted to numbers, which have no probabilities")
        return self._outputs(X)

    def predict(self, X: Any) -> NDArray[Any]:
        self.check_fitted()
        if self.schema_.target == "classes":
            return np.asarray(self.schema_.classes[self._outputs(X).argmax(axis=1)])
        return self._outputs(X)[:, 0]

    @property
    def feature_importances_(self) -> Floats:
        """Mean over the trees of each column's share in the reduction of impurity."""
        self.check_fitted()
        width = self.schema_.width
        return np.asarray(np.mean([tree.importance(width) for tree in self.trees_], axis=0))

    def report_sections(self) -> list[tuple[str, Any]]:
        """What a report shows of the trees: the importance of columns."""
        from solera.learn.trees.plots import plot_importance

        return [("Importance", plot_importance(self.feature_importances_, self.schema_))]

    def _check_params(self) -> None:
        for name in ("trees", "per_client", "max_depth", "min_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError.of(self, name, value, "must be at least 1")
        if self.per_client is not None and self.per_client > self.trees:
            raise UsageError.of(
                self, "per_client", self.per_client, f"must be at most trees={self.trees}"
            )
        if self.vote not in ("majority", "mean"):
            raise UsageError.of(self, "vote", self.vote, "must be 'majority' or 'mean'")
        if self.schema_.target not in ("classes", "numbers") or (
            self.schema_.target == "numbers" and self.schema_.outputs != 1
        ):
            raise DataError("FedForest learns classes or one number")
