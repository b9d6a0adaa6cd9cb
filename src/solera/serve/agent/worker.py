"""Runs tasks on an owner's rows in a process of their own, with limits on time and memory.

The process is started once and kept. It reads the rows itself when it is given a way to read them,
so that the process that talks to the coordinator never holds a row. Asks and replies cross as
payload frames. A task that takes too long or too much memory, or brings its process down, costs a
failure that says so; the next task finds a new process.

What cannot be enforced portably: the process opens no connection of its own, but nothing stops an
installed task from doing so. An owner who needs that guarantee runs the agent in a container or a
network namespace that reaches the coordinator only.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from solera.core.engine import Ask
from solera.core.errors import DataError, SoleraError, UsageError, WorkerDied
from solera.core.replies import FailureKind
from solera.engines.asks import ask_to_payload
from solera.engines.child import Child
from solera.serve.agent.channel import Channel
from solera.serve.agent.closed.worker_side import TableSource
from solera.serve.agent.task_process import OUT_OF_MEMORY, Guard, Rows, serve

log = logging.getLogger("solera.agent")


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Seconds and memory of one task; ``memory_bytes`` come on top of the rows themselves.

    ``start_seconds`` is the time to start the process and read the rows.
    """

    seconds: float = 3600.0
    memory_bytes: int = 4 << 30
    start_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("seconds", "memory_bytes", "start_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError.of(self, name, getattr(self, name), "must be > 0 and finite")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task: a reply as a frame, or a reason. ``state`` is what the client keeps.

    Without a reply the state is the one the task was given. ``epsilon`` is what was spent of the
    privacy budget.
    """

    kind: Literal["replied"] | FailureKind
    state: dict[str, Any]
    reply: bytes | None = None
    reason: str = ""
    epsilon: float = 0.0


class Worker:
    """The owner's rows and a process that runs tasks on them, one at a time.

    ``source`` is the data of one client or, better, a function that reads it. ``start`` is the way
    the process is made: "fork" where the system has it; "spawn" is right in a program with threads
    and needs a ``source`` that can be pickled, such as a ``functools.partial`` of ``open_source``.
    The rows are read at once, or with ``begin=False`` when they are first needed. With a ``guard``
    asks are answered by its policy; an agent sets one. Under "sums" all are refused, and ``source``
    is not read. ``table`` reads the rows by a dictionary, for closed jobs.
    """

    def __init__(
        self,
        source: Rows,
        limits: WorkerLimits | None = None,
        *,
        start: Literal["fork", "spawn"] | None = None,
        begin: bool = True,
        guard: Guard | None = None,
        table: TableSource | None = None,
    ) -> None:
        self.limits = limits or WorkerLimits()
        self.guard = guard
        self.start = start or ("fork" if hasattr(os, "fork") else "spawn")
        self._source, self._table = source, table
        self._turn = threading.Lock()
        self._child: Child | None = None
        if begin:
            self._begin()

    def change(self, guard: Guard) -> None:
        """Let the next task find this policy: in a new process, if it is another one."""
        with self._turn:
            if guard != self.guard:
                self._end()
            self.guard = guard

    def read(self, source: Rows, table: TableSource | None = None) -> None:
        """Let the next task find these rows: in a new process."""
        with self._turn:
            self._end()
            self._source, self._table = source, table or self._table

    def begin(self) -> None:
        """Start the process unless it runs; an error says why it cannot read the rows."""
        with self._turn:
            self._begin()

    def run(self, ask: Ask, client_id: int, state: Mapping[str, Any], job: str = "") -> Outcome:
        """Run the ask's task for this client; returns within the time limit, whatever it does.

        A :class:`DataError` says that the rows cannot be read now.
        """
        seconds = min(self.limits.seconds, ask.deadline or math.inf)
        ask = replace(ask, clients=np.array([client_id]))
        return self._carry_out({"ask": ask_to_payload(ask), "job": job}, dict(state), seconds)

    def add_up(self, order: Mapping[str, Any], seconds: float) -> Outcome:
        """The same for an order of a closed job, see :mod:`.closed.worker_side`."""
        return self._carry_out({"closed": True, **order}, dict(order["state"]), seconds)

    def _carry_out(self, order: dict[str, Any], before: dict[str, Any], seconds: float) -> Outcome:
        with self._turn:
            try:
                self._begin()
            except WorkerDied as error:
                return Outcome("crashed", before, reason=error.message)
            deadline = time.monotonic() + seconds
            kind: FailureKind = "failed"
            try:
                self._channel.send({**order, "state": before, "seconds": seconds}, deadline)
                return Outcome(**self._channel.receive(deadline))
            except TimeoutError:
                kind, reason = "late", f"the task took longer than {seconds:g} s"
            except (EOFError, OSError):
                kind, reason = "crashed", self._cause_of_death()
            except SoleraError as error:
                log.warning("%s", error)
                reason = "payload: the ask does not fit into a message"
            except BaseException:  # an answer nobody waited for must not be taken for the next one
                self._end()
                raise
            self._end()
            return Outcome(kind, before, reason=reason)

    def close(self) -> None:
        """End the process."""
        with self._turn:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self._end()

    # --- the process ---

    def _begin(self) -> None:
        """Start the process, unless it runs, and learn what it read."""
        if self._child is not None and self._child.alive:
            return
        self._end()
        ends = socket.socketpair()
        self._child = Child(
            self.start,
            ends,
            serve,
            self._source,
            self.limits.memory_bytes,
            self.guard,
            self._table,
        )
        self._channel = Channel(ends[0])
        try:
            read = self._channel.receive(time.monotonic() + self.limits.start_seconds)
        except TimeoutError:
            self._end()
            late = f"the rows could not be read within {self.limits.start_seconds:g} s"
            raise WorkerDied(late) from None
        except (EOFError, OSError):
            raise WorkerDied(f"reading the rows failed: {self._cause_of_death()}") from None
        if "error" in read:
            self._end()
            raise DataError(read["error"])
        self.rows: int = read["rows"]

    def _end(self) -> None:
        """End the process and what it may have started; it holds nothing that could be lost."""
        child, self._child = self._child, None
        if child is not None:
            child.stop()

    def _cause_of_death(self) -> str:
        """Why the process is gone."""
        child = self._child
        assert child is not None
        latest = time.monotonic() + 1.0
        while child.alive and time.monotonic() < latest:
            time.sleep(0.01)  # join() would wait for good when the task closed its files
        fate, out_of_memory = child.fate(), child.process.exitcode == OUT_OF_MEMORY
        self._end()
        if out_of_memory:
            return f"the task used more than {self.limits.memory_bytes:,} bytes of memory"
        return f"its process {fate}"
