"""What happened: written in the transaction in which it happened, so that none is missing.

The coordinator's signed log is copied from here. Afterwards the events of every day, asks and
replies that went well, are deleted; refusals, failures and whatever changes a job stay.
"""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins
from sqlalchemy import delete, select

from solera.serve.coordinator.store.base import Base, note
from solera.serve.coordinator.store.tables import clients, events, jobs, signed_log
from solera.serve.wire import Event, Job, NewNote

ROUTINE = ("asked", "replied")
_LOG = "coordinator"
INVALID = "invalid"
"""The event of a reply that the driver could not use."""
TOLD = "told"
"""The losses that clients told in a round. For curves only: no log has them, and what a client told
is deleted when it leaves."""


class Events(Base):
    """The log of a coordinator."""

    def log(self, event: str, now: float, **about: Any) -> int:
        """Note what happened, above all every refusal and failure; the number of the event.

        ``about`` is what :func:`~solera.serve.coordinator.store.base.note` takes.
        """
        with self._write() as connection:
            return note(connection, event, now, **about)

    def take_note(self, job: Job, new: NewNote, now: float) -> int:
        """Write down what a learner says of itself; the number of the event.

        Of clients that left meanwhile nothing is kept: whoever leaves holds the job, too.
        """
        with self._write() as connection:
            if new.told:
                connection.execute(select(jobs.c.id).filter_by(id=job.id).with_for_update())
                members = select(clients.c.id).filter_by(federation=job.federation)
                here = set(connection.scalars(members))
                losses = {str(client): loss for client, loss in new.told.items() if client in here}
                facts = {"round": new.facts.get("round", 0), "loss": losses}
                note(connection, TOLD, now, of=job, facts=facts)
            return note(connection, new.event, now, of=job, facts=to_builtins(new.facts))

    def events(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        newest: bool = False,
        actor: str | None = None,
        **wanted: Any,
    ) -> list[Event]:
        """Events from the one after number ``after``, in order, or the ``newest`` first.

        All but :data:`TOLD`.

        ``actor`` is who did it; ``wanted`` are values that their columns must have, None for any.
        """
        order = events.c.id.desc() if newest else events.c.id
        chosen = select(events).where(events.c.id > after, events.c.event != TOLD)
        chosen = chosen.order_by(order).limit(limit)
        if before is not None:
            chosen = chosen.where(events.c.id < before)
        if actor is not None:
            chosen = chosen.where(events.c.facts["actor"].as_string() == actor)
        given = {column: value for column, value in wanted.items() if value is not None}
        return self._rows(Event, chosen.filter_by(**given))

    def last_moment(self) -> float | None:
        """When the newest event was."""
        with self._read() as connection:
            newest = select(events.c.time).order_by(events.c.id.desc()).limit(1)
            moment: float | None = connection.scalar(newest)
            return moment

    def forget_routine(self, until: int, head: tuple[int, str], *, after: int = 0) -> int:
        """Delete the events of every day up to number ``until``; how many they were.

        ``head`` is where the signed log ends that they are in; it is remembered. Up to number
        ``after`` there are none left: who deletes again and again need not look there.
        """
        new = events.c.id.between(after + 1, until)
        old = delete(events).where(new, events.c.event.in_(ROUTINE))
        with self._write() as connection:
            self._put(connection, signed_log, name=_LOG, line=head[0], hash=head[1])
            return connection.execute(old).rowcount

    def signed_head(self) -> tuple[int, str] | None:
        """Where the signed log ended when events were last copied into it: line and hash."""
        with self._read() as connection:
            row = connection.execute(select(signed_log.c.line, signed_log.c.hash)).first()
            return None if row is None else (row.line, row.hash)


def problem(seq: int, reason: str = "") -> str:
    """How the log puts what a driver has against a reply; without a reason, how it begins."""
    return f"ask {seq}: {reason}"
