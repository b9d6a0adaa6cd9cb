"""Tells the coordinator now and then that a client lives, what it does and where its log ends."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Self

from solera.core.errors import SoleraError
from solera.serve import wire
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

    def __init__(self, connection: Connection, look: Callable[[], wire.Heartbeat]) -> None:
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
        doing, at = None, -math.inf
        while not self._end.is_set():
            beat = self._look()
            if beat.doing != doing or time.monotonic() - at >= _SECONDS:
                doing, at = beat.doing, time.monotonic()
                self._send(beat)
            self._end.wait(_LOOK_SECONDS)
        self._send(wire.Heartbeat(head=self._look().head))
        self._connection.close()

    def _send(self, beat: wire.Heartbeat) -> None:
        try:
            self._connection.request("POST", "/v1/heartbeat", json=beat)
        except SoleraError as error:
            log.debug("%s", error)
