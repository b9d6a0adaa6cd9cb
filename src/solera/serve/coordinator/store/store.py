"""What the coordinator must not forget: clients, jobs, asks, replies.

``Store("sqlite:///coordinator.db")`` or ``Store("postgresql+psycopg://…")``. An ask or a reply is
acknowledged only after its method has returned, so that a driver killed at any moment can be
replayed and gets the same replies back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select, union

from solera.serve.coordinator.store.accounts import Accounts
from solera.serve.coordinator.store.asks import Asks
from solera.serve.coordinator.store.base import count_rows
from solera.serve.coordinator.store.closed import Closed
from solera.serve.coordinator.store.closed_tables import posts, texts
from solera.serve.coordinator.store.epochs import Epochs
from solera.serve.coordinator.store.events import Events
from solera.serve.coordinator.store.jobs import Jobs
from solera.serve.coordinator.store.members import Members
from solera.serve.coordinator.store.models import Models
from solera.serve.coordinator.store.replies import Replies
from solera.serve.coordinator.store.tables import (
    OPEN,
    asks,
    checkpoints,
    clients,
    deliveries,
    jobs,
    models,
    questions,
)
from solera.serve.coordinator.store.watching import Watching


@dataclass(frozen=True, slots=True)
class Census:
    """Clients, jobs by state, and what became of what clients were asked.

    ``clients`` have not been revoked, ``seen`` of them were there in the last minute. ``asks`` wait
    for somebody. ``replies`` counts deliveries by status.
    """

    clients: int
    seen: int
    jobs: dict[str, int]
    asks: int
    replies: dict[str, int]


class Store(Members, Events, Jobs, Asks, Replies, Models, Accounts, Watching, Closed, Epochs):
    """The durable state of a coordinator; payloads themselves lie in the blobs."""

    def digests(self) -> set[str]:
        """Every blob that is still needed; the others may be collected."""
        sources: list[Select[Any]] = [
            select(jobs.c.spec),
            select(posts.c.digest).filter_by(pruned=False),
            select(texts.c.result),
            select(asks.c.payload).filter_by(pruned=False),
            select(asks.c.prepare).filter_by(pruned=False),
            select(deliveries.c.payload).filter_by(pruned=False),
            select(deliveries.c.digest),
            select(checkpoints.c.digest),
            select(questions.c.payload),
            select(questions.c.prepare),
            select(models.c.digest),
        ]
        return set(self._scalars(union(*sources))) - {None}

    def census(self, now: float) -> Census:
        """All counts, of one moment."""
        active = clients.c.revoked.is_(None)
        waiting = deliveries.c.status == OPEN
        asked = select(deliveries.c.job, deliveries.c.seq).where(waiting).distinct()
        by_state = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        by_status = select(deliveries.c.status, func.count()).group_by(deliveries.c.status)
        with self._read() as connection:
            replies: dict[str, int] = dict(connection.execute(by_status).all())
            replies.pop(OPEN, None)
            return Census(
                clients=count_rows(connection, clients, active),
                seen=count_rows(connection, clients, active, clients.c.seen > now - 60),
                jobs=dict(connection.execute(by_state).all()),
                asks=count_rows(connection, asked.subquery()),
                replies=replies,
            )
