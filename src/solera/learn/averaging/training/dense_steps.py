"""The pieces of a step of dense layers, and whole steps of clients that have equally many rows.

PyTorch gives up Python's lock in every operation, also where it only looks at numbers in another
way. Threads that train tiles side by side then put each other to sleep and wake each other five
times a step, which took them a third of their time. TorchScript runs the same operations in the
same order, to the same bits, and gives the lock up once for many steps. PyTorch deprecates it for
compilers that keep the lock or need one of C++; where it does not work, steps run as they stand
here.
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
    known = (target >= 0).to(z.dtype)  # of labels, −1 is unknown
    share = known / known.sum(dim=-1, keepdim=True).clamp(min=1)
    losses = (z.clamp(min=0) - z * target + z.abs().neg_().exp_().log1p_()).mul_(share).sum(dim=-1)
    return losses, (z.sigmoid() - target).mul_(share)


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


def behind_first(
    z: Tensor,
    target: Tensor,
    layers: list[tuple[Tensor, Tensor, bool, str]],
    loss: str,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Change all layers but the first, which has given ``z``; the losses, and its error."""
    inputs = [activate(layers[0][3], z)]
    for W, b, wide, activation in layers[1:]:
        inputs.append(activate(activation, affine(inputs[-1], W, b, wide)))
    losses, error = output_error(inputs[-1], target, loss)
    for back in range(1, len(layers)):
        W, b, wide, _ = layers[-back]
        h = inputs[-back - 1]
        before = torch.bmm(error, W.transpose(1, 2) if wide else W)
        write(W, b, h, error, wide, 1.0, scale)
        error = error_before(layers[-back - 1][3], h, before, None)
    return losses, error


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
    W, b, wide, _ = layers[0]
    for k, rows in enumerate(counts):
        own, meant = x[:, k * batch : k * batch + rows], target[:, k * batch : k * batch + rows]
        scale = -lr * (1.0 / rows)
        losses, error = behind_first(affine(own, W, b, wide), meant, layers, loss, scale)
        write(W, b, own, error, wide, 1.0, scale)
        total.add_(losses.sum(dim=1))


def train_tile(
    changes: Tensor,
    start: Tensor,
    total: Tensor,
    X: Tensor,
    targets: Tensor,
    places: Tensor,
    own: Tensor,
    buffer: Tensor,
    layers: list[tuple[Tensor, Tensor, bool, str]],
    loss: str,
    counts: list[int],
    batch: int,
    lr: float,
    at_once: int,
    first: int,
    last: int,
) -> None:
    """All steps of some clients, from the ``first`` to before the ``last``, of many alike.

    ``changes`` become what training moves from ``start``; ``layers`` are views of them. ``places``
    are the rows of X that each client takes, ``own`` those of ``targets``, both (clients,
    steps · batch). Rows of ``at_once`` steps are gathered into ``buffer``.
    """
    mine = changes[first:last]
    mine.copy_(start.expand_as(mine))
    tile = [(W[first:last], b[first:last], wide, kind) for W, b, wide, kind in layers]
    for step in range(0, len(counts), at_once):
        columns = places[first:last, step * batch : (step + at_once) * batch]
        rows = buffer[: columns.numel()]
        torch.index_select(X, 0, columns.reshape(-1), out=rows)
        x = rows.to(mine.dtype).view(columns.shape[0], columns.shape[1], -1)
        chosen = own[first:last, step * batch : (step + at_once) * batch]
        target = targets.index_select(0, chosen.reshape(-1)).unflatten(0, chosen.shape)
        some = counts[step : step + at_once]
        train(total[first:last], x, target, tile, loss, some, batch, lr)
    mine.sub_(start)


def train_low_rank(
    total: Tensor,
    x: Tensor,
    target: Tensor,
    layers: list[tuple[Tensor, Tensor, bool, str]],
    loss: str,
    counts: list[int],
    batch: int,
    lr: float,
    products: Tensor,
    errors: Tensor,
) -> None:
    """The same without the weights of the first layer.

    ``products`` are those of all rows with what it was at first, ``errors`` become its change; see
    :mod:`solera.learn.averaging.training.low_rank`.
    """
    b = layers[0][1]
    for k, rows in enumerate(counts):
        first, last = k * batch, k * batch + rows
        z = products[:, first:last]
        if first > 0:
            alike = torch.bmm(x[:, first:last], x[:, :first].transpose(1, 2))
            z = torch.baddbmm(z, alike, errors[:, :first])
        scale = -lr * (1.0 / rows)
        losses, error = behind_first(z + b, target[:, first:last], layers, loss, scale)
        torch.mul(error, scale, out=errors[:, first:last])
        b.add_(error.sum(dim=1, keepdim=True), alpha=scale)
        total.add_(losses.sum(dim=1))


def _scripted(steps: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.jit.script(steps)
        except (AttributeError, OSError, RuntimeError):  # OSError: this file is not at hand
            return steps


train_scripted = _scripted(train)
train_tile_scripted = _scripted(train_tile)
train_low_rank_scripted = _scripted(train_low_rank)
