"""What happened: written in the transaction in which it happened, so that none is missing.

The coordinator's signed log is copied from here. Afterwards the events of every day, asks and
replies that went well, are deleted; refusals, failures and whatever changes a job stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, select

from solera.serve.coordinator.store.base import Base, note
from solera.serve.coordinator.store.tables import events
from solera.serve.wire import Event

ROUTINE = ("asked", "replied")
INVALID = "invalid"
"""The event of a reply that the driver could not use."""


class Events(Base):
    """The log of a coordinator."""

    def log(
        self,
        federation: str,
        job: str | None,
        client: int | None,
        event: str,
        reason: str,
        now: float,
        facts: Mapping[str, Any] | None = None,
    ) -> int:
        """Note what happened, above all every refusal and failure; the number of the event."""
        about: dict[str, Any] = {"federation": federation, "job": job, "client": client}
        with self._write() as connection:
            return note(connection, event, now, **about, reason=reason, facts=facts)

    def events(
        self,
        federation: str | None = None,
        job: str | None = None,
        client: int | None = None,
        event: str | None = None,
        *,
        after: int = 0,
        limit: int = 1000,
        newest: bool = False,
    ) -> list[Event]:
        """Events from the one after number ``after``, in order, or the ``newest`` first."""
        order = events.c.id.desc() if newest else events.c.id
        chosen = select(events).where(events.c.id > after).order_by(order).limit(limit)
        wanted = {"federation": federation, "job": job, "client": client, "event": event}
        for column, value in wanted.items():
            if value is not None:
                chosen = chosen.where(events.c[column] == value)
        return self._rows(Event, chosen)

    def forget_routine(self, until: int) -> int:
        """Delete the events of every day up to number ``until``; how many they were."""
        old = delete(events).where(events.c.id <= until, events.c.event.in_(ROUTINE))
        with self._write() as connection:
            return connection.execute(old).rowcount


def problem(seq: int, reason: str = "") -> str:
    """How the log puts what a driver has against a reply; without a reason, how it begins."""
    return f"ask {seq}: {reason}"
