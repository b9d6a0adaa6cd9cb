"""One client that answers open asks by its policy, without a network in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from solera.core.clients import Client, Draws
from solera.core.schema import Schema, infer
from solera.core.task import find_task
from solera.data.federated import FederatedData
from solera.data.partition import IID
from solera.trust.noise import StateLedger
from solera.trust.open_asks import answer
from solera.trust.policy import Policy

REFUSED = "refused"


def table(X: Any, y: Any, schema: Schema | None = None) -> FederatedData:
    """The rows as one client's."""
    schema = infer(X, y) if schema is None else schema
    assignment = IID().assign(len(X), y, clients=1, seed=0)
    return FederatedData.of(X, y, assignment, schema=schema)


@dataclass
class Owner:
    """One client and its policy."""

    data: FederatedData
    policy: Policy | None
    state: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    """Why the last ask was refused."""

    def ask(self, task: str, payload: Any, prepare: Sequence[Any] = (), *, round: int = 0) -> Any:
        """The reply as it leaves, or :data:`REFUSED`."""
        found = find_task(task)
        before = dict(self.state)
        try:
            source = self.data.prepared(prepare) if prepare else self.data
            client = Client(0, source, Draws(0, task, round), before)
            reply = found.one(client, payload)
            sent = answer(self.policy, found, client, payload, reply, StateLedger(before))
        except Exception as error:  # at an agent a failure of a task is a code and nothing else
            self.why = str(error)
            return REFUSED
        self.state = before
        return sent
