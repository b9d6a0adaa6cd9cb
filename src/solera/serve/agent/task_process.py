"""The process in which tasks run on an owner's rows: the other end of a worker."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.clients import Array, BoolArray, IntArray, Part, Segments
from solera.core.engine import Ask
from solera.core.errors import DataError, PayloadError, PolicyRefusal, SoleraError
from solera.core.payload import encode
from solera.core.replies import Failure
from solera.core.sealing import SealedOutside
from solera.data.federated import FederatedData
from solera.engines.asks import ask_from_payload
from solera.engines.blocks import Runner
from solera.engines.states import States
from solera.serve.agent.channel import Channel
from solera.serve.agent.closed.worker_side import ClosedTasks, TableSource
from solera.serve.agent.error_codes import code_of
from solera.serve.agent.ledger import Ledger
from solera.trust.open_asks import FIT_INSTEAD, NO_OPEN_ASKS
from solera.trust.policy import Policy

OUT_OF_MEMORY = 77
"""The exit code of a process that needed more memory than it may have."""
_GRACE = 10.0
"""Seconds after which a process whose parent is gone ends a task that is over its time."""

Rows = FederatedData | Callable[[], FederatedData]

log = logging.getLogger("solera.agent")


@dataclass(frozen=True, slots=True)
class Guard:
    """The policy by which asks are answered, and the file of what left with noise."""

    policy: Policy
    ledger: Path | None = None

    @property
    def lets_ask(self) -> bool:
        """Whether a driver may ask anything; if not, only closed jobs read rows."""
        return self.policy.policy != "sums"


# --- in the process ---


def serve(
    end: socket.socket,
    source: Rows,
    memory_bytes: int,
    guard: Guard | None,
    table: TableSource | None = None,
) -> None:
    """The life of the process: read the rows, if any may be asked about, and run the tasks."""
    channel = Channel(end)
    rows = None
    try:
        if guard is None or guard.lets_ask:
            rows = _Owner(source() if callable(source) else source)
        ledger = None if guard is None or guard.ledger is None else Ledger(guard.ledger)
    except Exception as error:
        if not isinstance(error, SoleraError):
            log.warning("the rows cannot be read", exc_info=error)
        channel.send({"error": str(error)})  # to the owner's own log
        return
    _limit_memory(memory_bytes)
    try:
        channel.send({"rows": 0 if rows is None else rows.count})
        _serve_asks(channel, rows, None if guard is None else guard.policy, ledger, table)
    except (EOFError, OSError):
        return
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def _serve_asks(
    channel: Channel,
    rows: _Owner | None,
    policy: Policy | None,
    ledger: Ledger | None,
    table: TableSource | None,
) -> None:
    runner = None if rows is None else _runner(rows, policy, ledger)
    steps = list[str]()
    closed = ClosedTasks(table, policy or Policy.of("sums"))
    while True:
        order = channel.receive()
        if "closed" in order:
            channel.send(closed.answer(order))
            continue
        if rows is None or runner is None:
            reason = str(PolicyRefusal(NO_OPEN_ASKS, hint=FIT_INSTEAD))
            channel.send({"kind": "refused", "reason": reason, "state": order["state"]})
            continue
        ask = ask_from_payload(order["ask"])
        if (wanted := [step.digest for step in ask.prepare]) != steps:
            runner, steps = _runner(rows, policy, ledger), wanted  # one prepared copy at a time
        if ledger is not None:
            ledger.begin(order["job"])
        _alarm(order["seconds"] + _GRACE)
        channel.send(_answer(runner, ask, order["state"]))
        _alarm(0)


def _runner(rows: _Owner, policy: Policy | None, ledger: Ledger | None) -> Runner:
    runner = Runner(rows, policy=policy, ledger=ledger)
    runner.sealer = SealedOutside()  # the agent has the keys
    return runner


def _answer(runner: Runner, ask: Ask, state: dict[str, Any]) -> dict[str, Any]:
    """What became of the task; what its noise was worth is on disk before this returns."""
    client = int(ask.clients[0])
    states: States = {client: state} if state else {}
    try:
        block = runner.block(ask, ask.clients, states, None)
        if not block.failures:
            assert block.batch is not None
            frame = encode(block.batch.payloads[0])
            after = states.get(client, {})
            spent = runner.ledger.last if isinstance(runner.ledger, Ledger) else 0.0
            return {"kind": "replied", "reply": frame, "state": after, "epsilon": spent}
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
