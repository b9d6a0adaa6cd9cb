"""The engine of notebooks and tests: all clients in this process.

A ``many=`` task serves several blocks in one call where the memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator

from solera.core.aggregation import Aggregation, blocks
from solera.core.clients import Source
from solera.core.constraints import Count
from solera.core.engine import Ask, Block
from solera.engines.blocks import MEMORY, Simulated
from solera.engines.faults import FaultModel
from solera.engines.threads import limited_threads
from solera.trust.policy import Policy


class LocalEngine(Simulated):
    """Runs every ask here and now.

    ``workers`` are the threads that tasks may use, all cores by default; their number changes no
    bit. ``memory`` bounds the bytes that the clients of one ``many=`` call hold together; with
    ``policy`` asks are answered as it says.
    """

    def __init__(
        self,
        source: Source,
        *,
        workers: Count | None = None,
        fault_model: FaultModel | None = None,
        memory: int = MEMORY,
        policy: Policy | None = None,
    ) -> None:
        super().__init__(source, fault_model, memory, policy)
        self.workers = workers

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        self._check(ask)
        states = self._states_of(ask.fit)
        spans = [ask.clients[positions] for positions in blocks(len(ask.clients))]
        with limited_threads(self.workers):
            first = True
            for run in self._runner.group_spans(ask, spans):
                yield from self._runner.blocks(ask, run, states, aggregation, first)
                first = False

    def close(self) -> None:
        """Nothing to give back."""
