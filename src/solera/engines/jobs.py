"""What the workers of an engine are given: some blocks of an ask at a time.

A worker gets several blocks that follow one another, so that few messages travel, and serves them
one by one: who is served together is part of how a model is trained, down to the last bit, and must
not depend on the number of workers or on one that died.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation, blocks
from solera.core.clients import IntArray
from solera.core.engine import Ask, Block
from solera.engines.asks import block_from_payload, block_to_payload
from solera.engines.blocks import Runner
from solera.engines.states import States

_MOST_BLOCKS = 16
_MOST_BYTES = 32 << 20
"""Partials of a job, each taken to be as large as what is asked."""


@dataclass(slots=True)
class Job:
    """Blocks, one after the other, that a worker serves in one go; ``tries`` of it went wrong.

    ``states`` are what all clients keep between tasks.
    """

    numbers: list[int]
    clients: list[IntArray]
    states: States
    tries: int = 0

    def message(self) -> dict[str, Any]:
        """The clients, and what they keep between tasks."""
        asked = np.concatenate(self.clients).tolist()
        kept = [[client, self.states[client]] for client in asked if client in self.states]
        return {"clients": self.clients, "states": kept}

    def blocks(self, result: Mapping[str, Any], fold_here: Aggregation | None) -> dict[int, Block]:
        """The blocks of a worker's answer by number; ``states`` is updated."""
        for client in np.concatenate(self.clients).tolist():
            self.states.pop(client, None)
        found = {}
        for number, part in zip(self.numbers, result["blocks"], strict=True):
            self.states.update(dict(part["states"]))
            found[number] = block_from_payload(part, fold_here)
        return found

    def singles(self) -> list[Job]:
        """Its blocks on their own, after one more try went wrong."""
        pairs = zip(self.numbers, self.clients, strict=True)
        return [Job([number], [clients], self.states, self.tries + 1) for number, clients in pairs]


def jobs_of(ask: Ask, states: States, workers: int, each: int) -> deque[Job]:
    """The blocks of an ask as about ``each`` jobs for every worker, more where they are many.

    With several none waits long for the slowest; with one the fewest messages travel.
    """
    spans = [ask.clients[positions] for positions in blocks(len(ask.clients))]
    fitting = max(1, _MOST_BYTES // max(1, ask.size))
    size = min(_MOST_BLOCKS, fitting, max(1, -(-len(spans) // (each * workers))))
    return deque(
        Job(list(range(i, min(i + size, len(spans)))), spans[i : i + size], states)
        for i in range(0, len(spans), size)
    )


def most_blocks(jobs: Iterable[Job]) -> int:
    """The blocks of the largest job."""
    return max((len(job.numbers) for job in jobs), default=1)


def serve(
    runner: Runner, ask: Ask, aggregation: Aggregation | None, message: Mapping[str, Any]
) -> dict[str, Any]:
    """What a worker answers to :meth:`Job.message`."""
    states: States = dict(message["states"])
    parts = []
    for clients in message["clients"]:
        own = {client: states[client] for client in clients.tolist() if client in states}
        block = runner.block(ask, clients, own, aggregation)
        parts.append(block_to_payload(block, own))
    return {"blocks": parts}
