"""What training minimises: targets, the loss of every row, and its derivative."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import Array
from solera.core.schema import class_codes
from solera.learn.averaging.models import find_loss
from solera.learn.averaging.training.devices import torch

OUR_LOSSES = ("softmax", "sigmoid", "binary", "squared")


def targets_of(y: Any, loss: str, classes: Array, dtype: Any) -> Array:
    """Class codes, or a matrix of labels or numbers."""
    if loss == "softmax":
        return class_codes(y, classes)
    if loss == "binary":
        y = class_codes(y, classes)
    return np.asarray(y, dtype=dtype).reshape(len(y), -1)


def row_losses(outputs: Any, target: Any, loss: str) -> Any:
    """The loss of every row, as a function PyTorch can differentiate.

    Softmax cross-entropy for classes, the mean over labels of the sigmoid cross-entropy, half the
    squared error for numbers, or a registered loss.
    """
    F = torch().nn.functional
    if loss == "softmax":
        flat = F.cross_entropy(outputs.flatten(0, -2), target.flatten(), reduction="none")
        return flat.view(target.shape)
    if loss in ("sigmoid", "binary"):
        return F.binary_cross_entropy_with_logits(outputs, target, reduction="none").mean(dim=-1)
    if loss == "squared":
        return 0.5 * ((outputs - target) ** 2).sum(dim=-1)
    return find_loss(loss)(outputs, target)


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
