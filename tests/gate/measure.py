"""One client behind its gate, asked without a network in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from solera.core.absent import split_gaps
from solera.core.clients import Client, Draws
from solera.core.schema import Schema, infer
from solera.core.task import find_task
from solera.data.federated import FederatedData
from solera.data.partition import IID
from solera.trust.declared import check_state
from solera.trust.gate import ReleaseLimits, check_ask, release
from solera.trust.noise import StateLedger

REFUSED = "refused"


def table(X: Any, y: Any, schema: Schema | None = None) -> FederatedData:
    """The rows as one client's."""
    schema = infer(X, y) if schema is None else schema
    assignment = IID().assign(len(X), y, clients=1, seed=0)
    return FederatedData.of(X, y, assignment, schema=schema)


@dataclass
class Owner:
    """One client behind its gate."""

    data: FederatedData
    limits: ReleaseLimits
    state: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, Any] = field(default_factory=dict)
    """What was withheld of the last reply, by entry."""
    why: str = ""
    """Why the last ask was refused."""

    def ask(self, task: str, payload: Any, prepare: Sequence[Any] = (), *, round: int = 0) -> Any:
        """The reply as it leaves, or :data:`REFUSED`."""
        found = find_task(task)
        before = dict(self.state)
        try:
            schema = self.data.schema
            for step in prepare:
                check_state(step, schema)
                schema = step.transform_schema(schema)
            source = self.data.prepared(prepare) if prepare else self.data
            client = Client(0, source, Draws(0, task, round), before)
            check_ask(self.limits, found, payload, schema)
            reply = found.one(client, payload)
            ledger = StateLedger(before)
            sent = release(found, client, payload, reply, self.limits, ledger)
        except Exception as error:  # at an agent a failure of a task is a code and nothing else
            self.why = str(error)
            return REFUSED
        self.state = before
        value, self.absent = split_gaps(sent)
        return value
