"""What clients are asked, remembered until an ask, a reply or a job changes.

An agent looks for work all the time, and most often finds what it found before. Such a look costs
no query and no thread, so that it is answered at once also while others keep the coordinator busy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock

from msgspec.structs import replace

from solera.serve.coordinator.batches import Batches
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
        self.find = Batches(self.look_for)
        """What waits for a client now, looked up together with what waits for others."""

    def known(self, client: Whose) -> list[PendingAsk] | None:
        """What was found last, if nothing has changed since; None if that has to be looked up."""
        changes, asks = self._found.get(client, (-1, None))
        return asks if changes == self._store.changes else None

    def look(self, client: Whose) -> list[PendingAsk]:
        """What waits for this client now; a query."""
        return self.look_for([client])[0]

    def look_for(self, clients: Sequence[Whose]) -> list[list[PendingAsk]]:
        """The same for several clients."""
        changes = self._store.changes  # before the query: what changes meanwhile is looked up again
        inline = cache(self._inline)
        found: dict[Whose, list[PendingAsk]] = {}
        for federation in {federation for federation, _ in clients}:
            its = {number for named, number in clients if named == federation}
            pending = self._store.pending_of(federation, its, MOST_ASKS)
            for number, asks in pending.items():
                asks = [replace(ask, frame=inline(ask.payload)) for ask in asks]
                found[federation, number] = asks
                self._remember((federation, number), changes, asks)
        return [found[client] for client in clients]

    def _remember(self, client: Whose, changes: int, asks: list[PendingAsk]) -> None:
        if sum(len(ask.frame or "") + _REST for ask in asks) <= _SHORT:
            with self._lock:
                self._found[client] = (changes, asks)
                self._found.move_to_end(client)
                if len(self._found) > _REMEMBERED:
                    self._found.popitem(last=False)
