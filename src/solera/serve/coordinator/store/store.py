"""What the coordinator must not forget: clients, jobs, asks, replies.

``Store("sqlite:///coordinator.db")`` or ``Store("postgresql+psycopg://…")``. An ask or a reply is
acknowledged only after its method has returned, so that a driver killed at any moment can be
replayed and gets the same replies back.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, false, select, union

from solera.serve.coordinator.store.asks import Asks
from solera.serve.coordinator.store.counts import Counts
from solera.serve.coordinator.store.events import Events
from solera.serve.coordinator.store.jobs import Jobs
from solera.serve.coordinator.store.members import Members
from solera.serve.coordinator.store.models import Models
from solera.serve.coordinator.store.tables import (
    asks,
    checkpoints,
    deliveries,
    jobs,
    models,
    questions,
)


class Store(Members, Events, Jobs, Asks, Models, Counts):
    """The durable state of a coordinator; payloads themselves lie in the blobs."""

    def digests(self) -> set[str]:
        """Every blob that is still needed; the others may be collected."""
        live = asks.c.pruned == false()
        sources: list[Select[Any]] = [
            select(jobs.c.spec),
            select(asks.c.payload).where(live),
            select(asks.c.prepare).where(live),
            select(deliveries.c.payload).where(deliveries.c.pruned == false()),
            select(deliveries.c.digest),
            select(checkpoints.c.digest),
            select(questions.c.payload),
            select(questions.c.prepare),
            select(models.c.digest),
        ]
        return set(self._scalars(union(*sources))) - {None}
