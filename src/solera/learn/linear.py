"""FedLinear: linear and logistic regression by federated averaging, in NumPy.

Every round the chosen clients start from the global weights, make some passes of mini-batch
gradient descent over their own rows and send the weights back; the coordinator averages them by
rows (McMahan et al. 2017, Algorithm 1):

    w_k ← w − η ∇L_k(w) per batch,      w ← Σ_k n_k w_k / Σ_k n_k

The loss L is the cross-entropy of a softmax for classes, for labels the mean of a sigmoid's over
those that a row knows, half the squared error for numbers; ``l2`` adds l2/2·‖w‖² (without the
intercept).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation, Mean
from solera.core.clients import Array, Client
from solera.core.constraints import Count, NonNegative, Positive
from solera.core.errors import DataError
from solera.core.selection import Selector
from solera.core.task import task
from solera.learn.averaging.base import Entries, ScoreAveraging, diverged
from solera.learn.averaging.training.batches import shuffled_batches
from solera.learn.averaging.training.losses import loss_gradient, targets_of
from solera.learn.linear_stacked import train_stacked
from solera.learn.rows import check_shape, dense, float_type, not_finite
from solera.robust.rules import Rule
from solera.trust.constructors import count_by, update

# --- the client's side ---


def _like(ask: Any) -> Entries:
    model = {"coef": ask["coef"], "intercept": ask["intercept"], "loss": 0.0}
    return {"rows": 0, "model": model}


@task("linear.train", many=train_stacked, like=_like, version=2)
@np.errstate(over="ignore", invalid="ignore")  # weights that are not finite are reported below
def train(client: Client, ask: Any) -> Entries:
    """This client's weights after some epochs of mini-batch gradient descent.

    w ← w − η (∇L(w) + l2·w) for each batch.
    """
    rows = client.data.part("train")
    check_shape(client.id, len(rows), rows.X, len(ask["coef"]))
    targets = targets_of(rows.y, ask["loss"], ask["classes"], ask["coef"].dtype)
    kind = float_type(rows.X)
    coef, intercept = ask["coef"].astype(kind), ask["intercept"].astype(kind)
    total_loss = 0.0
    for batch in shuffled_batches(client.key, len(rows), ask["batch_size"], ask["epochs"]):
        X = dense(rows.X[batch]).astype(kind, copy=False)
        scores = X @ coef + intercept
        error, losses = loss_gradient(scores, targets[batch], ask["loss"])
        error = error / len(batch)
        coef = coef - ask["lr"] * (X.T @ error + ask["l2"] * coef)
        intercept = intercept - ask["lr"] * error.sum(axis=0)
        total_loss += float(losses.sum())
    if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
        raise _explain(client, rows.X, ask["lr"])
    mean_loss = total_loss / (ask["epochs"] * len(rows))
    model = {"coef": coef, "intercept": intercept, "loss": mean_loss}
    return {"rows": count_by(None), "model": update(model)}


def _explain(client: Client, X: Any, lr: float) -> DataError:
    """Why training did not end in finite weights."""
    if not np.isfinite(dense(X)).all():
        return not_finite(client, X)
    return diverged(f"at client {client.id}", lr)


# --- the coordinator's side ---


class FedLinear(ScoreAveraging):
    """Linear regression, logistic regression or one logistic regression per label.

    Which one follows from the target: classes, labels or numbers.

    Parameters
    ----------
    rounds: how often clients are asked.
    per_round: clients per round; all of them by default.
    lr: step size η.
    epochs, batch_size: passes of a client over its rows, and rows per step (None: all of them).
    l2: strength of the penalty on the weights.
    select: which clients take part; :class:`Uniform` by default.
    aggregate: None for the mean, or a rule for clients that may lie, such as
        ``so.robust.Median()``.

    Attributes
    ----------
    coef_, intercept_: weights, columns × outputs, and one intercept per output.
    """

    update = train
    coef_: Array
    intercept_: Array

    def __init__(
        self,
        *,
        rounds: int = 50,
        per_round: int | None = None,
        lr: Positive = 0.1,
        epochs: Count = 1,
        batch_size: Count | None = 32,
        l2: NonNegative = 0.0,
        select: Selector | None = None,
        aggregate: Rule | None = None,
    ) -> None:
        self.rounds = rounds
        self.per_round = per_round
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.l2 = l2
        self.select = select
        self.aggregate = aggregate

    def first_model(self, seed: int) -> Entries:
        return {
            "coef": np.zeros((self.schema_.width, self.schema_.outputs)),
            "intercept": np.zeros(self.schema_.outputs),
        }

    def get_model(self) -> Entries:
        return {"coef": self.coef_, "intercept": self.intercept_}

    def set_model(self, model: Entries) -> None:
        self.coef_, self.intercept_ = model["coef"], model["intercept"]

    def round_config(self, round: int) -> Entries:
        return {
            "classes": self.schema_.classes,
            "loss": self.loss_of_target(),
            "lr": float(self.lr),
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "l2": float(self.l2),
        }

    def round_aggregation(self) -> Aggregation:
        return Mean(weight="rows", of="model", largest=self.largest_update())

    def decision_function(self, X: Any) -> Array:
        """X w + b."""
        X = self.check_rows(X)
        flat = X if hasattr(X, "tocsr") else X.reshape(len(X), -1)
        scores: Array = flat @ self.coef_ + self.intercept_
        return scores
