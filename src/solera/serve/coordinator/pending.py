"""What clients are asked, remembered until an ask, a reply or a job changes.

An agent looks for work all the time, and most often finds what it found before. Such a look costs
no query and no thread, so that it is answered at once also while others keep the coordinator busy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from msgspec.structs import replace

from solera.serve.coordinator.store.store import Store
from solera.serve.wire import PendingAsk

MOST_ASKS = 64
"""Asks of one answer."""
_REMEMBERED = 4096
_SHORT = 4096
"""Clients whose asks are remembered, and the characters of them: 16 MB, however many there are."""
_REST = 1024
"""Characters of an ask beside the blob that is sent along."""

Whose = tuple[str, int]
"""A federation, and the number of a client of it."""


class PendingWork:
    """The asks of each client; ``inline`` finds the blob that is sent along with one, if any."""

    def __init__(self, store: Store, inline: Callable[[str | None], str | None]) -> None:
        self._store, self._inline = store, inline
        self._lock = Lock()
        self._found: OrderedDict[Whose, tuple[int, list[PendingAsk]]] = OrderedDict()

    def known(self, client: Whose) -> list[PendingAsk] | None:
        """What was found last, if nothing has changed since; None if that has to be looked up."""
        changes, asks = self._found.get(client, (-1, None))
        return asks if changes == self._store.changes else None

    def look(self, client: Whose) -> list[PendingAsk]:
        """What waits for this client now; a query."""
        changes = self._store.changes  # before the query: what changes meanwhile is looked up again
        pending = self._store.pending(*client, MOST_ASKS)
        asks = [replace(ask, frame=self._inline(ask.payload)) for ask in pending]
        if sum(len(ask.frame or "") + _REST for ask in asks) <= _SHORT:
            with self._lock:
                self._found[client] = (changes, asks)
                self._found.move_to_end(client)
                if len(self._found) > _REMEMBERED:
                    self._found.popitem(last=False)
        return asks
