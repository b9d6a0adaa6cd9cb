"""Starting processes in a program that has threads and is told to end by signals."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def whole_fork() -> Iterator[None]:
    """Around ``process.start()``: no warning about threads, and signals come when it is done.

    Threads of numerical libraries survive a fork: such processes use one thread. What the handler
    of a signal raises in the middle of a fork is lost, since the hooks of a fork ignore exceptions:
    a program that was interrupted just then would go on.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
        if threading.current_thread() is not threading.main_thread():  # no signal is handled there
            yield
            return
        came: list[int] = []
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        home = os.getpid()

        def later(number: int, _: Any) -> None:
            if os.getpid() == home:
                came.append(number)
            else:  # the new process does what the old one would have done
                signal.signal(number, before[signal.Signals(number)])
                signal.raise_signal(number)

        ours = [number for number, handler in before.items() if callable(handler)]
        for number in ours:
            signal.signal(number, later)
        try:
            yield
        finally:
            for number in ours:
                signal.signal(number, before[number])
            for missed in came:
                signal.raise_signal(missed)
