"""How long simulated clients take: what asynchronous learners order replies by."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from solera.core import rng
from solera.core.clients import IntArray
from solera.core.component import Component
from solera.core.errors import UsageError


class Arrivals(Protocol):
    """Says when replies arrive."""

    def durations(self, seed: int, turn: int, clients: IntArray) -> NDArray[np.float64]:
        """Seconds from the ask to the reply of each client, in its ``turn``-th turn."""


class Durations(Component):
    """Every client has a speed of its own, and every reply some jitter around it.

    A client's mean is drawn between ``fastest`` and ``slowest`` seconds, evenly in the logarithm;
    a reply takes that times a factor between 1 − ``jitter`` and 1 + ``jitter``.
    """

    def __init__(self, fastest: float = 1.0, *, slowest: float = 10.0, jitter: float = 0.2) -> None:
        self.fastest = fastest
        self.slowest = slowest
        self.jitter = jitter

    def durations(self, seed: int, turn: int, clients: IntArray) -> NDArray[np.float64]:
        if not 0 < self.fastest <= self.slowest:
            raise UsageError.of(self, "fastest", self.fastest, "must be in (0, slowest]")
        if not 0 <= self.jitter < 1:
            raise UsageError.of(self, "jitter", self.jitter, "must be in [0, 1)")
        own = _uniform(rng.stream_keys(seed, "durations", 0, clients), 0)
        shake = _uniform(rng.stream_keys(seed, "durations", turn + 1, clients), 1)
        mean = self.fastest * (self.slowest / self.fastest) ** own
        return np.asarray(mean * (1 + self.jitter * (2 * shake - 1)))


def _uniform(keys: rng.Bits, counter: int) -> NDArray[np.float64]:
    return np.asarray((rng.random_bits(keys, counter) >> np.uint64(11)) * 2.0**-53)
