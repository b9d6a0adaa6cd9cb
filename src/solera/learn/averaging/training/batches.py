"""How a client trains, and which of its rows it takes in each of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import IntArray
from solera.core.rng import Bits, random_bits

ADAM = (0.9, 0.999, 1e-8)
"""β1, β2 and ε of the local Adam (Kingma & Ba 2015)."""


@dataclass(frozen=True)
class TrainingConfig:
    """How a client trains: loss, optimiser, and for how long.

    ``steps`` counts batches and takes the place of ``epochs`` when it is given. ``mu`` is the
    strength of FedProx's pull towards the model that training is anchored to. ``precision`` and
    ``compile`` say how a GPU computes; see :class:`~solera.learn.averaging.learner.FedAvg`.
    """

    loss: str
    lr: float
    optimiser: str = "sgd"
    momentum: float = 0.0
    l2: float = 0.0
    mu: float = 0.0
    epochs: int = 1
    steps: int | None = None
    batch_size: int | None = None
    precision: str = "float32"
    compile: bool = False
    shuffle: bool = True

    @property
    def plain(self) -> bool:
        """Gradient descent alone, without memory or pull."""
        return self.optimiser == "sgd" and not (self.momentum or self.l2 or self.mu)


@dataclass(frozen=True)
class Batches:
    """Which rows each client takes in each of its steps.

    ``index`` is (clients, steps · batch), ``counts`` (clients, steps) says how many of a batch are
    real; 0 means that the client has finished. ``alike`` are the counts of every client, where they
    are the same.
    """

    index: IntArray
    counts: IntArray
    batch: int
    alike: list[int] | None = None

    @property
    def steps(self) -> IntArray:
        """How many steps each client takes."""
        return np.asarray((self.counts > 0).sum(axis=1))

    def of(self, who: IntArray) -> Batches:
        """The same for some of the clients."""
        return Batches(self.index[who], self.counts[who], self.batch)


def shuffle_rows(keys: Bits, sizes: IntArray, epoch: int) -> IntArray:
    """A random order of each client's rows, one line per client; padding comes last."""
    columns = np.arange(int(sizes.max()))
    bits = random_bits(keys[:, None], (epoch << 32) + columns)
    bits[columns >= sizes[:, None]] = np.iinfo(np.uint64).max
    return np.argsort(bits, axis=1, kind="stable")


def shuffled_batches(
    key: Bits, rows: int, batch_size: int | None, epochs: int
) -> Iterator[IntArray]:
    """The rows of one client in batches, in a new order in every epoch; None: all in one batch."""
    size = batch_size or rows
    for epoch in range(epochs):
        order = shuffle_rows(key, np.array([rows]), epoch)[0]
        for first in range(0, rows, size):
            yield order[first : first + size]


def deal_batches(keys: Bits, sizes: IntArray, config: TrainingConfig) -> Batches:
    """Cut every client's rows into batches, in a new order in every epoch unless told otherwise."""
    widest = int(sizes.max())
    batch = min(config.batch_size or widest, widest)
    if widest == sizes.min():
        return _deal_alike(keys, widest, config, batch)
    per_epoch = -(-sizes // batch)
    steps = per_epoch * config.epochs if config.steps is None else np.full_like(sizes, config.steps)
    columns, every = np.arange(widest), np.arange(int(steps.max()))
    left = sizes[:, None] - every % per_epoch[:, None] * batch
    counts = np.where(every < steps[:, None], np.minimum(left, batch), 0)
    index = np.zeros((len(sizes), len(every) * batch), dtype=np.int64)
    real = columns < sizes[:, None]
    for epoch in range(int((-(-steps // per_epoch)).max())):
        order = np.broadcast_to(columns, real.shape)
        if config.shuffle:
            order = shuffle_rows(keys, sizes, epoch)
        place = epoch * per_epoch[:, None] + columns // batch
        client, column = np.nonzero(real & (place < steps[:, None]))
        cell = place[client, column] * batch + column % batch
        index[client, cell] = order[client, column]
    return Batches(index, counts, batch)


def _deal_alike(keys: Bits, rows: int, config: TrainingConfig, batch: int) -> Batches:
    """The same for clients that have equally many rows."""
    per_epoch = -(-rows // batch)
    steps = per_epoch * config.epochs if config.steps is None else config.steps
    counts = [min(batch, rows - step % per_epoch * batch) for step in range(steps)]
    index = np.zeros((len(keys), steps * batch), dtype=np.int64)
    for epoch in range(-(-steps // per_epoch)):
        order: Any = np.arange(rows)[None]
        if config.shuffle:
            bits = random_bits(keys[:, None], (epoch << 32) + np.arange(rows))
            order = np.argsort(bits, axis=1, kind="stable")
        into = index[:, epoch * per_epoch * batch :][:, :rows]
        into[:] = order[:, : into.shape[1]]
    return Batches(index, np.full((len(keys), steps), counts), batch, alike=counts)
