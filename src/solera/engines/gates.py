"""The gates of simulated clients: what is the same for all of them is judged once for an ask."""

from __future__ import annotations

from typing import Any

from solera.core.clients import Client, ClientGroup, Source
from solera.core.engine import Ask, PerClient
from solera.core.task import Task
from solera.trust.gate import ReleaseLimits, check_ask, release
from solera.trust.noise import Ledger, StateLedger


class Gates:
    """Lets asks in to the clients of a source, and their replies out."""

    def __init__(self, limits: ReleaseLimits, source: Source, ledger: Ledger | None = None) -> None:
        self.limits = limits
        self.ledger = ledger
        self._source = source
        self._checked: Ask | None = None

    def admit(self, task: Task, ask: Ask, group: ClientGroup) -> None:
        """Check payloads, one that all clients get only for the first of them."""
        different = hasattr(self._source, "schema_of")  # clients hold different columns
        if different or isinstance(ask.payload, PerClient):
            for client in group:
                check_ask(self.limits, task, ask.payload_for(client.id), client.data.schema)
        elif ask is not self._checked:
            check_ask(self.limits, task, ask.payload, group.schema)
            self._checked = ask

    def release(self, task: Task, ask: Ask, client: Client, payload: Any, reply: Any) -> Any:
        """The reply of a client as it may leave."""
        ledger = StateLedger(client.state) if self.ledger is None else self.ledger
        masked = ask.cover is not None
        return release(task, client, payload, reply, self.limits, ledger, masked=masked)
