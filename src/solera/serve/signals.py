"""Signals that end a program: as exceptions, and never in the middle of a fork."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(BaseException):
    """The process was told to end; whatever was going on is safe to leave, as by a power cut."""


@contextmanager
def terminated_by_signal() -> Iterator[None]:
    """SIGTERM raises :class:`Terminated` in the main thread."""
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


@contextmanager
def after_the_fork() -> Iterator[None]:
    """SIGINT and SIGTERM wait for the end of the block.

    What a handler raises while Python runs its hooks around a fork is printed and dropped, and the
    program would go on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[signal.Signals] = []

    def later(number: int, _: object) -> None:
        came.append(signal.Signals(number))

    before = {n: signal.signal(n, later) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)
