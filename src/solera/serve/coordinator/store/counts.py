"""How much there is of everything, for those who watch a coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from solera.serve.coordinator.store.base import Base, count_rows
from solera.serve.coordinator.store.tables import OPEN, clients, deliveries, jobs


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


class Counts(Base):
    """Numbers over all federations."""

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
