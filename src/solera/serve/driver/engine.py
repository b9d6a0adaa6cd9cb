"""The engine of real federations: asks travel through a coordinator to clients far away.

Every ask has a key, (job, sequence number). The coordinator stores it and every reply before it
acknowledges them, so a driver that dies may be started again with the same job: it asks the same
things in the same order and gets the stored replies back.
"""

from __future__ import annotations

import hashlib
import logging
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from msgspec import UNSET

from solera.core.aggregation import Aggregation, blocks
from solera.core.clients import IntArray, Part
from solera.core.engine import Ask, Block, Fit, PerClient
from solera.core.errors import PayloadError
from solera.core.payload import decode, encode
from solera.core.replies import Batch, Failure, FailureKind
from solera.core.schema import Schema
from solera.core.task import find_task
from solera.engines.folds import validate_and_fold
from solera.serve import wire
from solera.serve.connection import Connection
from solera.serve.driver.agreed_rows import AgreedRows
from solera.serve.driver.downloads import frames_of
from solera.serve.driver.signatures import Signatures
from solera.serve.driver.told import Told
from solera.serve.peers import KnownKeys

log = logging.getLogger("solera")

_WAIT = 20
_PATIENCE, _REMIND = 10.0, 600.0
"""Seconds of waiting after which it is said for whom, and said again."""
_ALL_AT_ONCE = 64
"""Up to this many replies are fetched together; of more, a block as soon as it may be there."""
_CARRIED = 1 << 20
"""Bytes that may travel with an ask."""
_LARGE = 64 << 20
"""Bytes of replies that are held until it is certain that they can be merged."""
SAVE_SECONDS = 5.0
"""How often the state of a loop is kept at the coordinator."""
_KINDS: dict[str, FailureKind] = {
    "refused": "refused",
    "failed": "failed",
    "late": "late",
    "dropped": "dropped",
}


class HttpEngine:
    """Carries asks of one job to the clients of one federation.

    Clients are known by their enrolment numbers; ``active`` are those that took part when the job
    began, so that a replay asks the same ones. A reply counts if the client signed it, with the key
    in ``known``, for what was asked: the coordinator's word is not enough.
    """

    def __init__(self, connection: Connection, job: str, known: KnownKeys | None = None) -> None:
        self.connection = connection
        self.job = job
        self._sequence = 0
        self._rows = AgreedRows()
        stored = connection.call("GET", f"/v1/jobs/{job}", wire.Job)
        self.active = stored.clients or []
        self._federation = stored.federation
        self.replayed = False
        """Whether the last ask was made before, by a driver that ended since."""
        self.told = Told()
        self.signatures = Signatures(connection, stored.federation, job, known or KnownKeys())

    @property
    def clients(self) -> int:
        return len(self.active)

    @property
    def numbers(self) -> list[int]:
        """The enrolment numbers of the clients, by which they know themselves."""
        return self.active

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """What the clients are called, in their order."""
        path = f"/v1/federations/{self._federation}"
        members = self.connection.call("GET", path, wire.Members).clients
        names = {member.id: member.name for member in members}
        return tuple(names.get(number, f"client {number}") for number in self.active)

    @property
    def schema(self) -> Schema | None:
        return None

    def sizes(self, part: Part) -> IntArray | None:
        return None

    def states(self, fit: Any = None) -> dict[int, Any]:
        """Clients keep their state themselves; a job only needs to know how far it has asked."""
        return {-1: {"sequence": self._sequence}}

    def restore(self, states: Mapping[int, Any], fit: Any = None) -> None:
        self._sequence = int(states[-1]["sequence"])

    def keeps(self, fit: Fit) -> bool:
        """Whether clients keep something of a fit: of the one of this job."""
        return True

    def checkpoint_store(self) -> CoordinatorCheckpointStore:
        return CoordinatorCheckpointStore(self)

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        path, asked = self._post(ask)
        fetched = _Fetched(self, path, [self.active[c] for c in ask.clients.tolist()])
        found = self._blocks(ask, asked, aggregation, fetched, self._sequence - 1)
        if aggregation is not None and len(ask.clients) <= _ALL_AT_ONCE:
            found = iter(self._fitting(ask, asked, aggregation, fetched, found))
        for block in found:
            for failure in block.failures:
                report(self.connection, path, self.active[failure.client], failure)
            yield block

    def _fitting(
        self,
        ask: Ask,
        asked: wire.NewAsk,
        aggregation: Aggregation,
        fetched: _Fetched,
        found: Iterator[Block],
    ) -> Iterator[Block]:
        """The blocks, once it is certain that they can be merged: who does not fit is left out.

        Large replies are passed on as they come: tasks that have such say what they look like.
        """
        held: list[Block] = []
        total: Any = None
        for block in found:
            held.append(block)
            if sum(int(b.up.sum()) for b in held) > _LARGE:
                break
            try:
                total = aggregation.merge(total, block.partial)
            except Exception:
                batch, _ = self._read(ask.clients, fetched.replies)
                task = find_task(ask.task, ask.version)
                sound = validate_and_fold(task, ask, batch, [], 0.0, None).batch
                assert sound is not None
                sound, _ = sound.liftable(aggregation.lift)
                _, misfits = sound.combinable(aggregation.lift, aggregation.merge)
                sequence = self._sequence - 1
                return self._blocks(ask, asked, aggregation, fetched, sequence, misfits)
        return chain(held, found)

    def _blocks(
        self,
        ask: Ask,
        asked: wire.NewAsk,
        aggregation: Aggregation | None,
        fetched: _Fetched,
        sequence: int,
        misfits: Sequence[Failure] = (),
    ) -> Iterator[Block]:
        task = find_task(ask.task, ask.version)
        for positions in blocks(len(ask.clients)):
            clients = ask.clients[positions]
            fetched.until_here([self.active[c] for c in clients.tolist()])
            for client in clients.tolist():
                reply = fetched.replies.get(self.active[client])
                if reply is not None and (reply.status == "ok" or reply.signature is not None):
                    self.signatures.check(reply.client, sequence, ask.seed, ask.round, asked, reply)
            batch, failures = self._read(clients, fetched.replies)
            batch, failed = self._rows.checked(ask, batch)
            failures += failed
            batch, failed = batch.without([f for f in misfits if f.client in batch.clients])
            failures += failed
            block = validate_and_fold(task, ask, batch, failures, 0.0, aggregation)
            self.told.note(ask.task, batch, block.failures)
            yield block

    def _post(self, ask: Ask) -> tuple[str, wire.NewAsk]:
        """Store the ask at the coordinator; the same one again is the same ask."""
        path = f"/v1/jobs/{self.job}/asks/{self._sequence}"
        self._sequence += 1
        frames: dict[str, str] = {}
        prepare = [step.description for step in ask.prepare]
        new = wire.NewAsk.of(
            ask,
            payload=self._payload(ask, frames),
            prepare=self._blob(prepare, frames) if prepare else None,
            frames=frames,
            clients=[self.active[c] for c in ask.clients.tolist()],
            seconds=ask.deadline,
        )
        told = self.connection.request("PUT", path, json=new).json()
        self.replayed = not told.get("new", True)
        return path, new

    def _payload(self, ask: Ask, frames: dict[str, str]) -> str | dict[int, str]:
        if not isinstance(ask.payload, PerClient):
            return self._blob(wire.covered(ask.payload, ask.cover), frames)
        payloads = ask.payload.payloads
        return {
            self.active[c]: self._blob(wire.covered(payloads[c], ask.cover), frames)
            for c in ask.clients.tolist()
        }

    def _blob(self, content: Any, frames: dict[str, str]) -> str:
        """The name of a blob, which is uploaded or, if small, among the frames of the ask."""
        frame = encode(content)
        carried = sum(map(len, frames.values()))
        if len(frame) > wire.INLINE or carried + len(frame) > _CARRIED:
            return self.connection.upload(frame)
        digest = hashlib.sha256(frame).hexdigest()
        frames[digest] = b64encode(frame).decode()
        return digest

    def _read(
        self, clients: IntArray, replies: Mapping[int, wire.Reply]
    ) -> tuple[Batch, list[Failure]]:
        answered, payloads, sizes = [], [], []
        failures: list[Failure] = []
        theirs = [replies.get(self.active[client]) for client in clients.tolist()]
        frames = frames_of(self.connection, theirs)
        for client, reply, frame in zip(clients.tolist(), theirs, frames, strict=True):
            if reply is None:
                failures.append(Failure(client, "late", "no reply before the ask was closed"))
            elif frame is None:
                kind = _KINDS.get(reply.status, "failed")
                failures.append(Failure(client, kind, reply.reason))
            else:
                try:
                    if isinstance(frame, PayloadError):
                        raise frame
                    payloads.append(decode(frame))
                except PayloadError as error:
                    failures.append(Failure(client, "corrupt", error.message))
                    continue
                answered.append(client)
                sizes.append(len(frame))
        batch = Batch(np.array(answered, np.int64), payloads, np.array(sizes, np.int64))
        return batch, failures

    def close(self) -> None:
        self.connection.close()


class _Fetched:
    """The replies to one ask, as far as they are here; fetched when they are needed."""

    def __init__(self, engine: HttpEngine, path: str, asked: Sequence[int]) -> None:
        self.replies: dict[int, wire.Reply] = {}
        self._engine, self._path, self._asked = engine, path, asked

    def until_here(self, clients: Sequence[int]) -> None:
        """Wait until all of these clients have answered or failed."""
        wanted = self._asked if len(self._asked) <= _ALL_AT_ONCE else clients
        first, last = min(wanted), max(wanted)
        known = sum(first <= client <= last for client in self._asked) - 1
        query = f"{self._path}/replies?first={first}&last={last}&known={known}&wait={_WAIT}"
        complete = all(client in self.replies for client in clients)
        began, late = time.strftime("%H:%M:%S"), time.monotonic() + _PATIENCE
        while not complete:
            so_far = self._engine.connection.call("GET", query, wire.Replies)
            self.replies |= {reply.client: reply for reply in so_far.replies}
            complete = so_far.complete
            if not complete and time.monotonic() >= late:
                late += _REMIND
                names = dict(zip(self._engine.active, self._engine.client_names, strict=True))
                missing = ", ".join(names[c] for c in wanted if c not in self.replies)
                log.warning("%s: waiting for %s since %s", self._engine.job, missing, began)


def report(connection: Connection, ask_path: str, client: int, failure: Failure) -> None:
    """Tell of a reply that came and is of no use: only the driver knows, all should."""
    if failure.kind in ("corrupt", "invalid"):
        problem = wire.NewProblem(client, failure.reason[:2000])
        connection.request("POST", f"{ask_path}/problems", json=problem)


class CoordinatorCheckpointStore:
    """Keeps the state of a loop at the coordinator, which then lets go of the replies before it.

    Not after every round: a replay from an earlier state gets the replies since then back, and
    ends the same.
    """

    def __init__(self, engine: HttpEngine) -> None:
        self._engine = engine
        self._first = engine._sequence
        self._path = f"/v1/jobs/{engine.job}/checkpoint"
        self._saved = time.monotonic()

    def __str__(self) -> str:
        return f"of job {self._engine.job!r}"

    def read(self) -> bytes | None:
        connection = self._engine.connection
        kept = connection.call("GET", f"{self._path}?first={self._first}", wire.Checkpoint)
        return None if kept.digest is UNSET else connection.download(kept.digest)

    def write(self, content: Callable[[], bytes]) -> None:
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self.save(content())

    def save(self, content: bytes) -> None:
        """Keep this now."""
        connection = self._engine.connection
        digest = connection.upload(content)
        reached = wire.NewCheckpoint(self._first, self._engine._sequence, digest)
        connection.request("PUT", self._path, json=reached)
        self._saved = time.monotonic()
