"""The engine of notebooks and tests: all clients in this process, one block after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from solera.core.aggregation import Aggregation, blocks
from solera.core.clients import IntArray, Part, Source
from solera.core.federation import Ask, Block
from solera.core.schema import Schema
from solera.engines.blocks import MEMORY, Misfortune, Runner, States


class LocalEngine:
    """Runs every ask here and now.

    ``memory`` bounds the bytes that the clients of one ``many=`` call hold together.
    """

    def __init__(
        self, source: Source, *, misfortune: Misfortune | None = None, memory: int = MEMORY
    ) -> None:
        self.source = source
        self._runner = Runner(source, misfortune, memory)
        self._states: States = {}

    @property
    def clients(self) -> int:
        return self.source.clients

    @property
    def schema(self) -> Schema:
        return self.source.schema

    def sizes(self, part: Part) -> IntArray | None:
        return self.source.sizes(part)

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        for positions in blocks(len(ask.clients)):
            yield self._runner.block(ask, ask.clients[positions], self._states, aggregation)

    def states(self) -> dict[int, Any]:
        return self._states

    def restore(self, states: Mapping[int, Any]) -> None:
        self._states = {int(client): dict(state) for client, state in states.items()}

    def close(self) -> None:
        """Nothing to give back."""
