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

from typing import Annotated, Any, Literal, TypedDict

import numpy as np
from msgspec import Meta

from solera.core.clients import Array, Client, ClientGroup, FloatArray, IntArray
from solera.core.constraints import Count, NonNegative, Positive
from solera.core.disclosure.evidence import Sums, everyone
from solera.core.errors import DataError
from solera.core.release import Cells, Update
from solera.core.replies import Stacked
from solera.core.selection import Selector
from solera.core.task import task
from solera.learn.averaging.base import Entries, ScoreAveraging, diverged
from solera.learn.averaging.training.batches import shuffle_rows
from solera.learn.averaging.training.losses import targets_of
from solera.learn.probabilities import sigmoid
from solera.learn.rows import check_shape, dense, not_finite
from solera.robust.rules import Rule
from solera.trust.declared import Classes, Shape

# --- the client's side ---

_SEVERAL_STEPS = 2.0
"""How many times as many rows weights rest on after several steps, each of which moves the next."""


@np.errstate(over="ignore", invalid="ignore")  # weights that are not finite are reported below
def _train_many(group: ClientGroup, ask: Any) -> Stacked:
    """All clients of the group at once: batches are stacked and multiplied together.

    Clients are ordered by their number of rows, so that those who still have batches left are
    always the first ones, and only the last, shorter batch of a client computes on padding.
    """
    data = group.data
    check_shape(group.ids, data.sizes, data.X, len(ask["coef"]))
    order = np.argsort(-data.sizes, kind="stable")
    starts, sizes = data.starts[order], data.sizes[order]
    targets = targets_of(data.y[data.index], ask["loss"], ask["classes"], ask["coef"].dtype)
    target_starts = (np.cumsum(data.sizes) - data.sizes)[order]
    kind = _float(data.X)
    W = np.repeat(ask["coef"].astype(kind)[None], len(group), axis=0)
    b = np.repeat(ask["intercept"].astype(kind)[None], len(group), axis=0)
    loss = np.zeros(len(group))
    batch = int(min(ask["batch_size"] or sizes[0], sizes[0]))
    for epoch in range(ask["epochs"]):
        shuffled = shuffle_rows(group.keys[order], sizes, epoch)
        for first in range(0, int(sizes[0]), batch):
            active = int(np.searchsorted(-sizes, -first, side="left"))
            take = shuffled[:active, first : first + batch]
            count = np.minimum(sizes[:active] - first, batch)
            real = np.arange(take.shape[1]) < count[:, None]
            take = np.where(real, take, 0)
            x = _dense(data.X, take + starts[:active, None], kind)
            target = targets[take + target_starts[:active, None]]
            error, losses = _error(x @ W[:active] + b[:active, None], target, ask["loss"])
            error *= (real / count[:, None])[:, :, None].astype(kind)
            loss[:active] += (losses * real).sum(axis=1)
            W[:active] -= ask["lr"] * (x.transpose(0, 2, 1) @ error + ask["l2"] * W[:active])
            b[:active] -= ask["lr"] * error.sum(axis=1)
    if not (np.isfinite(W).all() and np.isfinite(b).all()):
        raise DataError("some client's weights are not finite")
    back = np.argsort(order)
    loss /= ask["epochs"] * sizes
    return Stacked({"coef": W[back], "intercept": b[back], "loss": loss[back], "rows": data.sizes})


def _like(ask: Any) -> Entries:
    return {"coef": ask["coef"], "intercept": ask["intercept"], "loss": 0.0, "rows": 0}


class Train(TypedDict):
    """What ``linear.train`` takes."""

    coef: Annotated[FloatArray, Shape("columns", "outputs")]
    intercept: Annotated[FloatArray, Shape("outputs")]
    classes: Annotated[Array, Classes()]
    loss: Literal["softmax", "sigmoid", "squared"]
    lr: Positive
    epochs: Annotated[int, Meta(ge=1, le=1000)]
    batch_size: Count | None
    l2: NonNegative


def _descend(
    client: Client,
    ask: Any,
    given: FloatArray | None = None,
    direct: FloatArray | None = None,
    losses: FloatArray | None = None,
) -> tuple[Array, Array, float]:
    """Weights, intercepts and the sum of losses after all steps.

    The last three take up what every row gave: W ends at its start, shrunk by l2, minus
    η Σᵢ xᵢ givenᵢᵀ, and b at its start minus η Σᵢ directᵢ.
    """
    rows = client.data.part("train")
    targets = targets_of(rows.y, ask["loss"], ask["classes"], ask["coef"].dtype)
    kind = _float(rows.X)
    W, b = ask["coef"].astype(kind), ask["intercept"].astype(kind)
    batch = ask["batch_size"] or len(rows)
    loss = 0.0
    for epoch in range(ask["epochs"]):
        shuffled = shuffle_rows(client.key, np.array([len(rows)]), epoch)[0]
        for first in range(0, len(rows), batch):
            take = shuffled[first : first + batch]
            x = _dense(rows.X, take, kind)
            error, row_losses = _error(x @ W + b, targets[take], ask["loss"])
            W = W - ask["lr"] * (x.T @ (error / len(take)) + ask["l2"] * W)
            b = b - ask["lr"] * (error / len(take)).sum(axis=0)
            loss += float(row_losses.sum())
            if given is not None and direct is not None and losses is not None:
                given *= 1 - ask["lr"] * ask["l2"]
                given[take] += error / len(take)
                direct[take] += error / len(take)
                losses[take] += row_losses
    return W, b, loss


def _behind(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    """What every row gave to the weights, the intercepts and the loss.

    Several steps come close to errors that a row far out has made small by itself: without it, the
    weights would be others by 1 / (1 − h) times what its errors gave.
    """
    rows = client.data.part("train")
    given = np.zeros((len(rows), ask["coef"].shape[1]))
    direct, losses = np.zeros_like(given), np.zeros(len(rows))
    _descend(client, ask, given, direct, losses)
    steps = ask["epochs"] * -(-len(rows) // (ask["batch_size"] or len(rows)))
    if steps > 1:
        followed = 1 - _leverage(dense(rows.X), ask, steps)[:, None]
        given, direct = given / followed, direct / followed
    kept = (1 - ask["lr"] * ask["l2"]) ** steps
    start, passes = ask["coef"].T, ask["epochs"] * len(rows)
    lr = -ask["lr"]
    first = ask["intercept"][:, None]
    margin = 1.0 if steps == 1 else _SEVERAL_STEPS
    return {
        "coef": Sums(
            given, dense(rows.X), kept * start, lr, what="weights", mean=True, margin=margin
        ),
        "intercept": Sums(direct, None, first, lr, what="intercepts", mean=True, margin=margin),
        "loss": Sums(losses[:, None], scale=1 / passes, what="loss", beyond=True, mean=True),
        "rows": everyone(len(rows)),
    }


_CURVATURE = {"softmax": 0.5, "sigmoid": 0.25, "squared": 1.0}
"""The largest second derivative of the loss of a row by an output."""


def _leverage(X: FloatArray, ask: Any, steps: int) -> FloatArray:
    """How far predictions of a row follow its own target, from 0 to almost 1.

    T steps of size η shrink weights as the penalty 1/(ηT) does (Ali, Kolter & Tibshirani 2019), so
    that with curvature c and n rows, hᵢ = c/n xᵢᵀ (c/n XᵀX + (l2 + 1/(ηT)) I)⁻¹ xᵢ.
    """
    X = np.column_stack([X, np.ones(len(X))])
    part = _CURVATURE[ask["loss"]] / len(X)
    penalty = ask["l2"] + 1 / (ask["lr"] * steps)
    size, axes = np.linalg.eigh(part * (X.T @ X))
    h: FloatArray = part * ((X @ axes) ** 2 / (np.maximum(size, 0.0) + penalty)).sum(axis=1)
    return np.minimum(h, 1 - 1e-9)


def _weights(model: Any) -> Array:
    weights: Array = model["coef"]
    return weights


def _outputs_first(ask: Any, entry: str, value: Any, *_: Any) -> Any:
    return value.T if entry == "coef" else value


@task(
    "linear.train",
    many=_train_many,
    like=_like,
    ask=Train,
    release=[
        Update(
            "coef",
            "intercept",
            behind=_behind,
            weights=_weights,
            read=_outputs_first,
            write=_outputs_first,
        ),
        Cells("loss", "rows", behind=_behind),
    ],
)
@np.errstate(over="ignore", invalid="ignore")
def _train(client: Client, ask: Any) -> Entries:
    """Mini-batch gradient descent over this client's rows, as in the textbook."""
    rows = client.data.part("train")
    check_shape(client.id, len(rows), rows.X, len(ask["coef"]))
    W, b, loss = _descend(client, ask)
    if not (np.isfinite(W).all() and np.isfinite(b).all()):
        raise _explain(client, rows.X, ask)
    loss /= ask["epochs"] * len(rows)
    return {"coef": W, "intercept": b, "loss": loss, "rows": len(rows)}


def _error(z: Array, target: Array, loss: str) -> tuple[Array, Array]:
    """dL/dz and L of every row; z has one column per output."""
    if loss == "softmax":
        z = z - z.max(axis=-1, keepdims=True)
        p = np.exp(z)
        total = p.sum(axis=-1, keepdims=True)
        p /= total
        chosen = target[..., None]
        losses = np.log(total) - np.take_along_axis(z, chosen, axis=-1)
        np.put_along_axis(p, chosen, np.take_along_axis(p, chosen, axis=-1) - 1, axis=-1)
        return p, losses[..., 0]
    if loss == "sigmoid":
        known = target >= 0
        share = known / np.maximum(known.sum(axis=-1, keepdims=True), 1).astype(z.dtype)
        softplus = np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))
        return (sigmoid(z) - target) * share, ((softplus - target * z) * share).sum(axis=-1)
    error = z - target
    return error, 0.5 * (error**2).sum(axis=-1)


def _float(X: Any) -> Any:
    return X.dtype if X.dtype.kind == "f" else np.dtype(np.float64)


def _dense(X: Any, take: IntArray, kind: Any) -> Any:
    """The rows ``take`` of X, shaped as ``take`` with one more axis for the columns."""
    rows = X[take.ravel()]
    rows = rows.toarray() if hasattr(rows, "toarray") else rows
    return rows.reshape(*take.shape, -1).astype(kind, copy=False)


def _explain(client: Client, X: Any, ask: Any) -> DataError:
    """Why training did not end in finite weights."""
    if not np.isfinite(dense(X)).all():
        return not_finite(client, X)
    return diverged(f"at client {client.id}", ask["lr"])


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

    update = _train
    coef_: Annotated[Array, Shape("columns", "outputs")]
    intercept_: Annotated[Array, Shape("outputs")]

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

    def decision_function(self, X: Any) -> Array:
        """X w + b."""
        X = self.check_rows(X)
        flat = X if hasattr(X, "tocsr") else X.reshape(len(X), -1)
        scores: Array = flat @ self.coef_ + self.intercept_
        return scores
