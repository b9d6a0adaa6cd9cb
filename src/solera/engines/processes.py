"""Simulated clients in worker processes that stay alive between asks.

Every worker maps the same rows (pages shared copy-on-write where processes are forked), so any of
them can serve any block of clients: blocks go, a few at a time, to whoever is free, and the work is
balanced whatever the clients' sizes. Payloads are encoded once into shared memory and read from
there by all workers; a worker folds its blocks and leaves one partial each in shared memory of its
own. Folding follows the canonical tree, so the number of workers and the order of arrival change no
bit of a result.

What clients keep between tasks is held by the engine and travels with a block to its worker and
back; losing a worker loses nothing but the block that it died of.
"""

from __future__ import annotations

import multiprocessing
import sys
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Literal
from weakref import finalize

from solera.core.aggregation import Aggregation
from solera.core.clients import Source
from solera.core.constraints import Count
from solera.core.engine import Ask, Block
from solera.core.errors import SoleraError, TaskError
from solera.core.payload import decode, encode
from solera.core.registry import registered
from solera.core.replies import Batch, Failure
from solera.core.task import installed_tasks
from solera.engines.asks import (
    NOBODY,
    UNLIMITED,
    order_for,
    read_order,
)
from solera.engines.blocks import MEMORY, Runner, Simulated
from solera.engines.child import Child
from solera.engines.faults import FaultModel
from solera.engines.frames import Frames
from solera.engines.jobs import Job, jobs_of, most_blocks, serve
from solera.engines.known import Known
from solera.engines.threads import cores
from solera.trust.policy import Policy


class ProcessEngine(Simulated):
    """Runs asks in ``workers`` processes (the number of cores by default).

    ``start`` is the way processes are made: "fork", so that tasks and data defined in a notebook
    are simply there, or "spawn", which copies them. By default they are forked where the system can
    and PyTorch sees no GPU, which does not survive a fork.
    """

    def __init__(
        self,
        source: Source,
        *,
        workers: Count | None = None,
        fault_model: FaultModel | None = None,
        memory: int = MEMORY,
        policy: Policy | None = None,
        start: Literal["fork", "spawn"] | None = None,
    ) -> None:
        super().__init__(source, fault_model, memory, policy)
        self.workers = cores() if workers is None else workers
        self.start = start
        self._workers: list[_Worker] = []
        self._known: list[dict[str, Any]] = []
        self._asks = Frames()
        finalize(self, _close, self._workers, self._asks)  # when it is not used, or Python ends

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        self._check(ask)
        self._start_workers()
        order, fold_here = order_for(ask, aggregation)
        place = self._asks.write(order)
        waiting = jobs_of(ask, self._states_of(ask.fit), self.workers, each=2)
        ahead = 4 * self.workers * most_blocks(waiting)
        done: dict[int, Block] = {}
        following = 0
        try:
            while waiting or following in done or any(w.busy for w in self._workers):
                for worker in self._workers:
                    near = waiting and waiting[0].numbers[0] <= following + ahead
                    if near and not worker.busy:
                        self._assign(worker, place, waiting.popleft())
                while following in done:
                    yield done.pop(following)
                    following += 1
                for worker in self._ready():
                    job = worker.job
                    assert job is not None
                    done.update(self._receive(worker, job, waiting, fold_here))
        finally:
            for worker in self._workers:  # whoever stopped reading early leaves answers behind
                if worker.job is not None:
                    self._receive(worker, worker.job, deque(), None)

    def close(self) -> None:
        _close(self._workers, self._asks)

    # --- workers ---

    def _start_workers(self) -> None:
        """Start the workers, anew when something was registered by name since."""
        installed_tasks()  # those of other packages, too
        known = registered()
        if self._workers and self._known != known:
            self.close()
        self._known = known
        resource_tracker.ensure_running()  # one tracker for all, started before the first fork
        while len(self._workers) < self.workers:
            self._workers.append(self._new_worker())

    def _new_worker(self) -> _Worker:
        method = self.start or _way()
        known = Known.of(self._known) if method == "spawn" else Known()
        return _Worker(Child(method, multiprocessing.Pipe(), _work, self._runner, known), Frames())

    def _ready(self) -> list[_Worker]:
        busy = {worker.pipe: worker for worker in self._workers if worker.busy}
        return [busy[pipe] for pipe in wait(list(busy))] if busy else []  # type: ignore[index]

    def _assign(self, worker: _Worker, place: list[Any], job: Job) -> None:
        worker.job = job
        message = encode({"ask": place, **job.message()}, UNLIMITED)
        with suppress(BrokenPipeError):  # a dead worker shows when its answer is read
            worker.pipe.send_bytes(message)

    def _receive(
        self, worker: _Worker, job: Job, waiting: deque[Job], fold_here: Aggregation | None
    ) -> dict[int, Block]:
        """The blocks of an answer by number."""
        worker.job = None
        try:
            answer = decode(worker.pipe.recv_bytes(), UNLIMITED)
        except (EOFError, OSError):
            return self._restart(worker, job, waiting)
        if "error" in answer:
            raise TaskError(answer["error"])
        result = decode(worker.results.read(answer["place"]), UNLIMITED)
        return job.blocks(result, fold_here)

    def _restart(self, worker: _Worker, job: Job, waiting: deque[Job]) -> dict[int, Block]:
        """Another worker in the place of a dead one, which fails the one block that it served.

        Of several each is tried alone, to find out which it was.
        """
        worker.stop()
        reason = f"its worker process {worker.child.fate()}"
        self._workers[self._workers.index(worker)] = self._new_worker()
        if len(job.numbers) > 1:
            waiting.extendleft(reversed(job.singles()))
            return {}
        failures = [Failure(client, "crashed", reason) for client in job.clients[0].tolist()]
        return {job.numbers[0]: Block(NOBODY, NOBODY, failures, batch=Batch(NOBODY, []))}


def _close(workers: list[_Worker], asks: Frames) -> None:
    """End the workers and give shared memory back."""
    for worker in workers:
        worker.stop()
    workers.clear()
    asks.close(remove=True)


@dataclass(slots=True)
class _Worker:
    """The engine's end of a worker process."""

    child: Child
    results: Frames
    job: Job | None = None

    @property
    def busy(self) -> bool:
        return self.job is not None

    @property
    def pipe(self) -> Connection:
        pipe: Connection = self.child.end
        return pipe

    def stop(self) -> None:
        self.child.stop(grace=5)
        self.results.close(remove=True)  # what a worker that died left behind


def _way() -> str:
    """How workers are started unless the user says it.

    A fork cannot use a GPU that its parent has looked for, and where there is one PyTorch computes
    no gradients in it, not even on the CPU, once its parent has.
    """
    torch = sys.modules.get("torch")
    wakes = torch is not None and torch.cuda.is_available()
    return "spawn" if wakes or "fork" not in multiprocessing.get_all_start_methods() else "fork"


def _work(pipe: Connection, runner: Runner, known: Known) -> None:
    """The life of a worker: read a message, serve its job, leave the result in shared memory."""
    known.learn()
    asks, results = Frames(), Frames()
    asked: list[Any] = []
    ask: Ask | None = None
    aggregation: Aggregation | None = None
    while True:
        try:
            message = decode(pipe.recv_bytes(), UNLIMITED)
        except (EOFError, OSError):
            break
        try:
            if message["ask"] != asked:
                ask, aggregation = read_order(decode(asks.read(message["ask"]), UNLIMITED))
                asked = message["ask"]
            assert ask is not None
            place = results.write(serve(runner, ask, aggregation, message))
            pipe.send_bytes(encode({"place": place}))
        except Exception as error:
            reason = str(error) if isinstance(error, SoleraError) else traceback.format_exc()
            pipe.send_bytes(encode({"error": known.explained(reason)}))
    ask = None
    asks.close()
    results.close(remove=True)
