"""Connections that nobody can keep for good: what is not asked for in time is closed.

Whoever connects has a few seconds to send the head of a request. Connections on which no driver and
no client has shown who they are, are strangers': of more than a thousand, the oldest is closed to
make room. A client or driver may keep a number of its own, and its oldest makes room for the next.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 15.0
MOST_STRANGERS = 1000
MOST_OF_ONE = {"driver": 512}
_MOST_OF_A_CLIENT = 16
SCOPE = "solera.connection"
"""Where a request finds the connection that it came by."""


class Connections:
    """All open connections, by who speaks on them, the oldest first."""

    def __init__(self) -> None:
        self._by: dict[str, OrderedDict[Any, None]] = {}

    def add(self, connection: Connection) -> None:
        """Somebody has connected, or has shown who they are."""
        same = self._by.setdefault(connection.who, OrderedDict())
        same[connection] = None
        most = MOST_OF_ONE.get(connection.who, _MOST_OF_A_CLIENT)
        most = most if connection.who else MOST_STRANGERS
        if len(same) > most:
            oldest = next(iter(same))
            del same[oldest]
            oldest.transport.close()

    def remove(self, connection: Connection) -> None:
        same = self._by.get(connection.who, OrderedDict())
        same.pop(connection, None)
        if not same:
            self._by.pop(connection.who, None)


CONNECTIONS = Connections()
"""Of this process, which serves one coordinator."""


class Connection(H11Protocol):
    """One connection; ``who`` is empty as long as it is a stranger's."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.who = ""
        self._impatient: asyncio.TimerHandle | None = None
        served = self.app

        async def with_connection(scope: Any, receive: Any, send: Any) -> None:
            scope[SCOPE] = self
            await served(scope, receive, send)

        self.app = with_connection

    def identify(self, who: str) -> None:
        """A driver or a client has shown who it is."""
        if who != self.who and not self.transport.is_closing():
            CONNECTIONS.remove(self)
            self.who = who
            CONNECTIONS.add(self)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        CONNECTIONS.add(self)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        CONNECTIONS.remove(self)
        self._patient()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """The head of a request must be whole some seconds after it began."""
        before: Any = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._patient()
        elif self._impatient is None and getattr(before, "response_complete", True):
            self._expect_head()

    def _expect_head(self) -> None:
        self._impatient = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _patient(self) -> None:
        if self._impatient is not None:
            self._impatient.cancel()
            self._impatient = None


def allow_many() -> None:
    """Let this process have as many open files as the system lets it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
