"""Simulated clients on a Ray cluster: a laptop's own, or one that is there already.

The driver puts the source of the rows into Ray's object store once, where all workers of a node map
the same memory; of rows in files (:func:`solera.from_files`) only the list of files travels. Blocks
of the canonical fold tree are the unit of work: any worker serves any block and sends back its
partial, so that neither the number of workers nor their order changes a bit. What clients keep
between tasks travels with a block. A worker that dies, alone or with its node, loses nothing: its
blocks are asked of another.

Asks and answers go through shared memory of the driver where a worker can open it, being on the
same machine, and through Ray's object store where not: Ray needs some five milliseconds to bring a
megabyte from each of two workers. A worker's first answer says which it is.
"""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import finalize

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import Source
from solera.core.constraints import Count
from solera.core.engine import Ask, Block
from solera.core.errors import MissingExtra, SoleraError, TaskError
from solera.core.payload import decode, encode, encode_pieces
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
from solera.engines.faults import FaultModel
from solera.engines.frames import Frames
from solera.engines.jobs import Job, jobs_of, most_blocks, serve
from solera.engines.known import Known
from solera.trust.policy import Policy

_TRIES = 3
"""So often a block may take its worker down before its clients are given up."""
_IN_HAND = 2
"""Messages that a worker has before it: the next one waits where it is needed."""
_AHEAD = 4
"""Messages for each worker that may be answered before the block that is folded next."""


class RayEngine(Simulated):
    """Runs asks in ``workers`` actors of Ray, by default one for every core of the cluster.

    ``address`` is that of a cluster that is there already (``"auto"``, ``"ray://head:10001"``);
    without one, and unless Ray is running in this process, it is started on this machine.
    ``resources`` are those of one worker: ``{"cpu": 1, "gpu": 0.25}`` lets four share a GPU.
    ``object_store`` are the bytes of the object store of a Ray that is started here.
    """

    def __init__(
        self,
        source: Source,
        *,
        workers: Count | None = None,
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
        object_store: Count | None = None,
        fault_model: FaultModel | None = None,
        memory: int = MEMORY,
        policy: Policy | None = None,
    ) -> None:
        super().__init__(source, fault_model, memory, policy)
        self._ray = _library()
        self._starts_ray = not self._ray.is_initialized()
        self.workers = workers
        self.address = address
        self.resources = dict(resources or {"cpu": 1})
        self.object_store = object_store
        self._actors: list[_Worker] = []
        self._known: list[dict[str, Any]] = []
        self._shared: tuple[Any, ...] = ()
        self._asks = Frames()
        self._asked = 0
        finalize(self, _close, self._actors, self._asks)

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        self._check(ask)
        self._start_workers()
        told, fold_here = order_for(ask, aggregation)
        self._asked += 1
        order = _Order(self._asked, told, self._asks)
        states = self._states_of(ask.fit)
        waiting = jobs_of(ask, states, len(self._actors), each=1)  # a message takes a millisecond
        ahead = _AHEAD * len(self._actors) * most_blocks(waiting)
        done: dict[int, Block] = {}
        following = 0
        try:
            while waiting or following in done or any(worker.jobs for worker in self._actors):
                self._hand_out(waiting, order, following + ahead)
                while following in done:
                    yield done.pop(following)
                    following += 1
                for worker, reference in self._finished():
                    done.update(self._receive(worker, reference, waiting, fold_here))
        finally:
            for worker in self._actors:  # whoever stopped reading early leaves answers behind
                worker.forget()

    def close(self) -> None:
        _close(self._actors, self._asks)
        self._shared = ()
        if self._starts_ray and self._ray.is_initialized():
            self._ray.shutdown()

    # --- workers ---

    def _start_workers(self) -> None:
        """Start the workers, anew when something was registered by name since."""
        if not self._ray.is_initialized():
            here = {"num_cpus": self.workers, "object_store_memory": self.object_store}
            self._ray.init(
                address=self.address or "local",
                log_to_driver=False,
                configure_logging=False,
                **({} if self.address else {**here, "include_dashboard": False}),
            )
        installed_tasks()  # those of other packages, too
        known = registered()
        if self._actors and self._known != known:
            _close(self._actors, self._asks)
        if not self._actors:
            self._known = known
            self._shared = (list(sys.path), Known.of(known), [self._ray.put(self._runner)])
        wanted = self.workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        while len(self._actors) < wanted:
            self._actors.append(self._new_worker())

    def _new_worker(self) -> _Worker:
        others = {k: v for k, v in self.resources.items() if k not in ("cpu", "gpu")}
        actor = self._ray.remote(_Actor).options(
            num_cpus=self.resources.get("cpu", 1),
            num_gpus=self.resources.get("gpu", 0),
            resources=others or None,
        )
        return _Worker(actor.remote(*self._shared))

    def _hand_out(self, waiting: deque[Job], order: _Order, last: int) -> None:
        """Give every worker what it may have before it, but nothing far ahead of the fold."""
        for _ in range(_IN_HAND):
            for worker in self._actors:
                if not waiting or waiting[0].numbers[0] > last:
                    return
                if len(worker.jobs) < _IN_HAND:
                    job = waiting.popleft()
                    worker.give(job, order, _frame(job.message()))

    def _finished(self) -> list[tuple[_Worker, Any]]:
        """Workers and their answers, after waiting for one."""
        at_work = {reference: worker for worker in self._actors for reference in worker.jobs}
        if not at_work:
            return []
        ready, _ = self._ray.wait(list(at_work), num_returns=1)
        return [(at_work[reference], reference) for reference in ready]

    def _receive(
        self, worker: _Worker, reference: Any, waiting: deque[Job], fold_here: Aggregation | None
    ) -> dict[int, Block]:
        """The blocks of an answer by number; those of a worker that has died wait again."""
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return self._replace(worker, waiting, error)
        job, frame = worker.take(reference, answer)
        result = decode(frame, UNLIMITED)
        if "error" in result:
            raise TaskError(result["error"])
        return job.blocks(result, fold_here)

    def _replace(self, worker: _Worker, waiting: deque[Job], error: Exception) -> dict[int, Block]:
        """Another worker in the place of a dead one; a block that takes every worker down fails."""
        lost = [single for job, _ in worker.jobs.values() for single in job.singles()]
        worker.close()
        self._actors[self._actors.index(worker)] = self._new_worker()
        found = {}
        for job in lost:
            if job.tries < _TRIES:
                waiting.append(job)
                continue
            reason = f"its worker died {job.tries} times: {_first_line(error)}"
            (clients,) = job.clients
            failures = [Failure(client, "crashed", reason) for client in clients.tolist()]
            batch = Batch(NOBODY, [])
            found[job.numbers[0]] = Block(NOBODY, NOBODY, failures, batch=batch)
        ordered = sorted(waiting, key=lambda job: job.numbers[0])
        waiting.clear()
        waiting.extend(ordered)
        return found


@dataclass(slots=True)
class _Order:
    """An ask before its blocks, laid where workers find it when the first of them is given one."""

    number: int
    told: dict[str, Any]
    memory: Frames
    _places: dict[bool, Any] = field(default_factory=dict)

    def place(self, near: bool) -> Any:
        """Where it lies: in shared memory for workers that are near, in Ray's for the others."""
        if near not in self._places:
            self._places[near] = self._write(near)
        return self._places[near]

    def _write(self, near: bool) -> Any:
        import ray

        if near:
            with suppress(SoleraError):  # too little shared memory
                return self.memory.write(self.told)
        return ray.put(_frame(self.told))


@dataclass(eq=False, slots=True)
class _Worker:
    """The engine's view of an actor: what it was given and has not answered.

    Every job has room for its answer in shared memory, as long as the worker may be ``near``.
    """

    actor: Any
    jobs: dict[Any, tuple[Job, Frames]] = field(default_factory=dict)
    near: bool = False
    rooms: list[Frames] = field(default_factory=lambda: [_room() for _ in range(_IN_HAND)])

    def give(self, job: Job, order: _Order, frame: Any) -> None:
        room = self.rooms.pop() if self.rooms else Frames()
        place = order.place(self.near)
        self.jobs[self.actor.run.remote(order.number, place, frame, room.name)] = job, room

    def take(self, reference: Any, answer: tuple[bool, Any]) -> tuple[Job, Any]:
        """The job and the frame of its answer; the next one of this size finds room."""
        job, room = self.jobs.pop(reference)
        self.near, written = answer
        frame = room.read(written) if isinstance(written, list) else memoryview(written)
        self.rooms.append(room)
        if self.near:
            _make_room(room, len(frame))
        else:
            self._close_rooms()
        return job, frame

    def forget(self) -> None:
        """Nobody waits for its answers; it writes them before those of its next jobs."""
        self.rooms += [room for _, room in self.jobs.values()]
        self.jobs.clear()

    def close(self) -> None:
        self.forget()
        self._close_rooms()

    def _close_rooms(self) -> None:
        while self.rooms:
            self.rooms.pop().close(remove=True)


def _room() -> Frames:
    room = Frames()
    _make_room(room, 1)
    return room


def _make_room(room: Frames, size: int) -> None:
    with suppress(SoleraError):  # too little shared memory: answers come through Ray
        room.reserve(size)


class _Actor:
    """The life of a worker: decode an ask once, serve its jobs."""

    def __init__(self, path: list[str], known: Known, source: Any) -> None:
        sys.path.extend(folder for folder in path if folder not in sys.path)
        known.learn()
        self._known = known
        self._source = source
        self._runner: Runner | None = None
        self._orders = Frames(guest=True)
        self._room = Frames(guest=True)
        self._asked = 0
        self._ask: Ask | None = None
        self._aggregation: Aggregation | None = None

    def run(self, asked: int, place: Any, frame: Any, room: str) -> tuple[bool, Any]:
        """Whether the room could be opened, and the answer or where it lies in the room."""
        pieces = encode_pieces(self._answer(asked, place, frame), UNLIMITED)
        try:
            self._room.attach(room)
        except OSError:  # that of another machine or user, or none
            return False, _joined(pieces)
        if self._room.size < sum(map(len, pieces)):
            return True, _joined(pieces)
        return True, self._room.fill(pieces)

    def _answer(self, asked: int, place: Any, frame: Any) -> dict[str, Any]:
        """The blocks of a message, folded."""
        import ray

        try:
            if self._runner is None:
                self._runner = ray.get(self._source[0])
            if asked != self._asked:
                near = isinstance(place, list)
                order = self._orders.read(place) if near else memoryview(place)
                self._ask, self._aggregation = read_order(decode(order, UNLIMITED))
                self._asked = asked
            assert self._runner is not None
            assert self._ask is not None
            message = decode(memoryview(frame), UNLIMITED)
            return serve(self._runner, self._ask, self._aggregation, message)
        except Exception as error:
            reason = str(error) if isinstance(error, SoleraError) else traceback.format_exc()
            return {"error": self._known.explained(reason)}


def _frame(payload: Any) -> Any:
    """A payload as an array of bytes, which Ray hands over without a copy."""
    return _joined([encode(payload, UNLIMITED)])


def _joined(pieces: list[Any]) -> Any:
    return np.frombuffer(b"".join(pieces), dtype=np.uint8)


def _close(actors: list[_Worker], asks: Frames) -> None:
    """End the workers, where Ray is still there, and give shared memory back."""
    import ray

    for worker in actors:
        if ray.is_initialized():
            ray.kill(worker.actor)
        worker.close()
    actors.clear()
    asks.close(remove=True)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _library() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtra.of("engine='ray'", "ray") from None
    return ray
