"""DP-SGD: every row's gradient is clipped, their sum is noised (Abadi et al. 2016, Algorithm 1).

In each step a client draws its rows, each by itself with probability q, and follows

    g̃ = (Σ_i g_i min(1, C / ‖g_i‖) + N(0, σ²C²)) / (q n)

In a closed job every owner adds a share of the noise to its one step of a round, N(0, σ²C²/share),
and n is the mean number of rows of an owner, so that the mean of all updates is one such step.

No row is looped over. In a chain of dense layers the gradient of row i is the outer product of a
layer's input aᵢ and its error eᵢ, so its norm is ‖aᵢ‖ ‖eᵢ‖ and no row's gradient is ever written
down (Goodfellow 2015; Li et al. 2022, *ghost clipping*): errors are scaled, then multiplied as in
training without noise. Other networks are trained as if every row were a client of its own, whose
gradients lie in the lines of one matrix. Which rows are drawn is as secret as the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.clients import IntArray
from solera.core.errors import Refusal
from solera.core.rng import Bits, random_bits
from solera.learn.averaging.private_updates import steps_of
from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.batched import LossesAndSteps, tile_size
from solera.learn.averaging.training.batched_models import (
    BatchedDense,
    BatchedModel,
    Correction,
    batched_model_for,
)
from solera.learn.averaging.training.batches import TrainingConfig
from solera.learn.averaging.training.client_rows import ClientRows
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.layers import Pass
from solera.learn.averaging.training.losses import output_error
from solera.trust.randomness import Randomness

_ROW_GRADIENTS = 1 << 26
"""Numbers of gradients of rows that are held at once."""
_LEAST = 1e-12


class PrivateDense(BatchedDense):
    """Chains of dense layers, whose rows' gradients have known norms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fused:  # noise comes between the gradient and the step
            self.fused = False
            self._gradient = torch().empty_like(self.weights)
            self._into, self._keep, self._scale = self._read(self._gradient), 0.0, 1.0

    def clipped(self, x: Any, target: Any, real: Any, clip: float, training: Pass) -> Any:
        """Σ of the clipped gradients of each client's rows that are ``real``."""
        clients = len(x)
        views = [(W[:clients], b[:clients]) for W, b in self._views]
        into = [(W[:clients], b[:clients]) for W, b in self._into]
        inputs, masks, z = [x], [], x
        for i, block in enumerate(self.blocks):
            z = self._affine(i, z, *views[i], training)
            if block.activation is not None:
                z = self.pieces.activate(block.activation, z)
                if block.dropout is not None:
                    masks.append(block.dropout.mask(training, tuple(z.shape), z))
                    z = z * masks[-1]
                inputs.append(z)
        _, error = output_error(z, target, self.config.loss)
        errors = [error]
        for i in range(len(self.blocks) - 1, 0, -1):
            W = views[i][0]
            before = torch().bmm(error, W.transpose(1, 2) if self.blocks[i].wide else W)
            mask = masks[i - 1] if masks else None
            kind = self.blocks[i - 1].activation or ""
            error = self.pieces.error_before(kind, inputs[i], before, mask)
            errors.insert(0, error)
        scale = _scale(_squared_norms(inputs, errors), clip, real)
        for i, error in enumerate(errors):
            self._write(i, into[i], inputs[i], error * scale.unsqueeze(-1), 1.0, training)
        return self._gradient[:clients, : self.trained]


def _squared_norms(inputs: list[Any], errors: list[Any]) -> Any:
    """Σ over layers of (‖aᵢ‖² + 1) ‖eᵢ‖²; the one is the bias."""
    total: Any = 0.0
    for a, e in zip(inputs, errors, strict=True):
        total = total + (a.square().sum(dim=2) + 1) * e.square().sum(dim=2)
    return total


class RowsAsClients:
    """Other networks: the gradient of a row is that of a client who has this row alone."""

    def __init__(self, network: BatchedModel) -> None:
        self.network = network
        self.weights = network.weights

    def clipped(self, x: Any, target: Any, real: Any, clip: float, training: Pass) -> Any:
        """Σ of the clipped gradients of each client's rows that are ``real``."""
        clients, rows = x.shape[:2]
        keys = random_bits(training.keys[:, None], (9 << 56) + np.arange(rows))
        total = self.weights.new_zeros(clients, self.network.trained)
        at_once = max(1, _ROW_GRADIENTS // (clients * self.weights.shape[1]))
        for first in range(0, rows, at_once):
            part = slice(first, first + at_once)
            gradients = self._of_rows(x[:, part], target[:, part], keys[:, part], training.step)
            squares = gradients.square().sum(dim=2)
            scale = _scale(squares, clip, real[:, part])
            total += torch().bmm(scale.unsqueeze(1), gradients).squeeze(1)
        return total

    def _of_rows(self, x: Any, target: Any, keys: Bits, step: int) -> Any:
        """(clients, rows, trained)."""
        clients, rows = x.shape[:2]
        network = self.network
        each = batched_model_for(
            network.architecture,
            self.weights[:clients].repeat_interleave(rows, dim=0),
            network.config,
            Correction(),
        )
        one = Pass(keys.reshape(-1), step)
        gradient, _ = each.gradient(
            x.flatten(0, 1)[:, None], target.flatten(0, 1)[:, None], 1.0, one
        )
        return gradient.view(clients, rows, -1)


def _scale(squares: Any, clip: float, real: Any) -> Any:
    """min(1, C / norm) of rows, 0 for padding; a row whose gradient is not finite counts as 0."""
    scale = (clip / squares.sqrt().clamp(min=_LEAST)).clamp(max=1.0)
    return scale * real


def train_private(
    architecture: Architecture,
    weights: Any,
    rows: ClientRows,
    config: TrainingConfig,
    correction: Correction,
    privacy: Any,
    draws: Sequence[Randomness],
    *,
    start: Any,
) -> LossesAndSteps:
    """Train each line of ``weights`` from ``start`` and leave the difference to it in place.

    No loss is told: it would be a number about rows without noise.
    """
    if architecture.mixes_rows:
        raise Refusal("batch normalisation mixes rows, whose gradients cannot be clipped alone")
    t = torch()
    steps = steps_of({"steps": config.steps, "epochs": config.epochs}, privacy["rate"] or 1.0)
    size = tile_size(architecture, weights.device.type, weights.element_size(), 1)
    with t.no_grad():
        for first in range(0, len(weights), size):
            who = np.arange(first, min(first + size, len(weights)))
            tile = weights[first : first + size]
            tile.copy_(start.expand_as(tile))
            network = _network_for(architecture, tile, config, correction.of(who))
            drawn = draws[first : first + size]
            for step in range(steps):
                _step(network, rows, who, drawn, privacy, step)
            tile.sub_(start)
    return np.zeros(len(weights)), np.full(len(weights), steps)


def _network_for(
    architecture: Architecture, weights: Any, config: TrainingConfig, correction: Correction
) -> tuple[BatchedModel, PrivateDense | RowsAsClients]:
    """What follows gradients, and what computes them."""
    if architecture.dense:
        dense = PrivateDense(architecture, weights, config, correction)
        return dense, dense
    network = batched_model_for(architecture, weights, config, correction)
    return network, RowsAsClients(network)


def _step(
    networks: tuple[BatchedModel, PrivateDense | RowsAsClients],
    rows: ClientRows,
    who: IntArray,
    draws: Sequence[Randomness],
    privacy: Any,
    step: int,
) -> None:
    """Draw rows, clip, add noise, and follow."""
    t = torch()
    network, gradients = networks
    rate = privacy["rate"] or 1.0
    sizes = rows.sizes[who]
    chosen = [
        np.flatnonzero(draw.chosen(int(n), rate)) for draw, n in zip(draws, sizes, strict=True)
    ]
    widest = max(1, max(map(len, chosen)))
    index = np.zeros((len(who), widest), dtype=np.int64)
    real = np.zeros((len(who), widest))
    for i, places in enumerate(chosen):
        index[i, : len(places)] = places
        real[i, : len(places)] = 1.0
    x, target = rows.take(who, index)
    marks = t.from_numpy(real).to(x)
    clip, training = privacy["clip"], Pass(rows.keys[who], step, moved={})
    g = gradients.clipped(x, target, marks, clip, training)
    single, plain = g.dtype == t.float32, network.config.plain and network.uncorrected
    for i, (draw, size) in enumerate(zip(draws, sizes.tolist(), strict=True)):
        noise = t.from_numpy(draw.normal(g.shape[1], single=single)).to(g)
        g[i].add_(noise, alpha=privacy["noise"] * clip / math.sqrt(privacy["share"]))
        expected = max(rate * privacy.get("rows", size), 1e-300)
        if plain:  # a pass over all parameters less
            network.weights[i, : network.trained].add_(g[i], alpha=-network.config.lr / expected)
        else:
            g[i].div_(expected)
    if not plain:
        network._follow(g, step + 1)
