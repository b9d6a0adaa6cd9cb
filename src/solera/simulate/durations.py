"""How long simulated clients take: what asynchronous learners order replies by."""

from __future__ import annotations

import numpy as np

from solera.core import rng
from solera.core.clients import FloatArray, IntArray
from solera.core.component import Component
from solera.core.constraints import Positive, ProperFraction
from solera.core.errors import UsageError


class Durations(Component):
    """Every client has a speed of its own, and every reply some jitter around it.

    A client's mean is drawn between ``fastest`` and ``slowest`` seconds, evenly in the logarithm;
    a reply takes that times a factor between 1 − ``jitter`` and 1 + ``jitter``.
    """

    def __init__(
        self, fastest: Positive = 1.0, *, slowest: Positive = 10.0, jitter: ProperFraction = 0.2
    ) -> None:
        self.fastest = fastest
        self.slowest = slowest
        self.jitter = jitter

    def check_params(self) -> None:
        super().check_params()
        if self.fastest > self.slowest:
            raise UsageError.of(self, "fastest", self.fastest, "must be in (0, slowest]")

    def durations(self, seed: int, turn: int, clients: IntArray) -> FloatArray:
        """Seconds from the ask to the reply of each client, in its ``turn``-th turn."""
        own = rng.uniform(rng.stream_keys(seed, "durations", 0, clients), 0)
        shake = rng.uniform(rng.stream_keys(seed, "durations", turn + 1, clients), 1)
        mean = self.fastest * (self.slowest / self.fastest) ** own
        return np.asarray(mean * (1 + self.jitter * (2 * shake - 1)))
