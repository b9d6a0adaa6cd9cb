"""What happens to simulated clients during an ask, and who answers all the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from solera.core.clients import BoolArray, FloatArray, IntArray
from solera.core.engine import Ask
from solera.core.replies import Failure


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong at each client of a block: masks, and seconds of delay."""

    dropped: BoolArray
    crashed: BoolArray
    corrupted: BoolArray
    delay: FloatArray


class FaultModel(Protocol):
    """Decides what goes wrong; :class:`solera.simulate.failures.Failures` is one."""

    def faults(self, ask: Ask, clients: IntArray) -> Faults:
        """The faults of these clients in this ask, the same however clients are grouped."""

    def damage(self, frame: bytes, ask: Ask, client: int) -> bytes:
        """The frame of a corrupted reply."""


def remove_unreachable(
    ask: Ask, clients: IntArray, faults: Faults
) -> tuple[IntArray, list[Failure], float, Faults]:
    """Remove the clients that never answer; the simulated time is that of the slowest other."""
    late = faults.delay > (np.inf if ask.deadline is None else ask.deadline)
    reasons = (
        ("dropped", faults.dropped, "the client is not reachable"),
        ("crashed", faults.crashed & ~faults.dropped, "the client crashed during the task"),
        ("late", late & ~faults.dropped & ~faults.crashed, f"no reply within {ask.deadline} s"),
    )
    failures = [
        Failure(client, kind, reason)  # type: ignore[arg-type]
        for kind, mask, reason in reasons
        for client in clients[mask].tolist()
    ]
    gone = faults.dropped | faults.crashed | late
    waited = ask.deadline if late.any() and ask.deadline is not None else 0.0
    delay = faults.delay[~gone]
    virtual = max(waited, float(delay.max(initial=0.0)))
    rest = Faults(faults.dropped[~gone], faults.crashed[~gone], faults.corrupted[~gone], delay)
    return clients[~gone], failures, virtual, rest
