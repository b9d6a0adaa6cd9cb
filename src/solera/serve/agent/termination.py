"""Being told to end: SIGTERM as an exception that leaves whatever was going on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(BaseException):
    """The process was told to end; whatever was going on is safe to leave, as by a power cut."""


@contextmanager
def terminated_by_signal() -> Iterator[None]:
    """In this block, in the main thread, SIGTERM raises :class:`Terminated`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
