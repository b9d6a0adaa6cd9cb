"""The client's agent: connects outwards, runs what its policy allows, and remembers what it did.

One ask at a time: look for work, check the policy, run the task in the worker process, write state
and reply to disk in one step, log what leaves, send it. Whatever dies in between, the ask is still
pending at the coordinator afterwards; an ask whose reply is on disk is answered from there, so that
a task never counts twice.
"""

from __future__ import annotations

import hashlib
import logging
import signal
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from solera.core.engine import Ask, Preparation
from solera.core.errors import (
    DataError,
    PayloadError,
    Refusal,
    SoleraError,
    UsageError,
    WorkerDied,
)
from solera.core.payload import decode, encode
from solera.core.private_files import write_file
from solera.core.task import installed_tasks
from solera.serve import wire
from solera.serve.agent import home
from solera.serve.agent.approvals import Approvals
from solera.serve.agent.heartbeat import Heartbeat
from solera.serve.agent.held_jobs import HeldJob, HeldJobs, describe
from solera.serve.agent.policy import JobFacts, NeedsApproval, Policy
from solera.serve.agent.worker import Worker
from solera.serve.audit import AuditLog
from solera.serve.connection import CoordinatorError
from solera.serve.identity import Identity, ask_digest, reply_message, seal_key_message

log = logging.getLogger("solera.agent")

_HELD_SECONDS = 1.0
_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_TROUBLE = (DataError, WorkerDied, OSError)
"""What keeps a client from working and may pass: rows that are away, a disk that is full."""
_MOST_STATES = 64
"""Jobs whose state is kept; of more, the one that was worked on longest ago is let go."""


class Memory(msgspec.Struct, frozen=True):
    """The last reply, and what this client keeps of every job from task to task."""

    job: str | None
    sequence: int | None
    status: wire.Status
    reason: str
    frame: bytes
    states: dict[str, Any]

    def answers(self, ask: wire.PendingAsk) -> bool:
        """Whether the reply is to this ask."""
        return (self.job, self.sequence) == (ask.job, ask.sequence)


_NOTHING = Memory(None, None, "ok", "", b"", {})


class Agent:
    """The agent of one client, living in ``folder``; see :meth:`join` and :meth:`run`."""

    def __init__(
        self,
        folder: str | Path,
        worker: Worker,
        policy: Policy,
        *,
        patience: float = 60.0,
    ) -> None:
        self.folder = Path(folder)
        self.worker = worker
        self.policy = policy
        self.identity = Identity.load(self.folder)
        self.place = home.read_place(self.folder)
        self._memory()  # a damaged one is found out now
        self.approvals = Approvals(self.folder / home.APPROVALS, policy.approval.approvers)
        self.audit = AuditLog(self.folder / home.LOG, self.identity)
        self._lock = home.Lock(self.folder)
        self.head = self.audit.head()
        self.held = HeldJobs(self.folder / home.HELD)
        self.connection = home.connect_to(self.place, self.identity, patience)
        self.stop = threading.Event()
        self.doing = ""
        self._held: list[wire.PendingAsk] = []
        self._listed: set[str] | None = None

    # --- joining ---

    @staticmethod
    def join(folder: str | Path, url: str, token: str, *, ca: str | None = None) -> home.Place:
        """Make keys, enrol them with a one-time token, and remember where."""
        folder = Path(folder)
        try:
            identity = Identity.load(folder)
        except UsageError:
            identity = Identity.create(folder)
        federation = token.partition("/")[0]
        connection = home.connect(identity, url, ca, federation, 10.0)
        vouched = identity.sign(seal_key_message(federation, identity.seal_key))
        join = wire.Join(
            token=token,
            sign_key=identity.sign_key.hex(),
            seal_key=identity.seal_key.hex(),
            seal_signature=vouched.hex(),
            tasks={name: task.version for name, task in installed_tasks().items()},
        )
        enrolled = connection.call("POST", "/v1/join", wire.Enrolled, join)
        connection.close()
        place = home.Place(url, ca, enrolled.client, enrolled.name, federation)
        home.write_place(folder, place)
        return place

    # --- working ---

    def run(self, wait: float = 20.0) -> None:
        """Work until :attr:`stop` is set or the process is told to end (SIGTERM).

        A coordinator that is away is waited for, and so are rows that cannot be read and a disk
        that is full.
        """
        with suppress(_Terminated), _terminated_by_signal():
            with suppress(*_TROUBLE):
                self.worker.begin()  # while there is no other thread that a fork would cut off
            with Heartbeat(home.connect_to(self.place, self.identity, 0.0), self._beat):
                self._work_on(wait)

    def _work_on(self, wait: float) -> None:
        pause = _PAUSE
        while not self.stop.is_set():
            try:
                self.step(wait)
                pause = _PAUSE
                if self._held:  # an ask that waits for approval is looked at now and then
                    self.stop.wait(_HELD_SECONDS)
            except (CoordinatorError, *_TROUBLE) as error:
                log.warning("%s", error)
                if not isinstance(error, CoordinatorError):
                    why = error.strerror if isinstance(error, OSError) else error
                    self.doing = f"cannot work: {why}"
                self.stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _beat(self) -> wire.Heartbeat:
        return wire.Heartbeat(doing=self.doing[:200], head=self.head)

    def step(self, wait: float = 0.0) -> int:
        """Look for work once and do it; the number of asks answered."""
        self.worker.begin()
        self.doing = ""
        asks = self.connection.call("GET", f"/v1/work?wait={wait:g}", wire.Work).asks
        memory = self._memory()
        asks.sort(key=lambda ask: not memory.answers(ask))  # before its reply is forgotten
        held = [ask for ask in asks if not self._answer(ask)]
        self._hold(held)
        return len(asks) - len(held)

    def _answer(self, pending: wire.PendingAsk) -> bool:
        """Do what is asked and send the reply; False if it must wait for an approval."""
        if pending in self._held and not self.approvals.approved(pending.hash):
            return False
        memory = self._memory()
        if not memory.answers(pending):
            try:
                memory = self._work(pending, memory.states)
            except NeedsApproval as error:
                log.info("held: %s", error)
                return False
            memory = self._remember(memory)
        self._send(pending, memory)
        return True

    def _work(self, pending: wire.PendingAsk, states: dict[str, Any]) -> Memory:
        """What this client answers, and what it keeps for every job."""
        done = replace(_NOTHING, job=pending.job, sequence=pending.sequence, states=states)
        try:
            ask = self._ask(pending)
            job = JobFacts(pending.hash, pending.owner, pending.kind)
            approved = self.approvals.approved(pending.hash)
            client = self.place.client
            if pending.kind == "standing":  # it is told when the rows have changed
                self.worker.close()
                self.worker.begin()
            self.policy.check_ask(
                job, ask, client, self.worker.rows, datetime.now(), approved=approved
            )
            self.doing = pending.task
            outcome = self.worker.run(ask, client, states.get(pending.job, {}))
            self.doing = ""
            if outcome.kind == "refused":
                raise Refusal(outcome.reason)
            if outcome.reply is None:
                failed = outcome.kind == "failed"
                reason = outcome.reason if failed else f"{outcome.kind}: {outcome.reason}"
                raise PayloadError(reason)
            reply = self.policy.suppress(ask.task, decode(outcome.reply))
            frame = encode(reply)
            self.policy.check_reply(ask.task, len(frame), reply)
            others = [(job, state) for job, state in states.items() if job != pending.job]
            kept = dict([*others[1 - _MOST_STATES :], (pending.job, outcome.state)])
            return replace(done, frame=frame, states=kept)
        except NeedsApproval:
            raise
        except Refusal as error:
            return replace(done, status="refused", reason=str(error))
        except PayloadError as error:
            return replace(done, status="failed", reason=str(error))

    def _ask(self, pending: wire.PendingAsk) -> Ask:
        """The ask with its payload and the preparation of the rows."""
        download = self.connection.download
        steps = decode(download(pending.prepare)) if pending.prepare else []
        if not isinstance(steps, list):
            raise PayloadError("the preparation is not a list of transformers")
        prepare = [Preparation(step, hashlib.sha256(encode(step)).hexdigest()) for step in steps]
        return Ask(
            pending.task,
            pending.version,
            decode(download(pending.payload, pending.frame)),
            np.array([self.place.client], dtype=np.int64),
            pending.seed,
            pending.round,
            prepare=tuple(prepare),
        )

    def _send(self, pending: wire.PendingAsk, done: Memory) -> None:
        """Log what leaves, and let it leave."""
        frame, answered = done.frame, done.status == "ok"
        digest = hashlib.sha256(frame).hexdigest() if answered else ""
        self.head = self.audit.append(
            "reply",
            job=pending.job,
            sequence=pending.sequence,
            hash=pending.hash,
            owner=pending.owner,
            task=pending.task,
            status=done.status,
            digest=digest,
            bytes=len(frame),
            reason=done.reason,
        )
        small = len(frame) <= wire.INLINE
        if answered and not small:
            self.connection.upload(frame)
        message = reply_message(
            self.place.federation,
            pending.job,
            pending.sequence,
            str(self.place.client),
            ask_digest(
                pending.task,
                pending.version,
                pending.payload,
                pending.prepare,
                pending.round,
                pending.seed,
            ),
            done.status,
            digest,
            len(frame),
        )
        reply = wire.NewReply(
            status=done.status,
            digest=digest or None,
            size=len(frame),
            frame=b64encode(frame).decode() if answered and small else None,
            reason=done.reason[:2000],
            signature=self.identity.sign(message).hex(),
        )
        path = f"/v1/jobs/{pending.job}/asks/{pending.sequence}/reply"
        self.connection.request("POST", path, json=reply)

    # --- holding ---

    def _hold(self, asks: list[wire.PendingAsk]) -> None:
        """Write down which jobs wait for an approval, when that has changed."""
        self._held = asks
        jobs = {ask.hash: ask for ask in asks}
        if jobs.keys() == self._listed:
            return
        known = {job.hash: job for job in self.held.read()}
        self.held.write([known.get(hash) or self._described(ask) for hash, ask in jobs.items()])
        self._listed = set(jobs)

    def _described(self, ask: wire.PendingAsk) -> HeldJob:
        try:
            text = describe(self.connection.download(ask.hash))
        except SoleraError as error:
            text = f"not shown by the coordinator: {error}"
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        return HeldJob(ask.hash, ask.job, ask.owner, ask.kind, ask.task, since, text)

    # --- remembering ---

    def _memory(self) -> Memory:
        path = self.folder / home.MEMORY
        try:
            return msgspec.convert(decode(path.read_bytes()), Memory)
        except FileNotFoundError:
            return _NOTHING
        except (PayloadError, msgspec.ValidationError):
            raise UsageError(
                f"{path} is damaged, which holds what this client keeps from task to task",
                hint="restore it from a copy, or delete it to begin without",
            ) from None

    def _remember(self, memory: Memory) -> Memory:
        """State and reply in one file, replaced in one step; what may be sent afterwards.

        What cannot be written does not leave: it could not be told again.
        """
        try:
            write_file(self.folder / home.MEMORY, encode(asdict(memory)), 0o600, overwrite=True)
        except OSError as error:
            reason = f"the client cannot keep its reply: {error.strerror}"
            log.error("%s: %s", reason, self.folder)
            return replace(memory, status="failed", reason=reason, frame=b"")
        return memory

    def close(self) -> None:
        self.stop.set()
        self.worker.close()
        self.connection.close()
        self._lock.release()


class _Terminated(BaseException):
    """The process was told to end; whatever was going on is safe to leave, as by a power cut."""


@contextmanager
def _terminated_by_signal() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
