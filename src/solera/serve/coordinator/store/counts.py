"""How much there is of everything, for those who watch a coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from solera.serve.coordinator.store.base import Base
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
        active = select(func.count()).select_from(clients).where(clients.c.revoked.is_(None))
        waiting = deliveries.c.status == OPEN
        asked = select(deliveries.c.job, deliveries.c.seq).where(waiting).distinct()
        by_state = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        by_status = select(deliveries.c.status, func.count()).group_by(deliveries.c.status)
        with self._read() as connection:
            replies = {row[0]: row[1] for row in connection.execute(by_status)}
            replies.pop(OPEN, None)
            return Census(
                clients=connection.execute(active).scalar_one(),
                seen=connection.execute(active.where(clients.c.seen > now - 60)).scalar_one(),
                jobs={row[0]: row[1] for row in connection.execute(by_state)},
                asks=connection.execute(
                    select(func.count()).select_from(asked.subquery())
                ).scalar_one(),
                replies=replies,
            )
