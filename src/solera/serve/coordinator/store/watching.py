"""What people look at: the rounds of a job, who is awaited, and how long clients took."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import func, select

from solera.evaluation.figure import Figure, figures, restored
from solera.serve.coordinator.store.base import Base, count_rows
from solera.serve.coordinator.store.events import TOLD
from solera.serve.coordinator.store.tables import OPEN, asks, clients, deliveries, events, jobs

ROUND, EVALUATED, COST = "round", "evaluated", "cost"
TROUBLE = ("refused", "failed", "late", "invalid")


class Awaited(NamedTuple):
    """A client that has something to answer: in which job, what, and since when."""

    job: str
    client: int
    task: str
    round: int
    since: float


class Taken(NamedTuple):
    """What one client did with one ask, and when."""

    seq: int
    task: str
    round: int
    client: int
    status: str
    asked: float
    answered: float | None


class KeptReply(NamedTuple):
    """A reply whose bytes are still there, and those of what was asked."""

    job: str
    client: int
    payload: str | None
    digest: str
    time: float


class Watching(Base):
    """Reads for pages; nothing here changes anything."""

    def rounds(self, job: str, after: int = 0) -> list[dict[str, Any]]:
        """What the learner logged in every round but the first ``after``, in order."""
        chosen = select(events.c.facts).filter_by(job=job, event=ROUND).order_by(events.c.id)
        return [restored(facts) for facts in self._scalars(chosen.offset(after))]

    def told(self, job: str, most: int, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
        """Number and facts of rounds in which clients told their losses, since an event.

        Of more than ``most`` rounds so many are left out between two that fewer remain.
        """
        from_last = func.row_number().over(order_by=events.c.id.desc()).label("place")
        since = select(events.c.id, from_last).filter_by(job=job, event=TOLD)
        every = since.where(events.c.id > after).subquery()
        with self._read() as connection:
            step = -(-count_rows(connection, every) // most) or 1
            chosen = select(every.c.id).where((every.c.place - 1) % step == 0)
            rows = select(events.c.id, events.c.facts).where(events.c.id.in_(chosen))
            return [(id, facts) for id, facts in connection.execute(rows.order_by(events.c.id))]

    def pace(self, job: str, last: int) -> float | None:
        """Seconds from one of the last rounds to the next; None before there are two."""
        chosen = select(events.c.time).filter_by(job=job, event=ROUND).order_by(events.c.id.desc())
        times = self._scalars(chosen.limit(last + 1))
        return (times[0] - times[-1]) / (len(times) - 1) if len(times) > 1 else None

    def kept_replies(self, federation: str, task: str, job: str | None = None) -> list[KeptReply]:
        """The answers to the newest ask for a task, of one job or of any, that are still kept."""
        answered = (
            select(
                asks.c.job, deliveries.c.client, asks.c.payload, deliveries.c.digest,
                asks.c.created, asks.c.seq,
            )
            .join(asks, (asks.c.job == deliveries.c.job) & (asks.c.seq == deliveries.c.seq))
            .join(jobs, jobs.c.id == asks.c.job)
            .where(jobs.c.federation == federation, asks.c.task == task)
            .where(deliveries.c.status == "ok", deliveries.c.digest.is_not(None))
        )  # fmt: skip
        if job is not None:
            answered = answered.where(asks.c.job == job)
        with self._read() as connection:
            order = asks.c.created.desc()
            newest = connection.execute(answered.order_by(order).limit(1)).first()
            if newest is None:
                return []
            same = answered.where(asks.c.job == newest.job, asks.c.seq == newest.seq)
            rows = connection.execute(same.order_by(deliveries.c.client))
            return [KeptReply(*row[:5]) for row in rows]

    def judged(self, job: str) -> dict[str, Figure]:
        """What the learner said last of its evaluation."""
        return figures(self.noted(job, EVALUATED))

    def noted(self, job: str, event: str) -> dict[str, Any]:
        """What the learner said last of its evaluation, or of what the job took."""
        chosen = select(events.c.facts).filter_by(job=job, event=event)
        found = self._scalars(chosen.order_by(events.c.id.desc()).limit(1))
        return dict(found[0]) if found else {}

    def awaited(self, federation: str, job: str | None = None) -> list[Awaited]:
        """Who has yet to answer what, in the jobs of a federation that go on."""
        chosen = (
            select(deliveries.c.job, deliveries.c.client, asks.c.task, asks.c.round, asks.c.created)
            .join(asks, (asks.c.job == deliveries.c.job) & (asks.c.seq == deliveries.c.seq))
            .join(jobs, jobs.c.id == deliveries.c.job)
            .where(jobs.c.federation == federation, jobs.c.state == "running")
            .where(deliveries.c.status == OPEN)
            .order_by(asks.c.created, deliveries.c.client)
        )
        if job is not None:
            chosen = chosen.where(deliveries.c.job == job)
        with self._read() as connection:
            return [Awaited(*row) for row in connection.execute(chosen)]

    def taken(self, job: str, last: int) -> list[Taken]:
        """What clients did with the last asks of a job."""
        newest = select(func.max(asks.c.seq)).filter_by(job=job).scalar_subquery()
        chosen = (
            select(
                asks.c.seq, asks.c.task, asks.c.round, deliveries.c.client, deliveries.c.status,
                asks.c.created, deliveries.c.time,
            )
            .join(asks, (asks.c.job == deliveries.c.job) & (asks.c.seq == deliveries.c.seq))
            .where(asks.c.job == job, asks.c.seq > newest - last)
            .order_by(asks.c.seq.desc(), deliveries.c.client)
        )  # fmt: skip
        with self._read() as connection:
            return [Taken(*row) for row in connection.execute(chosen)]

    def trouble(self, job: str, most: int) -> list[tuple[int | None, str, str, int, float]]:
        """Refusals and failures: client, kind, reason, how often, and when last."""
        same = (events.c.client, events.c.event, events.c.reason)
        last = func.max(events.c.time)
        chosen = (
            select(*same, func.count(), last)
            .where(events.c.job == job, events.c.event.in_(TROUBLE))
            .group_by(*same)
            .order_by(last.desc())
            .limit(most)
        )
        with self._read() as connection:
            return [tuple(row) for row in connection.execute(chosen)]

    def doing(self, federation: str) -> dict[int, str]:
        """What clients said last that they do."""
        with self._read() as connection:
            chosen = select(clients.c.id, clients.c.doing).filter_by(federation=federation)
            return {id: said for id, said in connection.execute(chosen) if said}

    def client_names(self, federation: str) -> dict[int, str]:
        """What clients are called."""
        with self._read() as connection:
            chosen = select(clients.c.id, clients.c.name).filter_by(federation=federation)
            return dict(connection.execute(chosen).all())
