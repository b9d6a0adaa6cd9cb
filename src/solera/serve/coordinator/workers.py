"""Several processes that serve one address: each takes the connections that the system gives it.

A worker that dies is started again; its connections are made anew, by whoever had them, with
another. All end with the process that started them.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

log = logging.getLogger("solera.coordinator")

_LOOK_SECONDS = 0.5
_END_SECONDS = 10.0
_SETTLED_SECONDS = 5.0
"""A worker that dies sooner is started again after a pause."""


def serve_with(workers: int, work: Callable[[int], None]) -> None:
    """Run ``work(0)`` … ``work(workers − 1)`` in processes, until this one is told to end."""
    ended = threading.Event()
    for told in (signal.SIGTERM, signal.SIGINT):
        signal.signal(told, lambda *_: ended.set())
    living, alive = os.pipe()  # nothing is ever written: it is closed when this process is gone
    started: list[tuple[Any, float]] = [_start(n, work, living, alive) for n in range(workers)]
    while not ended.is_set():
        wait([process.sentinel for process, _ in started], _LOOK_SECONDS)
        for number, (process, began) in enumerate(started):
            if process.is_alive() or ended.is_set():
                continue
            if time.monotonic() - began < _SETTLED_SECONDS:
                ended.wait(_LOOK_SECONDS)
            log.warning("worker %d ended with %s and is started again", number, process.exitcode)
            started[number] = _start(number, work, living, alive)
    for process, _ in started:
        process.terminate()
    for process, _ in started:
        process.join(_END_SECONDS)
        process.kill()
        process.join()


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket beside those of other workers on the same port, among which the system deals."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind((host, port))
    return listening


def _start(number: int, work: Callable[[int], None], living: int, alive: int) -> tuple[Any, float]:
    fork: Any = multiprocessing.get_context("fork")
    process = fork.Process(target=_live, args=(number, work, living, alive))
    process.start()
    return process, time.monotonic()


def _live(number: int, work: Callable[[int], None], living: int, alive: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.close(alive)
    threading.Thread(target=_end_with_parent, args=(living,), daemon=True).start()
    work(number)


def _end_with_parent(living: int) -> None:
    os.read(living, 1)
    os.kill(os.getpid(), signal.SIGTERM)
