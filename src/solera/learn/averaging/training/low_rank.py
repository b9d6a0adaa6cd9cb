"""Training that never writes down the first layer of each client.

A step of gradient descent changes the first layer by −η xᵀe, so after some steps it is W + XᵀE:
X are the rows of all these steps, which are known from the start, and E their errors times −η.
Hence a later step needs no weights of its own, x (W + XᵀE) = x W + (x Xᵀ) E, rows of all clients
meet the same W in one large product, and the weighted mean over clients is one more:
W + Σ w XᵀE. For few rows and many outputs this is less work, and a matrix clients × parameters is
neither filled nor read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray, IntArray
from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.batched import tiles, train_tile
from solera.learn.averaging.training.batched_models import BatchedDense
from solera.learn.averaging.training.batches import TrainingConfig, deal_batches
from solera.learn.averaging.training.client_rows import ClientRows
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.layers import Dense, Pass
from solera.learn.averaging.training.layout import Tensors
from solera.learn.averaging.training.lazy_updates import LazyUpdates
from solera.learn.averaging.training.tile_threads import in_threads

_ROWS = 1 << 22
"""Bytes of rows that are trained on at once."""


def low_rank_pays(
    architecture: Architecture, config: TrainingConfig, sizes: IntArray, device: Any
) -> bool:
    """Whether the products of rows with rows cost less than they save, and padding little.

    A layer with few outputs is so small that its matrices cost less than reading rows twice.
    """
    if device.type != "cpu" or not (architecture.dense and config.plain):
        return False
    first = _first(architecture)
    if not first.wide:
        return False
    widest = int(sizes.max())
    if len(sizes) * widest > 2 * sizes.sum():
        return False
    batch = min(config.batch_size or widest, widest)
    steps = -(-widest // batch) * config.epochs if config.steps is None else config.steps
    return bool((steps - 1) * batch <= first.outputs)


def _first(architecture: Architecture) -> Dense:
    assert architecture.layers is not None
    layer = architecture.layers[0]
    assert isinstance(layer, Dense)
    return layer


@dataclass(eq=False)
class LowRankDense(BatchedDense):
    """The layers after the first as :class:`BatchedDense`; of the first, the errors.

    ``weights`` are those after ``first``, the weights of the first layer: its bias comes first.
    ``batch`` is the number of rows of a step.
    """

    first: Any = None
    batch: int = 0
    errors: Any = None

    def _named(self, matrix: Any) -> Tensors:
        views = self.architecture.training_layout.views(matrix, first=1)
        return {"0.weight": matrix, **views}  # the matrix stands for what is never read

    def prepare(self, x: Any) -> None:
        clients, rows, width = x.shape
        flat = x.reshape(-1, width)
        self._products = (flat @ self.first).view(clients, rows, -1)
        self._x = x
        self.errors = x.new_zeros(self._products.shape)

    def _train_plain(self, *steps: Any) -> None:
        self.pieces.train_low_rank_scripted(*steps, self._products, self.errors)

    def _affine(self, i: int, x: Any, W: Any, b: Any, training: Pass) -> Any:
        if i:
            return super()._affine(i, x, W, b, training)
        clients, rows = x.shape[:2]
        before = training.step * self.batch
        z = self._products[:clients, before : before + rows]
        if before:
            alike = torch().bmm(x, self._x[:clients, :before].transpose(1, 2))
            z = torch().baddbmm(z, alike, self.errors[:clients, :before])
        return z + b

    def _write(self, i: int, into: Any, x: Any, error: Any, scale: float, training: Pass) -> None:
        if i:
            super()._write(i, into, x, error, scale, training)
            return
        clients, rows = error.shape[:2]
        before = training.step * self.batch
        torch().mul(error, scale, out=self.errors[:clients, before : before + rows])
        into[1].add_(error.sum(dim=1, keepdim=True), alpha=scale)


class LowRankUpdates(LazyUpdates):
    """Updates whose first layer is XᵀE: ``x`` (clients, rows, width) and ``errors``.

    ``others`` are the changes of the other parameters, in the order of training.
    """

    __slots__ = arrays = ("x", "errors", "others")
    x: Any
    errors: Any
    others: Any

    def matrix(self, chosen: Any) -> Array:
        x, errors = self.x[chosen], self.errors[chosen]
        first = torch().bmm(x.transpose(1, 2), errors).flatten(1)
        return self.restored(torch().cat([first, self.others[chosen]], dim=1))

    def weighted_sum(self, weights: FloatArray, chosen: slice = slice(None)) -> Array:
        w = self.errors.new_tensor(weights)
        x, errors = self.x[chosen].flatten(0, 1), self.errors[chosen] * w[:, None, None]
        first = (x.T @ errors.flatten(0, 1)).flatten()
        return self.restored(torch().cat([first, w @ self.others[chosen]]))

    @property
    def kind(self) -> tuple[int, str]:
        first = self.x.shape[2] * self.errors.shape[2]
        return first + self.others.shape[1], str(self.errors.dtype).removeprefix("torch.")

    def finite_values(self) -> BoolArray:
        in_first = self.errors.flatten(1).isfinite().all(dim=1)
        return np.asarray((in_first & self.others.isfinite().all(dim=1)).numpy())


def train_low_rank(
    architecture: Architecture, start: Any, rows: ClientRows, config: TrainingConfig
) -> LowRankUpdates:
    """What training from ``start`` changes at each client, with its mean loss and its rows.

    The first layer is a wide one; see :func:`low_rank_pays`.
    """
    t = torch()
    keys, sizes = rows.keys, rows.sizes
    batches = deal_batches(keys, sizes, config)
    slot, layer = architecture.training_layout.slots[0], _first(architecture)
    W, others = start[: slot.stop].view(slot.parameter.training_shape), start[slot.stop :]
    changed = others.expand(len(sizes), -1).clone()
    columns = batches.index.shape[1]
    x, targets = rows.take(np.arange(len(sizes)), batches.index, keep=True)
    errors = start.new_empty(len(sizes), columns, layer.outputs)
    losses = t.empty(len(sizes), dtype=t.float64)

    def train(tile: tuple[IntArray, Any]) -> None:
        who, chosen = tile
        tile_weights = changed[chosen]
        network = LowRankDense(architecture, tile_weights, config, first=W, batch=batches.batch)
        tile_batches = batches.of(who)
        losses[chosen] = train_tile(
            network,
            tile_batches,
            keys[who],
            tile_batches.counts.shape[1],
            lambda first, columns: (x[chosen], targets[chosen]),
        )
        errors[chosen] = network.errors
        changed[chosen] = tile_weights.sub_(others)

    in_threads(train, tiles(batches, max(1, _ROWS // (columns * rows.row_bytes))))
    rest = {
        "loss": losses.numpy() / batches.counts.sum(axis=1),
        "rows": sizes,
    }
    return LowRankUpdates(x, errors, changed, rest=rest, layout=architecture.training_layout)
