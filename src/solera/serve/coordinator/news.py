"""What the worker processes of one coordinator tell each other, through PostgreSQL's LISTEN/NOTIFY.

A change that others remember something about is told in the transaction that makes
it: whoever dies after the commit has told it. Who may want to look again (the topics of
:mod:`~solera.serve.coordinator.notifier`) is told right after it, several at a time; if that is
lost, the request that made the change is repeated, and tells it then, or a wait ends by itself.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from sqlalchemy import Engine, text

log = logging.getLogger("solera.coordinator")

CHANNEL = "solera"
CLIENTS, TOKENS = "clients", "tokens"
"""Besides tables of asks, what a change may be of."""
NOTIFY = text("SELECT pg_notify(:channel, :said)")
_LONGEST = 7000
"""Characters of a message; PostgreSQL takes 7,999 bytes."""
_LOOK_SECONDS = 1.0
_PAUSE = 0.5


def message(worker: str, **said: Any) -> dict[str, str]:
    """The parameters of :data:`NOTIFY`."""
    return {"channel": CHANNEL, "said": json.dumps({"from": worker, **said})}


class News:
    """Sends and hears news over two connections of a database; any thread may :meth:`tell`.

    ``hear(said)`` is called, in a thread of its own, with everything that other workers say; and
    with None where something may have been missed, as when the database was away.
    """

    def __init__(
        self, engine: Engine, worker: str, hear: Callable[[dict[str, Any] | None], None]
    ) -> None:
        self.worker = worker
        self._engine = engine
        self._hear = hear
        self._outbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._end = threading.Event()
        self.listening = threading.Event()
        """Whether all that is said from now on is heard."""
        for name, run in (("news in", self._listen), ("news out", self._send)):
            threading.Thread(target=self._again, args=(run,), name=name, daemon=True).start()

    def tell(self, **said: Any) -> None:
        """Say something to the other workers, soon."""
        self._outbox.put(said)

    def close(self) -> None:
        self._end.set()
        self._outbox.put({})

    def _again(self, run: Callable[[], None]) -> None:
        """Begin anew whenever the database was away."""
        while not self._end.is_set():
            try:
                run()
            except Exception as error:
                if self._end.is_set():
                    return
                log.warning("no news of other workers: %s", error)
                self.listening.clear()
                self._end.wait(_PAUSE)

    def _listen(self) -> None:
        connection: Any = self._engine.raw_connection()
        try:
            driver = connection.driver_connection
            driver.autocommit = True
            driver.execute(f"LISTEN {CHANNEL}")
            self._hear(None)
            self.listening.set()
            while not self._end.is_set():
                for notice in driver.notifies(timeout=_LOOK_SECONDS):
                    said = json.loads(notice.payload)
                    if said.pop("from") != self.worker:
                        self._hear(said)
        finally:
            connection.invalidate()

    def _send(self) -> None:
        with self._engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            while not self._end.is_set():
                waiting = [self._outbox.get()]
                while not self._outbox.empty():
                    waiting.append(self._outbox.get())
                try:
                    for said in _joined(waiting):
                        connection.execute(NOTIFY, message(self.worker, **said))
                except Exception:
                    for said in waiting:
                        self._outbox.put(said)
                    raise


def _joined(waiting: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same news in few messages: each topic once, as many of them as fit."""
    topics: dict[Hashable, None] = {}
    for said in waiting:
        if "topics" in said:
            topics |= dict.fromkeys(said["topics"])
        elif said:
            yield said
    part: list[Any] = []
    length = 0
    for topic in topics:
        length += len(json.dumps(topic)) + 2
        if length > _LONGEST:
            yield {"topics": part}
            part, length = [], len(json.dumps(topic)) + 2
        part.append(topic)
    if part:
        yield {"topics": part}
