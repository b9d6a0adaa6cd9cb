"""The stacked twin of ``linear.train``: many simulated clients in the same array operations.

It gives the numbers that :func:`solera.learn.linear.train` gives one by one; a law compares them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import ClientGroup, IntArray
from solera.core.errors import DataError
from solera.core.replies import Stacked
from solera.learn.averaging.training.batches import shuffle_rows
from solera.learn.averaging.training.losses import loss_gradient, targets_of
from solera.learn.rows import check_shape, dense, float_type


@np.errstate(over="ignore", invalid="ignore")
def train_stacked(group: ClientGroup, ask: Any) -> Stacked:
    """How far the clients of the group move the weights; batches are multiplied together.

    Clients are ordered by their number of rows, so that those who still have batches left are
    always the first ones, and only the last, shorter batch of a client computes on padding.
    """
    data = group.data
    check_shape(group.ids, data.sizes, data.X, len(ask["coef"]))
    order = np.argsort(-data.sizes, kind="stable")
    starts, sizes = data.starts[order], data.sizes[order]
    targets = targets_of(data.y[data.index], ask["loss"], ask["classes"], ask["coef"].dtype)
    target_starts = (np.cumsum(data.sizes) - data.sizes)[order]
    kind = float_type(data.X)
    first_coef, first_intercept = ask["coef"].astype(kind), ask["intercept"].astype(kind)
    coef = np.repeat(first_coef[None], len(group), axis=0)
    intercept = np.repeat(first_intercept[None], len(group), axis=0)
    total_loss = np.zeros(len(group))
    batch_size = int(min(ask["batch_size"] or sizes[0], sizes[0]))
    for epoch in range(ask["epochs"]):
        shuffled = shuffle_rows(group.keys[order], sizes, epoch)
        for first in range(0, int(sizes[0]), batch_size):
            active = int(np.searchsorted(-sizes, -first, side="left"))
            batch = shuffled[:active, first : first + batch_size]
            count = np.minimum(sizes[:active] - first, batch_size)
            real = np.arange(batch.shape[1]) < count[:, None]
            batch = np.where(real, batch, 0)
            X = _batches(data.X, batch + starts[:active, None], kind)
            scores = X @ coef[:active] + intercept[:active, None]
            target = targets[batch + target_starts[:active, None]]
            error, losses = loss_gradient(scores, target, ask["loss"])
            error *= (real / count[:, None])[:, :, None].astype(kind)
            gradient = X.transpose(0, 2, 1) @ error + ask["l2"] * coef[:active]
            coef[:active] -= ask["lr"] * gradient
            intercept[:active] -= ask["lr"] * error.sum(axis=1)
            total_loss[:active] += (losses * real).sum(axis=1)
    if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
        raise DataError("some client's weights are not finite")
    mean_loss = total_loss / (ask["epochs"] * sizes)
    back = np.argsort(order)
    change = {
        "coef": coef[back] - first_coef,
        "intercept": intercept[back] - first_intercept,
        "loss": mean_loss[back],
    }
    return Stacked({"rows": data.sizes, "change": change})


def _batches(X: Any, rows: IntArray, kind: Any) -> Any:
    """The rows of every client's batch: clients × rows × columns."""
    taken = dense(X[rows.ravel()])
    return taken.reshape(*rows.shape, -1).astype(kind, copy=False)
