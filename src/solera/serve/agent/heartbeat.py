"""Tells the coordinator now and then that a client lives, what it does and where its log ends."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from solera.core.errors import SoleraError
from solera.serve.connection import Connection

log = logging.getLogger("solera.agent")

_SECONDS = 15.0
_LOOK_SECONDS = 1.0
"""What lasts no longer is not told."""
_LAST_SECONDS = 2.0
"""How long an agent that ends waits for its last word to arrive."""


class Heartbeat:
    """A thread beside the agent's work. ``look`` gives what there is to tell; ``with`` runs it.

    A beat that does not arrive is not repeated: the next one says more.
    """

    def __init__(self, connection: Connection, look: Callable[[], dict[str, Any]]) -> None:
        self._connection = connection
        self._look = look
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        told, at = None, -math.inf
        while not self._end.is_set():
            news = self._look()
            if news["doing"] != told or time.monotonic() - at >= _SECONDS:
                told, at = news["doing"], time.monotonic()
                self._tell(news)
            self._end.wait(_LOOK_SECONDS)
        self._tell({**self._look(), "doing": ""})
        self._connection.close()

    def _tell(self, news: dict[str, Any]) -> None:
        try:
            self._connection.request("POST", "/v1/heartbeat", json=news)
        except SoleraError as error:
            log.debug("%s", error)
