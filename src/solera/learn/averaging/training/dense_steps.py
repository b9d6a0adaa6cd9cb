"""The pieces of a step of dense layers, and whole steps of clients that have equally many rows.

PyTorch gives up Python's lock in every operation, also where it only looks at numbers in another
way. Threads that train tiles side by side then put each other to sleep and wake each other five
times a step, which took them a third of their time. TorchScript runs the same operations in the
same order, to the same bits, and gives the lock up once for many steps. PyTorch deprecates it for
compilers that keep the lock or need one of C++; where it is gone, steps run as they stand here.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor


def affine(x: Tensor, W: Tensor, b: Tensor, wide: bool) -> Tensor:
    """x W + b, (clients, rows, outputs); few outputs lie column by column."""
    if wide:
        return torch.baddbmm(b, x, W)
    return torch.baddbmm(b.transpose(1, 2), W, x.transpose(1, 2)).transpose(1, 2)


def activate(kind: str, z: Tensor) -> Tensor:
    """The activation of z, in its place."""
    if kind == "relu":
        z.relu_()
    elif kind == "tanh":
        z.tanh_()
    elif kind == "sigmoid":
        z.sigmoid_()
    return z


def output_error(z: Tensor, target: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """L and dL/dz of every row, for one of our losses."""
    if loss == "softmax":
        chosen = target.unsqueeze(-1)
        # Columns next to each other are normalised seven times faster than rows of ten.
        if z.is_contiguous():
            log_p = z.log_softmax(-1)
        else:
            log_p = z.transpose(1, 2).log_softmax(1).transpose(1, 2)
        losses = log_p.gather(-1, chosen).squeeze(-1).neg_()
        return losses, log_p.exp_().scatter_(-1, chosen, -1.0, reduce="add")
    if loss == "squared":
        error = z - target
        return 0.5 * (error**2).sum(dim=-1), error
    losses = (z.clamp(min=0) - z * target + z.abs().neg_().exp_().log1p_()).mean(dim=-1)
    return losses, (z.sigmoid() - target).div_(z.shape[-1])


def error_before(kind: str, h: Tensor, error: Tensor, mask: Tensor | None) -> Tensor:
    """The error before the activation whose (dropped-out) result is h."""
    if mask is not None:
        error = error.mul_(mask)
        h = h / mask.clamp(min=1)
    if kind == "relu":
        return torch.ops.aten.threshold_backward(error, h, 0)
    return error.mul_(1 - h * h if kind == "tanh" else h * (1 - h))


def write(
    W: Tensor, b: Tensor, x: Tensor, error: Tensor, wide: bool, keep: float, scale: float
) -> None:
    """W ← keep W + scale xᵀe; b the same, as if x were one; ``keep`` is 1 or 0."""
    if wide:
        W.baddbmm_(x.transpose(1, 2), error, beta=keep, alpha=scale)
    else:
        W.baddbmm_(error.transpose(1, 2), x, beta=keep, alpha=scale)
    total = error.sum(dim=1, keepdim=True)
    if keep > 0:
        b.add_(total, alpha=scale)
    else:
        torch.mul(total, scale, out=b)


def train(
    total: Tensor,
    x: Tensor,
    target: Tensor,
    layers: list[tuple[Tensor, Tensor, bool, str]],
    loss: str,
    counts: list[int],
    batch: int,
    lr: float,
) -> None:
    """Steps of plain gradient descent, which change the layers in place; ``total`` adds up losses.

    ``x`` and ``target`` are (clients, steps · batch, …), of which ``counts`` rows are real in each
    step; a layer is its weights, biases, whether it is wide, and the activation that follows.
    """
    for k, rows in enumerate(counts):
        inputs = [x[:, k * batch : k * batch + rows]]
        for W, b, wide, activation in layers:
            inputs.append(activate(activation, affine(inputs[-1], W, b, wide)))
        losses, error = output_error(inputs[-1], target[:, k * batch : k * batch + rows], loss)
        scale = -lr * (1.0 / rows)
        for back in range(len(layers)):
            i = len(layers) - 1 - back
            W, b, wide, _ = layers[i]
            before = error
            if i > 0:
                before = torch.bmm(error, W.transpose(1, 2) if wide else W)
            write(W, b, inputs[i], error, wide, 1.0, scale)
            if i > 0:
                error = error_before(layers[i - 1][3], inputs[i], before, None)
        total.add_(losses.sum(dim=1))


def _scripted(steps: Any) -> Any:
    if not hasattr(torch, "jit"):
        return steps
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(steps)


train_scripted = _scripted(train)
