"""FedLinear: linear and logistic regression by federated averaging, in NumPy.

Every round the chosen clients start from the global weights, make some passes of mini-batch
gradient descent over their own rows and send what changed; the coordinator moves the weights by
the mean over rows (McMahan et al. 2017, Algorithm 1):

    w_k ← w − η ∇L_k(w) per batch,      w ← w + Σ_k n_k (w_k − w) / Σ_k n_k

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
from solera.core.errors import DataError, UsageError
from solera.core.rounds import Round
from solera.core.selection import Selector
from solera.core.task import task
from solera.learn.averaging.base import Entries, ScoreAveraging, diverged
from solera.learn.averaging.training.batches import shuffled_batches
from solera.learn.averaging.training.losses import loss_gradient, targets_of
from solera.learn.linear_stacked import train_stacked
from solera.learn.rows import check_shape, dense, float_type, not_finite
from solera.privacy.dp.mechanism import DP
from solera.robust.rules import Rule
from solera.trust.constructors import count_by, fact, update

# --- the client's side ---


def _like(ask: Any) -> Entries:
    change = {"coef": ask["coef"], "intercept": ask["intercept"]}
    return {"rows": 0, "change": change if "privacy" in ask else {**change, "loss": 0.0}}


@task("linear.train", many=train_stacked, like=_like, version=3)
@np.errstate(over="ignore", invalid="ignore")  # weights that are not finite are reported below
def train(client: Client, ask: Any) -> Entries:
    """How far some epochs of mini-batch gradient descent move the weights.

    w ← w − η (∇L(w) + l2·w) for each batch. With noise clients weigh the same, and tell no loss.
    """
    rows = client.data.part("train")
    check_shape(client.id, len(rows), rows.X, len(ask["coef"]))
    targets = targets_of(rows.y, ask["loss"], ask["classes"], ask["coef"].dtype)
    kind = float_type(rows.X)
    coef = first_coef = ask["coef"].astype(kind)
    intercept = first_intercept = ask["intercept"].astype(kind)
    total_loss = 0.0
    for batch in shuffled_batches(client.key, len(rows), ask["batch_size"], ask["epochs"]):
        X = dense(rows.X[batch]).astype(kind, copy=False)
        scores = X @ coef + intercept
        error, losses = loss_gradient(scores, targets[batch], ask["loss"])
        error = error / len(batch)
        gradient = X.T @ error + ask["l2"] * coef
        coef = coef - ask["lr"] * gradient
        intercept = intercept - ask["lr"] * error.sum(axis=0)
        total_loss += float(losses.sum())
    change = {"coef": coef - first_coef, "intercept": intercept - first_intercept}
    if "privacy" in ask:
        return {"rows": fact(1), "change": update(change)}
    if not all(np.isfinite(part).all() for part in change.values()):
        raise _explain(client, rows.X, ask["lr"])
    mean_loss = total_loss / (ask["epochs"] * len(rows))
    return {"rows": count_by(None), "change": update({**change, "loss": mean_loss})}


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
    dp: None, or :class:`so.DP <solera.privacy.dp.mechanism.DP>` with ``clip``, the longest that a
        client's change of the weights may be: it is scaled and noised, clients weigh the same, and
        nobody is told the loss.

    Attributes
    ----------
    coef_, intercept_: weights, columns × outputs, and one intercept per output.
    """

    update = train
    hides_clients = True
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
        dp: DP | None = None,
    ) -> None:
        self.rounds = rounds
        self.per_round = per_round
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.l2 = l2
        self.select = select
        self.aggregate = aggregate
        self.dp = dp

    def check_params(self) -> None:
        super().check_params()
        if self.dp is not None:
            self.dp.need_clip(self, "what a client changes of the weights")
            self.dp.check_selector(self)
            if self.dp.adaptive is not None:
                raise UsageError.of(self.dp, "adaptive", self.dp.adaptive, "must be None here")
            if self.dp.sampling != "fixed":
                raise UsageError.of(self.dp, "sampling", self.dp.sampling, "must be 'fixed' here")

    def described_params(self) -> dict[str, Any]:
        """Without a ``dp`` of None: checkpoints and cells of before there was one go on."""
        params = super().described_params()
        return params if self.dp is not None else {k: v for k, v in params.items() if k != "dp"}

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
        return Mean(weight="rows", of="change", largest=self.largest_update())

    def round_origin(self) -> None:
        return None  # replies are differences

    def apply_update(self, mean: Entries) -> None:
        kind = mean["coef"].dtype
        self.coef_ = (self.coef_ + mean["coef"]).astype(kind)
        self.intercept_ = (self.intercept_ + mean["intercept"]).astype(kind)

    def account(self, round: Round, mean: Entries) -> None:
        if self.dp is None:
            super().account(round, mean)

    def decision_function(self, X: Any) -> Array:
        """X w + b."""
        X = self.check_rows(X)
        flat = X if hasattr(X, "tocsr") else X.reshape(len(X), -1)
        scores: Array = flat @ self.coef_ + self.intercept_
        return scores
