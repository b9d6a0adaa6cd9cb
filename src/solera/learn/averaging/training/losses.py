"""What training minimises: targets, the loss of every row, and its derivative."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import Array
from solera.core.errors import UsageError
from solera.core.schema import class_codes
from solera.learn.averaging.models import find_loss
from solera.learn.averaging.training.devices import torch
from solera.learn.probabilities import sigmoid

OUR_LOSSES = ("softmax", "sigmoid", "binary", "squared")
LABEL_LOSSES = ("sigmoid", "labels/cross_entropy", "labels/asymmetric", "labels/balanced")


def targets_of(y: Any, loss: str, classes: Array, dtype: Any) -> Array:
    """Class codes, or a matrix of labels or numbers."""
    own = loss not in OUR_LOSSES and len(classes) > 0 and np.ndim(y) == 1
    if loss == "softmax" or own:
        return class_codes(y, classes)
    if loss == "binary":
        y = class_codes(y, classes)
    return np.asarray(y, dtype=dtype).reshape(len(y), -1)


def loss_gradient(scores: Array, target: Array, loss: str) -> tuple[Array, Array]:
    """dL/dz and L of every row, in NumPy; scores z have one column per output."""
    if loss == "softmax":
        z = scores - scores.max(axis=-1, keepdims=True)
        p = np.exp(z)
        total = p.sum(axis=-1, keepdims=True)
        p /= total
        chosen = target[..., None]
        losses = np.log(total) - np.take_along_axis(z, chosen, axis=-1)
        np.put_along_axis(p, chosen, np.take_along_axis(p, chosen, axis=-1) - 1, axis=-1)
        return p, losses[..., 0]
    if loss == "sigmoid":
        known = target >= 0
        share = known / np.maximum(known.sum(axis=-1, keepdims=True), 1).astype(scores.dtype)
        softplus = np.maximum(scores, 0) + np.log1p(np.exp(-np.abs(scores)))
        error = (sigmoid(scores) - target) * share
        return error, ((softplus - target * scores) * share).sum(axis=-1)
    error = scores - target
    return error, 0.5 * (error**2).sum(axis=-1)


def row_losses(outputs: Any, target: Any, loss: str) -> Any:
    """The loss of every row, as a function PyTorch can differentiate.

    Softmax cross-entropy for classes, the mean over the labels that a row knows of the sigmoid
    cross-entropy, half the squared error for numbers, or a registered loss.
    """
    F = torch().nn.functional
    if loss == "softmax":
        flat = F.cross_entropy(outputs.flatten(0, -2), target.flatten(), reduction="none")
        return flat.view(target.shape)
    if loss in ("sigmoid", "binary"):
        return over_known(outputs, target)
    if loss == "squared":
        return 0.5 * ((outputs - target) ** 2).sum(dim=-1)
    return _own_losses(find_loss(loss), outputs, target)


def _own_losses(function: Any, outputs: Any, target: Any) -> Any:
    """What a function of a user's gives every row; means where it gives a row several numbers."""
    of_classes = not target.is_floating_point()
    leading = target.shape if of_classes else target.shape[:-1]
    axes = len(leading)
    flat = [part.flatten(0, axes - 1) if axes > 1 else part for part in (outputs, target)]
    losses = function(*flat)
    if losses.ndim == 0:
        raise UsageError(
            f"the loss {getattr(function, '__name__', function)!r} gives one number for a batch of "
            f"{len(flat[0])} rows, one for each is needed",
            hint="without a mean, such as reduction='none'",
        )
    if losses.ndim > 1:
        losses = losses.flatten(1).mean(dim=1)
    return losses.view(leading)


def over_known(outputs: Any, target: Any, weight: Any = 1.0) -> Any:
    """The mean cross-entropy of a sigmoid over the labels that a row knows; others are −1."""
    F = torch().nn.functional
    truth = target.clamp(min=0)
    each = F.binary_cross_entropy_with_logits(outputs, truth, reduction="none") * weight
    known = (target >= 0).to(each.dtype)
    return (each * known).sum(dim=-1) / known.sum(dim=-1).clamp(min=1)


def output_error(z: Any, target: Any, loss: str) -> tuple[Any, Any]:
    """L and dL/dz of every row."""
    t = torch()
    if loss in OUR_LOSSES:
        from solera.learn.averaging.training import dense_steps

        own: tuple[Any, Any] = dense_steps.output_error(z, target, loss)
        return own
    with t.enable_grad():
        leaf = z.detach().requires_grad_()
        losses = row_losses(leaf, target, loss)
        (error,) = t.autograd.grad(losses.sum(), leaf)
    return losses.detach(), error
