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
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from solera.core.clients import Array, BoolArray, IntArray, Part, Segments
from solera.core.engine import Ask
from solera.core.errors import DataError, PayloadError, SoleraError, UsageError, WorkerDied
from solera.core.gate import ReleaseLimits
from solera.core.payload import DEFAULT_LIMITS, Limits, decode, encode, encode_pieces
from solera.core.replies import Failure, FailureKind
from solera.core.sealing import SealedOutside
from solera.data.federated import FederatedData
from solera.engines.asks import ask_from_payload, ask_to_payload
from solera.engines.blocks import Runner, States
from solera.engines.child import Child
from solera.engines.gates import RELEASED
from solera.serve.agent.error_codes import code_of
from solera.serve.agent.ledger import Ledger
from solera.serve.agent.releases import Releases

_LOCAL = Limits(size=4 * DEFAULT_LIMITS.size, structure=4 * DEFAULT_LIMITS.structure, depth=40)
"""A message holds an ask or a reply, each within the limits of its own, and the client's state."""
_OUT_OF_MEMORY = 77
_GRACE = 10.0
"""Seconds after which a process whose parent is gone ends a task that is over its time."""

Rows = FederatedData | Callable[[], FederatedData]

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
class Guard:
    """The limits of the gate that stands around the rows, and the files of what has left them.

    ``ledger`` is that of what left with noise.
    """

    limits: ReleaseLimits
    releases: Path
    ledger: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task: a reply as a frame, or a reason. ``state`` is what the client keeps.

    Without a reply the state is the one the task was given. ``counted`` are the numbers that the
    gate has counted as told for the first time, ``epsilon`` what was spent of the privacy budget.
    """

    kind: Literal["replied"] | FailureKind
    state: dict[str, Any]
    reply: bytes | None = None
    reason: str = ""
    counted: int = 0
    epsilon: float = 0.0


class Worker:
    """The owner's rows and a process that runs tasks on them, one at a time.

    ``source`` is the data of one client or, better, a function that reads it. ``start`` is the way
    the process is made: "fork" where the system has it; "spawn" is right in a program with threads
    and needs a ``source`` that can be pickled, such as a ``functools.partial`` of ``open_source``.
    The rows are read at once, or with ``begin=False`` when they are first needed. With a ``guard``
    the gate stands around the rows, in the same process; an agent sets one.
    """

    def __init__(
        self,
        source: Rows,
        limits: WorkerLimits | None = None,
        *,
        start: Literal["fork", "spawn"] | None = None,
        begin: bool = True,
        guard: Guard | None = None,
    ) -> None:
        self.limits = limits or WorkerLimits()
        self.guard = guard
        self.start = start or ("fork" if hasattr(os, "fork") else "spawn")
        self._source = source
        self._turn = threading.Lock()
        self._child: Child | None = None
        if begin:
            self._begin()

    def change(self, guard: Guard) -> None:
        """Let the next task find this gate: in a new process, if it is another one."""
        with self._turn:
            if guard != self.guard:
                self._end()
            self.guard = guard

    def read(self, source: Rows) -> None:
        """Let the next task find these rows: in a new process."""
        with self._turn:
            self._end()
            self._source = source

    def begin(self) -> None:
        """Start the process unless it runs; an error says why it cannot read the rows."""
        with self._turn:
            self._begin()

    def run(self, ask: Ask, client_id: int, state: Mapping[str, Any], job: str = "") -> Outcome:
        """Run the ask's task for this client; returns within the time limit, whatever it does.

        A :class:`DataError` says that the rows cannot be read now.
        """
        with self._turn:
            before = dict(state)
            try:
                self._begin()
            except WorkerDied as error:
                return Outcome("crashed", before, reason=error.message)
            seconds = min(self.limits.seconds, ask.deadline or math.inf)
            deadline = time.monotonic() + seconds
            kind: FailureKind = "failed"
            try:
                ask = replace(ask, clients=np.array([client_id]))
                order = {
                    "ask": ask_to_payload(ask),
                    "state": before,
                    "seconds": seconds,
                    "job": job,
                }
                self._channel.send(order, deadline)
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
        self._child = Child(self.start, ends, _serve, self._source, self.limits, self.guard)
        self._channel = _Channel(ends[0])
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
        fate, out_of_memory = child.fate(), child.process.exitcode == _OUT_OF_MEMORY
        self._end()
        if out_of_memory:
            return f"the task used more than {self.limits.memory_bytes:,} bytes of memory"
        return f"its process {fate}"


class _Channel:
    """Payloads over a local socket, each behind its length; no wait goes past its deadline."""

    _length = struct.Struct("<Q")

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def send(self, payload: Any, deadline: float | None = None) -> None:
        pieces = encode_pieces(payload, _LOCAL)
        size = sum(len(piece) for piece in pieces)
        for piece in (self._length.pack(size), *pieces):
            self._wait_until(deadline)
            self.end.sendall(piece)

    def receive(self, deadline: float | None = None) -> Any:
        (size,) = self._length.unpack(self._take(self._length.size, deadline))
        if size > _LOCAL.size:
            raise EOFError(f"a message of {size:,} bytes")
        return decode(self._take(size, deadline), _LOCAL)

    def _take(self, size: int, deadline: float | None) -> bytearray:
        taken = bytearray(size)
        view, at = memoryview(taken), 0
        while at < size:
            self._wait_until(deadline)
            count = self.end.recv_into(view[at:])
            if not count:
                raise EOFError
            at += count
        return taken

    def _wait_until(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        self.end.settimeout(left)


# --- in the process ---


def _serve(end: socket.socket, source: Rows, limits: WorkerLimits, guard: Guard | None) -> None:
    """The life of the process: read the rows, then run one task after the other."""
    channel = _Channel(end)
    try:
        rows = _Owner(source() if callable(source) else source)
        gate = None if guard is None else _gate_of(guard)
    except Exception as error:
        if not isinstance(error, SoleraError):
            log.warning("the rows cannot be read", exc_info=error)
        channel.send({"error": str(error)})  # to the owner's own log
        return
    _limit_memory(limits.memory_bytes)
    try:
        channel.send({"rows": rows.count})
        _serve_asks(channel, rows, gate)
    except (EOFError, OSError):
        return
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)


_Gate = tuple[ReleaseLimits, Releases, Ledger | None] | None


def _gate_of(guard: Guard) -> _Gate:
    ledger = None if guard.ledger is None else Ledger(guard.ledger)
    return guard.limits, Releases(guard.releases), ledger


def _serve_asks(channel: _Channel, rows: _Owner, gate: _Gate) -> None:
    limits, releases, ledger = gate or (None, None, None)
    runner, steps = _runner(rows, limits, ledger), list[str]()
    while True:
        order = channel.receive()
        ask = ask_from_payload(order["ask"])
        if (wanted := [step.digest for step in ask.prepare]) != steps:
            runner, steps = _runner(rows, limits, ledger), wanted  # one prepared copy at a time
        if ledger is not None:
            ledger.begin(order["job"])
        _alarm(order["seconds"] + _GRACE)
        channel.send(_answer(runner, ask, order["state"], releases))
        _alarm(0)


def _runner(rows: _Owner, limits: ReleaseLimits | None, ledger: Ledger | None) -> Runner:
    runner = Runner(rows, limits=limits, ledger=ledger)
    runner.sealer = SealedOutside()  # the agent has the keys
    return runner


def _answer(
    runner: Runner, ask: Ask, state: dict[str, Any], releases: Releases | None
) -> dict[str, Any]:
    """What became of the task; what leaves with its reply is on disk before this returns."""
    client = int(ask.clients[0])
    known = state if releases is None else {**state, RELEASED: releases.kept}
    states: States = {client: known} if known else {}
    try:
        block = runner.block(ask, ask.clients, states, None)
        if not block.failures:
            assert block.batch is not None
            frame = encode(block.batch.payloads[0])
            after = states.get(client, {})
            left = after.pop(RELEASED, None)
            counted = 0 if releases is None else releases.keep(left)
            ledger = None if runner.gates is None else runner.gates.ledger
            spent = ledger.last if isinstance(ledger, Ledger) else 0.0
            told = {"counted": counted, "epsilon": spent}
            return {"kind": "replied", "reply": frame, "state": after, **told}
        failure = block.failures[0]
    except Exception as caught:
        failure = Failure(client, "failed", "", caught)
    error = failure.error
    if isinstance(error, MemoryError):
        raise error
    if error is None:  # a reply that is not what a reply must be: the text is of its shape
        error = PayloadError(failure.reason)
    schema = runner.source.schema
    return {"kind": failure.kind, "reason": code_of(error, ask.task, schema), "state": state}


class _Owner:
    """The owner's rows, under whatever number the coordinator knows this client by."""

    clients = 1

    def __init__(self, data: FederatedData) -> None:
        if data.clients != 1:
            raise DataError(f"the data is of {data.clients:,} clients, an owner is one")
        self.data = data
        self.schema = data.schema
        self.count = int(data.sizes()[0])

    def segments(self, clients: IntArray, part: Part) -> Segments:
        return self.data.segments(np.zeros_like(clients), part)

    def sizes(self, part: Part) -> None:
        return None

    def units(self, client: int, part: Part) -> IntArray | None:
        return self.data.units(0, part)

    def identifiers_of(self, client: int, part: Part) -> Array | None:
        return self.data.identifiers_of(0, part)

    def labelled_of(self, client: int, part: Part) -> BoolArray | None:
        return self.data.labelled_of(0, part)

    def prepared(self, steps: Sequence[Any]) -> _Owner:
        return _Owner(self.data.prepared(steps))


def _alarm(seconds: float) -> None:
    """The system ends this process after so many seconds, 0: never. Only a lost parent needs it."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory(more: int) -> None:
    """Let this process grow by so many bytes; a crash leaves no file with rows behind."""
    try:
        import resource
    except ImportError:  # a system without limits
        return
    now = 0
    with suppress(OSError), open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = now + more if most == resource.RLIM_INFINITY else min(now + more, most)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
