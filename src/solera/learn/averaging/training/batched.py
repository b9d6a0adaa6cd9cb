"""Local training of many clients at once: their parameters are the rows of one matrix.

Clients are ordered by their number of steps and trained in tiles. A tile is as many clients as fit
the processor's cache together, because a step reads and writes all their weights; on a GPU it is
the whole group. Clients that have finished are left out of later steps, and the missing rows of a
last, shorter batch weigh nothing, so a masked step moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from solera.core.clients import FloatArray, IntArray
from solera.core.rng import Bits
from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.batched_models import (
    BatchedDense,
    BatchedModel,
    Correction,
    batched_model_for,
    is_plain,
)
from solera.learn.averaging.training.batches import Batches, TrainingConfig, deal_batches
from solera.learn.averaging.training.client_rows import ClientRows
from solera.learn.averaging.training.compiled import leave_out_wrong_compiler
from solera.learn.averaging.training.devices import is_gpu, tensor_cores, torch
from solera.learn.averaging.training.layers import Pass
from solera.learn.averaging.training.losses import OUR_LOSSES
from solera.learn.averaging.training.recorded import repeated
from solera.learn.averaging.training.tile_threads import in_threads

TILE = 1 << 21
"""Bytes of parameters, and of rows, that a step works on, on a CPU: what its caches hold."""
_GATHERED = {"cpu": 1 << 20, "cuda": 1 << 31}
"""Bytes of rows gathered at once."""


LossesAndSteps = tuple[FloatArray, IntArray]
"""The mean loss of each client on its way, and the number of its steps."""


def tile_size(architecture: Architecture, device: str, itemsize: int, batch: int) -> int:
    """How many clients to train in one go; ``batch`` is the bytes of one client's batch.

    Convolutions of one client keep a CPU busy: stacked, they were slower in every measurement.
    """
    if device != "cpu":
        return 1 << 30
    if architecture.convolves:
        return 1
    return int(max(1, TILE // max(architecture.layout.size * itemsize, batch)))


def train_batched(
    architecture: Architecture,
    weights: Any,
    rows: ClientRows,
    config: TrainingConfig,
    correction: Correction,
    *,
    start: Any = None,
) -> LossesAndSteps:
    """Train each row of ``weights`` in place; the mean loss on the way and the number of steps.

    With ``start``, a vector, every row begins there, whatever it held, and becomes the difference
    to it.
    """
    t = torch()
    keys, clients = rows.keys, len(rows.sizes)
    batches = deal_batches(keys, rows.sizes, config)
    losses = t.zeros(clients, dtype=t.float64, device=weights.device)
    batch_bytes = batches.batch * rows.row_bytes
    size = tile_size(architecture, weights.device.type, weights.element_size(), batch_bytes)
    at_once = max(1, _GATHERED[weights.device.type] // (min(size, clients) * batch_bytes))
    counts, plain = batches.alike, is_plain(architecture, config, correction, weights.device)
    if counts is not None and plain and start is not None and not rows.sparse:
        network = BatchedDense(architecture, weights.data, config)
        train_alike = alike_tiles(network, start, losses, rows, batches, at_once)
        in_threads(train_alike, even_slices(clients, size))
        return losses.numpy() / sum(counts), np.full(clients, len(counts))

    def train(tile: tuple[IntArray, Any]) -> None:
        who, chosen = tile
        tile_weights = weights.data[chosen]  # autograd minds no change of other threads' rows
        tile_batches = batches.of(who)
        key = _recording_key(architecture, config, correction, start, tile_batches, at_once)
        if key is not None:
            x, target = rows.take(who, tile_batches.index)

            def changed(start: Any, x: Any, target: Any) -> tuple[Any, Any]:
                own = start.expand(len(who), -1).clone()
                network = batched_model_for(architecture, own, config, Correction(anchor=start))
                total = train_tile(
                    network, tile_batches, keys[who], at_once, lambda *_: (x, target)
                )
                return network.trained_weights().sub_(start), total

            weights[chosen], losses[chosen] = repeated(key, changed, (start, x, target))
            return
        if start is not None:
            tile_weights.copy_(start.expand_as(tile_weights))
        network = batched_model_for(architecture, tile_weights, config, correction.of(chosen))

        def take(first: int, columns: slice) -> Any:
            return rows.take(who[:first], tile_batches.index[:first, columns])

        losses[chosen] = train_tile(network, tile_batches, keys[who], at_once, take)
        network.trained_weights()
        if start is not None:
            tile_weights.sub_(start)
        if not isinstance(chosen, slice):
            weights[chosen] = tile_weights

    with tensor_cores(config.precision):
        in_threads(train, tiles(batches, size), weights.device.type)
    return losses.cpu().numpy() / batches.counts.sum(axis=1), batches.steps


def alike_tiles(
    network: BatchedDense, start: Any, losses: Any, rows: ClientRows, batches: Batches, at_once: int
) -> Callable[[slice], None]:
    """A function that trains a tile in one call, where all clients take the same steps.

    They begin at ``start`` and become the difference to it; ``network`` holds all of them.
    """
    places, own = rows.places(slice(None), batches.index)
    counts, batch, config = batches.alike, batches.batch, network.config
    assert counts is not None
    gathered = min(at_once, len(counts)) * batch
    layers = network.layers

    def train(tile: slice) -> None:
        network.pieces.train_tile_scripted(
            network.weights,
            start,
            losses,
            rows.X,
            rows.targets,
            places,
            own,
            rows.buffer((tile.stop - tile.start) * gathered),
            layers,
            config.loss,
            counts,
            batch,
            config.lr,
            at_once,
            tile.start,
            tile.stop,
        )

    return train


def _recording_key(
    architecture: Architecture,
    config: TrainingConfig,
    correction: Correction,
    start: Any,
    batches: Batches,
    at_once: int,
) -> Hashable | None:
    """Names the training of a tile that may come again with other numbers; None for all else.

    On a GPU, our own layers without draws, and clients that have equally many rows and start from
    the model that was sent.
    """
    if start is None or not is_gpu(start.device):
        return None
    if architecture.layers is None or architecture.draws or config.loss not in OUR_LOSSES:
        return None
    if not (correction.anchor is None or correction.anchor is start):
        return None
    counts = batches.counts
    unlike = (counts != counts[0]).any() or counts.shape[1] > at_once
    if unlike or not (correction.offset is None and correction.frozen is None):
        return None
    return architecture, config, counts.shape, counts[0].tobytes(), start.dtype, start.device


def tiles(batches: Batches, size: int) -> Iterator[tuple[IntArray, Any]]:
    """Positions of the clients of every tile, and an index of them that is a slice where it can.

    Those with the most steps come first. Tiles have at most ``size`` clients, all about as many.
    """
    order = np.argsort(-batches.steps, kind="stable")
    in_order = bool((np.diff(order) > 0).all())
    for tile in even_slices(len(order), size):
        who = order[tile]
        yield who, tile if in_order else who


def even_slices(clients: int, size: int) -> Iterator[slice]:
    """At most ``size`` clients each, all about as many."""
    even = -(-clients // -(-clients // size))
    for first in range(0, clients, even):
        yield slice(first, min(first + even, clients))


def train_tile(
    network: BatchedModel,
    tile_batches: Batches,
    keys: Bits,
    at_once: int,
    take: Callable[[int, slice], tuple[Any, Any]],
) -> Any:
    """All steps of a tile whose clients are ordered by their number of steps; the sums of losses.

    ``take`` gives the rows and targets of the first clients in some columns of the batches; they
    are asked for ``at_once`` steps.
    """
    t = torch()
    device, dtype = network.weights.device, network.weights.dtype
    total = t.zeros(len(keys), dtype=t.float64, device=device)
    counts, batch = tile_batches.counts[:, : (tile_batches.counts[0] > 0).sum()], tile_batches.batch
    at_work = (counts > 0).sum(axis=0)
    alike = ((counts == counts[0]).sum(axis=0) >= at_work).tolist()
    active, longest = at_work.tolist(), counts.max(axis=0).tolist()
    for first in range(0, counts.shape[1], at_once):
        steps = slice(first, first + at_once)
        x, target = take(active[first], slice(first * batch, (first + at_once) * batch))
        network.prepare(x)
        together = min(active[steps]) == len(total) and all(alike[steps])
        if together and network.train_alike(total, x, target, longest[steps], batch):
            continue
        pieces = zip(x.split(batch, dim=1), target.split(batch, dim=1), strict=True)
        for step, (x, target) in zip(range(counts.shape[1])[steps], pieces, strict=False):
            clients, most = active[step], longest[step]
            if x.shape[:2] != (clients, most):
                x, target = x[:clients, :most], target[:clients, :most]
            share: Any = 1.0 / most
            training = Pass(keys[:clients], step)
            if not alike[step]:
                count = counts[:clients, step, None]
                real = np.arange(most) < count
                training.real = t.from_numpy(real).to(device, dtype)
                share = t.from_numpy(real / count).to(device, dtype)
            if step == 0 and network.config.compile:
                leave_out_wrong_compiler(network, x, target, share, training)
            losses = network.step(x, target, share, training)
            (total if clients == len(total) else total[:clients]).add_(losses)
    return total
