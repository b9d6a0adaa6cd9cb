"""What happened: written in the transaction in which it happened, so that none is missing.

The coordinator's signed log is copied from here. Afterwards the events of every day, asks and
replies that went well, are deleted; refusals, failures and whatever changes a job stay.
"""

from __future__ import annotations

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

    def log(self, event: str, now: float, **about: Any) -> int:
        """Note what happened, above all every refusal and failure; the number of the event.

        ``about`` is what :func:`~solera.serve.coordinator.store.base.note` takes.
        """
        with self._write() as connection:
            return note(connection, event, now, **about)

    def events(
        self, *, after: int = 0, limit: int = 1000, newest: bool = False, **wanted: Any
    ) -> list[Event]:
        """Events from the one after number ``after``, in order, or the ``newest`` first.

        ``wanted`` are values that their columns must have, None for any.
        """
        order = events.c.id.desc() if newest else events.c.id
        chosen = select(events).where(events.c.id > after).order_by(order).limit(limit)
        given = {column: value for column, value in wanted.items() if value is not None}
        return self._rows(Event, chosen.filter_by(**given))

    def forget_routine(self, until: int) -> int:
        """Delete the events of every day up to number ``until``; how many they were."""
        old = delete(events).where(events.c.id <= until, events.c.event.in_(ROUTINE))
        with self._write() as connection:
            return connection.execute(old).rowcount


def problem(seq: int, reason: str = "") -> str:
    """How the log puts what a driver has against a reply; without a reason, how it begins."""
    return f"ask {seq}: {reason}"
