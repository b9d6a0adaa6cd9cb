"""The gates of simulated clients: what is the same for all of them is judged once for an ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.clients import ClientGroup, IntArray, Source
from solera.core.disclosure.memory import Memory, row_digests
from solera.core.disclosure.noised import Ledger
from solera.core.engine import Ask, PerClient
from solera.core.gate import Gate, ReleaseLimits, check_ask, is_about_rows
from solera.core.replies import Stacked
from solera.core.task import Task

RELEASED = "solera.released"
"""Where a client's state keeps what left it."""


class Gates:
    """Lets asks in to the clients of a source, and their replies out."""

    def __init__(self, limits: ReleaseLimits, source: Source, ledger: Ledger | None = None) -> None:
        self.limits = limits
        self.ledger = ledger
        self._source = source
        self._digests: dict[int, IntArray] = {}
        self._checked: Ask | None = None

    def admit(self, task: Task, ask: Ask, group: ClientGroup) -> list[Gate]:
        """The gate of every client, if all of them let the ask in."""
        self._check(task, ask, group)
        if self.limits.trusted:  # nothing is compared with what left
            known = [Memory() for _ in group.states]
        else:
            known = [Memory.from_payload(state.pop(RELEASED, None)) for state in group.states]
        gates = [Gate(self.limits, memory, self.ledger) for memory in known]
        if not is_about_rows(task):
            return gates
        if self.limits.unit is not None or group.data.sizes.min() < self.limits.min_rows:
            for gate, client in zip(gates, group, strict=True):
                gate.check_rows(task, client)
        if not self.limits.trusted:
            for client, memory in zip(group.ids.tolist(), known, strict=True):
                memory.check_rows(self._row_digests(client), self.limits.min_count)
        return gates

    def release(
        self, task: Task, ask: Ask, group: ClientGroup, replies: Any, gates: Sequence[Gate]
    ) -> Any:
        """The replies as they may leave."""
        if self.limits.trusted and isinstance(replies, Stacked):
            gates[0].release(task, next(iter(group)), ask.payload, replies.outline())
        else:
            replies = [
                gate.release(task, client, ask.payload_for(client.id), reply)
                for client, reply, gate in zip(group, replies, gates, strict=True)
            ]
        if not self.limits.trusted:
            for state, gate in zip(group.states, gates, strict=True):
                state[RELEASED] = gate.memory.to_payload()
        return replies

    def _check(self, task: Task, ask: Ask, group: ClientGroup) -> None:
        """Check payloads, one that all clients get only for the first of them."""
        different = hasattr(self._source, "schema_of")  # clients hold different columns
        if different or isinstance(ask.payload, PerClient):
            for client in group:
                check_ask(self.limits, task, ask.payload_for(client.id), client.data.schema)
        elif ask is not self._checked:
            check_ask(self.limits, task, ask.payload, group.schema)
            self._checked = ask

    def _row_digests(self, client: int) -> IntArray:
        if client not in self._digests:
            rows = self._source.segments(np.array([client], dtype=np.int64), "train")[0]
            self._digests[client] = row_digests(rows.X, rows.y)
        return self._digests[client]
