"""What boosting learners share: scores as sums of trees, losses, and the first message."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from solera.core.aggregation import Extremes, Fields, Sum
from solera.core.clients import Array, Client, FloatArray
from solera.core.errors import DataError, Refusal
from solera.core.federation import Federation
from solera.core.schema import class_codes
from solera.core.task import task
from solera.learn.probabilities import sigmoid, softmax
from solera.learn.rows import dense, refuse_empty
from solera.learn.trees.predictor import TreePredictor
from solera.learn.trees.tree import Tree
from solera.trust.constructors import count_by, sum_by

Loss = Literal["squared", "sigmoid", "softmax"]
"""The losses that trees are boosted for."""
_EXPONENTS = 1100
"""No number has a larger exponent, or a smaller one than the opposite of this."""


class Exponents(Extremes):
    """The smallest and largest exponent of the replies.

    How many clients have which adds up, so that a secure sum tells it without telling whose.
    """

    additive = True

    def terms(self, partial: Any) -> Any:
        every = np.arange(-_EXPONENTS, _EXPONENTS + 1)
        return np.isin(every, [partial["min"], partial["max"]]).astype(np.int64)

    def from_terms(self, total: Any) -> Any:
        held = np.flatnonzero(total) - _EXPONENTS
        return {"min": held.min(), "max": held.max()}


class Boosted(TreePredictor, abstract=True):
    """A learner whose scores are sums of trees; probabilities are their sigmoid or softmax."""

    trees_: list[list[Tree]]
    initial_: FloatArray

    def scores(self, X: Any) -> FloatArray:
        """Initial score plus the trees' values: rows × (1, or one per class of several)."""
        X = dense(self.check_rows(X))
        total = np.repeat(self.initial_[None], len(X), axis=0)
        for trees in self.trees_:
            for k, tree in enumerate(trees):
                total[:, k] += tree.values(X)[:, 0]
        return total

    def outputs(self, X: Any) -> FloatArray:
        scores = self.scores(X)
        if self.schema_.target != "classes":
            return scores
        if scores.shape[1] > 1:
            return softmax(scores)
        p = sigmoid(scores)
        return np.concatenate([1 - p, p], axis=1)

    @property
    def feature_importances_(self) -> FloatArray:
        """Share of each column in the reduction of the loss, over all trees."""
        self.check_fitted()
        width = self.schema_.width
        total = np.zeros(width)
        for tree in (tree for trees in self.trees_ for tree in trees):
            total += tree.importance(width) * len(tree.leaves)
        return total / total.sum() if total.sum() > 0 else total

    def loss(self) -> str:
        """The name of the loss that suits the target."""
        self.check_target()
        classes = len(self.schema_.classes)
        if self.schema_.target == "numbers":
            return "squared"
        if classes < 2:
            raise DataError(f"{type(self).__name__} needs two classes, the target has 1 class")
        return "sigmoid" if classes == 2 else "softmax"


def boosting_target(y: Any, ask: Mapping[str, Any]) -> Array:
    """Numbers, or class codes."""
    if ask["loss"] == "squared":
        return np.asarray(y, dtype=np.float64).reshape(-1)
    return class_codes(y, ask["classes"])


def gradients(scores: FloatArray, y: Array, loss: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """First and second derivatives of the loss by the scores, trees × rows, and every row's loss.

    Classes: g = p − [y = k], h = p (1 − p) with p the sigmoid of a row's score, or the softmax of
    its scores. Numbers: g = f − y, h = 1.
    """
    if loss == "squared":
        g = scores - y
        return g, np.ones_like(g), 0.5 * g[0] ** 2
    if loss == "sigmoid":
        e = np.exp(-np.abs(scores))
        p = np.where(scores >= 0, 1.0, e) / (1 + e)
        softplus = np.maximum(scores, 0) + np.log(1 + e)
        return p - y, p * (1 - p), (softplus - y * scores)[0]
    z = scores - scores.max(axis=0)
    p = np.exp(z)
    total = p.sum(axis=0)
    p /= total
    own = y == np.arange(len(p))[:, None]
    return p - own, p * (1 - p), np.log(total) - (z * own).sum(axis=0)


@task("trees.boost_target", version=2)
def describe_target(client: Client, ask: Any) -> dict[str, Any]:
    """Rows per class; or rows, Σ y in units of 2^−shift, and a power of two above all |y|.

    The power is told without noise alone, and Σ y² in its place in a closed job (``exact``). The
    first scores follow from these sums.
    """
    rows = client.data.part("train")
    refuse_empty(client.id, len(rows))
    y = boosting_target(rows.y, ask)
    if ask["loss"] != "squared":
        counts = {"counts": count_by(y, len(ask["classes"]))}
        return {"rows": count_by(None), **counts} if "exact" in ask else counts
    if "exact" in ask:
        return {"rows": count_by(None), "moments": sum_by(None, np.stack([y, y**2], axis=1))}
    if "privacy" in ask:
        if "clip" not in ask["privacy"]:
            raise Refusal("with noise, numbers need a bound: clip")
        return {"rows": count_by(None), "total": sum_by(None, y)}
    if not np.isfinite(y).all():
        raise DataError(f"client {client.id} has missing or infinite values in its target")
    exponent = int(np.frexp(np.abs(y).max())[1])
    units = np.rint(np.ldexp(y, ask["shift"])) if "shift" in ask else np.zeros(len(y))
    return {
        "rows": count_by(None),
        "total": sum_by(None, units.astype(np.int64)),
        "exponent": exponent,
    }


def initial_scores(counts: Array) -> FloatArray:
    """Scores whose probabilities are the shares of the classes, one without rows as half a row."""
    p = np.maximum(counts, 0.5) / np.maximum(counts, 0.5).sum()
    return np.asarray(np.log(p[1:] / p[:1]) if len(p) == 2 else np.log(p))


def noised_start(federation: Federation, loss: str, classes: Any) -> FloatArray:
    """The first scores, from one ask with noise."""
    target = federation.ask(describe_target, {"loss": loss, "classes": classes}).fold(Sum())
    if loss != "squared":
        return initial_scores(target["counts"])
    return np.array([float(target["total"]) / max(float(target["rows"]), 1.0)])


def boosting_start(
    federation: Federation, loss: str, classes: Any
) -> tuple[int, FloatArray, float]:
    """Rows, the first scores, and a bound of the first gradients; sums do not depend on order."""
    ask = {"loss": loss, "classes": classes}
    replies = federation.ask(describe_target, ask)
    if loss != "squared":
        counts = replies.fold(Sum())["counts"]
        return int(counts.sum()), initial_scores(counts), 1.0
    fold = Fields({"rows": Sum(), "exponent": Exponents(), "total": Sum()})
    target = replies.fold(fold)
    rows = int(target["rows"])
    exponent = int(target["exponent"]["max"])
    shift = 52 - exponent - rows.bit_length()
    target = federation.ask(describe_target, {**ask, "shift": shift}, round=1).fold(fold)
    mean = float(np.ldexp(float(target["total"]), -shift)) / rows
    return rows, np.array([mean]), 2.0**exponent + abs(mean)


def closed_start(federation: Federation, loss: str, classes: Any) -> tuple[int, FloatArray, float]:
    """The same from one ask of a closed job; |y| is at most √Σ y²."""
    ask = {"loss": loss, "classes": classes, "exact": True}
    target = federation.ask(describe_target, ask).fold(Sum())
    rows = int(target["rows"])
    if loss != "squared":
        return rows, initial_scores(target["counts"]), 1.0
    total, squares = target["moments"].tolist()
    return rows, np.array([total / rows]), math.sqrt(squares) + abs(total / rows)
