"""What goes wrong in real federations, on demand and seeded."""

from __future__ import annotations

import numpy as np

from solera.core import rng
from solera.core.clients import IntArray
from solera.core.component import Component
from solera.core.constraints import Fraction, NonNegative
from solera.core.engine import Ask
from solera.engines.faults import Faults


class Failures(Component):
    """Clients that drop out, straggle, crash or send damaged replies.

    Each is the probability that it happens to a client in one ask. ``dropout``: the client cannot
    be reached. ``straggle``: its reply is late by a time drawn from an exponential distribution
    with mean ``delay`` seconds of simulated time; an ask with a deadline gives it up. ``crash``: it
    dies during the task. ``corrupt``: some bytes of its reply are changed, added or lost.
    """

    def __init__(
        self,
        *,
        dropout: Fraction = 0.0,
        straggle: Fraction = 0.0,
        delay: NonNegative = 10.0,
        crash: Fraction = 0.0,
        corrupt: Fraction = 0.0,
    ) -> None:
        self.dropout = dropout
        self.straggle = straggle
        self.delay = delay
        self.crash = crash
        self.corrupt = corrupt

    def faults(self, ask: Ask, clients: IntArray) -> Faults:
        keys = rng.stream_keys(ask.seed, f"failures/{ask.task}", ask.round, clients)
        dropout, straggle, crash, corrupt, delay = (rng.uniform(keys, i) for i in range(5))
        late = straggle < self.straggle
        return Faults(
            dropped=dropout < self.dropout,
            crashed=crash < self.crash,
            corrupted=corrupt < self.corrupt,
            delay=np.where(late, -np.log1p(-delay) * self.delay, 0.0),
        )

    def damage(self, frame: bytes, ask: Ask, client: int) -> bytes:
        draw = rng.generator(ask.seed, f"damage/{ask.task}", ask.round, client)
        damaged = bytearray(frame)
        for _ in range(int(draw.integers(1, 5))):
            place = int(draw.integers(len(damaged)))
            action = draw.integers(3)
            if action == 0:
                damaged[place] ^= 1 << int(draw.integers(8))
            elif action == 1:
                damaged.insert(place, int(draw.integers(256)))
            elif len(damaged) > 1:
                del damaged[place]
        return bytes(damaged)
