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

import numpy as np

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
from solera.serve.agent import home
from solera.serve.agent.approvals import Approvals
from solera.serve.agent.heartbeat import Heartbeat
from solera.serve.agent.held_jobs import HeldJob, HeldJobs, describe
from solera.serve.agent.orders import Order, read_enrolled, read_orders
from solera.serve.agent.policy import JobFacts, NeedsApproval, Policy
from solera.serve.agent.worker import Worker
from solera.serve.audit import AuditLog
from solera.serve.connection import INLINE, Connection, CoordinatorError
from solera.serve.identity import Identity, reply_message, seal_key_message

log = logging.getLogger("solera.agent")

_HELD_SECONDS = 1.0
_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_TROUBLE = (DataError, WorkerDied, OSError)
"""What keeps a client from working and may pass: rows that are away, a disk that is full."""
_NOTHING: dict[str, Any] = {"job": None, "sequence": None, "states": {}}
_REMEMBERED = {"job", "sequence", "status", "reason", "frame", "states"}
_MOST_STATES = 64
"""Jobs whose state is kept; of more, the one that was worked on longest ago is let go."""


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
        place = home.read_place(self.folder)
        if place is None:
            raise UsageError(f"no client in {self.folder} has joined yet")
        self.place = place
        self._memory()  # a damaged one is found out now
        self.approvals = Approvals(self.folder / home.APPROVALS, policy.approval.approvers)
        self.audit = AuditLog(self.folder / home.LOG, self.identity)
        self._lock = home.Lock(self.folder)
        self.head = self.audit.head()
        self.held = HeldJobs(self.folder / home.HELD)
        self.connection = self._connect(patience)
        self.stop = threading.Event()
        self.doing = ""
        self._held: dict[tuple[str, int], Order] = {}
        self._listed: set[str] | None = None

    def _connect(self, patience: float) -> Connection:
        place = self.place
        return home.connection_of(
            self.identity, place["url"], place["ca"], place["federation"], patience
        )

    # --- joining ---

    @staticmethod
    def join(folder: str | Path, url: str, token: str, *, ca: str | None = None) -> dict[str, Any]:
        """Make keys, enrol them with a one-time token, and remember where."""
        folder = Path(folder)
        try:
            identity = Identity.load(folder)
        except UsageError:
            identity = Identity.create(folder)
        federation = token.partition("/")[0]
        connection = home.connection_of(identity, url, ca, federation, 10.0)
        vouched = identity.sign(seal_key_message(federation, identity.seal_key))
        told = connection.request(
            "POST",
            "/v1/join",
            json={
                "token": token,
                "sign_key": identity.sign_key.hex(),
                "seal_key": identity.seal_key.hex(),
                "seal_signature": vouched.hex(),
                "tasks": {name: task.version for name, task in installed_tasks().items()},
            },
        )
        connection.close()
        enrolled = read_enrolled(told.content)
        place = {
            "url": url,
            "ca": ca,
            "client": enrolled.client,
            "name": enrolled.name,
            "federation": federation,
        }
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
            with Heartbeat(self._connect(0.0), self._news):
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

    def _news(self) -> dict[str, Any]:
        return {"doing": self.doing[:200], "head": list(self.head)}

    def step(self, wait: float = 0.0) -> int:
        """Look for work once and do it; the number of asks answered."""
        self.worker.begin()
        self.doing = ""
        orders = read_orders(self.connection.request("GET", f"/v1/work?wait={wait:g}").content)
        memory = self._memory()
        last = memory["job"], memory["sequence"]
        orders.sort(key=lambda o: (o.job, o.sequence) != last)  # before its reply is forgotten
        held = {(o.job, o.sequence): o for o in orders if not self._answer(o)}
        self._hold(held)
        return len(orders) - len(held)

    def _answer(self, order: Order) -> bool:
        """Do what is asked and send the reply; False if it must wait for an approval."""
        key = (order.job, order.sequence)
        if self._held.get(key) == order and not self.approvals.approved(order.hash):
            return False
        memory = self._memory()
        if (memory["job"], memory["sequence"]) != key:
            try:
                memory = self._work(order, memory["states"])
            except NeedsApproval as error:
                log.info("held: %s", error)
                return False
            memory = self._remember(memory)
        self._send(order, memory)
        return True

    def _work(self, order: Order, states: dict[str, Any]) -> dict[str, Any]:
        """What this client answers, and what it keeps for every job."""
        done: dict[str, Any] = {
            "job": order.job,
            "sequence": order.sequence,
            "status": "ok",
            "reason": "",
            "frame": b"",
            "states": states,
        }
        try:
            ask = self._ask(order)
            job = JobFacts(order.hash, order.owner, order.kind)
            approved = self.approvals.approved(order.hash)
            client = self.place["client"]
            if order.kind == "standing":
                self._read_again()
            self.policy.check_ask(
                job, ask, client, self.worker.rows, datetime.now(), approved=approved
            )
            self.doing = order.task
            outcome = self.worker.run(ask, client, states.get(order.job, {}))
            self.doing = ""
            if outcome.kind in ("refused", "failed"):
                return done | {"status": outcome.kind, "reason": outcome.reason}
            if outcome.reply is None:
                return done | {"status": "failed", "reason": f"{outcome.kind}: {outcome.reason}"}
            reply = self.policy.suppress(ask.task, decode(outcome.reply))
            frame = encode(reply)
            self.policy.check_reply(ask.task, len(frame), reply)
            others = [(job, state) for job, state in states.items() if job != order.job]
            kept = dict([*others[1 - _MOST_STATES :], (order.job, outcome.state)])
            return done | {"frame": frame, "states": kept}
        except NeedsApproval:
            raise
        except Refusal as error:
            return done | {"status": "refused", "reason": str(error)}
        except PayloadError as error:
            return done | {"status": "failed", "reason": str(error)}

    def _read_again(self) -> None:
        """A client contributes to a standing job when its rows have changed."""
        self.worker.close()
        self.worker.begin()

    def _ask(self, order: Order) -> Ask:
        steps = decode(self.connection.download(order.prepare)) if order.prepare else []
        if not isinstance(steps, list):
            raise PayloadError("the preparation is not a list of transformers")
        prepare = [Preparation(step, hashlib.sha256(encode(step)).hexdigest()) for step in steps]
        return Ask(
            order.task,
            order.version,
            decode(self.connection.download(order.payload, order.frame)),
            np.array([self.place["client"]], dtype=np.int64),
            order.seed,
            order.round,
            None,
            tuple(prepare),
        )

    def _send(self, order: Order, done: dict[str, Any]) -> None:
        frame: bytes = done["frame"]
        status = done["status"]
        digest = hashlib.sha256(frame).hexdigest() if status == "ok" else ""
        self.head = self.audit.append(
            "reply",
            job=order.job,
            sequence=order.sequence,
            hash=order.hash,
            owner=order.owner,
            task=order.task,
            status=status,
            digest=digest,
            bytes=len(frame),
            reason=done["reason"],
        )
        small = len(frame) <= INLINE
        if status == "ok" and not small:
            self.connection.upload(frame)
        message = reply_message(
            self.place["federation"],
            order.job,
            order.sequence,
            str(self.place["client"]),
            status,
            digest,
            len(frame),
        )
        self.connection.request(
            "POST",
            f"/v1/jobs/{order.job}/asks/{order.sequence}/reply",
            json={
                "status": status,
                "digest": digest or None,
                "size": len(frame),
                "frame": b64encode(frame).decode() if status == "ok" and small else None,
                "reason": done["reason"][:2000],
                "signature": self.identity.sign(message).hex(),
            },
        )

    # --- holding ---

    def _hold(self, orders: dict[tuple[str, int], Order]) -> None:
        """Write down which jobs wait for an approval, when that has changed."""
        self._held = orders
        jobs = {order.hash: order for order in orders.values()}
        if jobs.keys() == self._listed:
            return
        known = {job.hash: job for job in self.held.read()}
        self.held.write([known.get(h) or self._described(order) for h, order in jobs.items()])
        self._listed = set(jobs)

    def _described(self, order: Order) -> HeldJob:
        try:
            text = describe(self.connection.download(order.hash))
        except SoleraError as error:
            text = f"not shown by the coordinator: {error}"
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        return HeldJob(order.hash, order.job, order.owner, order.kind, order.task, since, text)

    # --- remembering ---

    def _memory(self) -> dict[str, Any]:
        path = self.folder / home.MEMORY
        try:
            found = decode(path.read_bytes())
        except FileNotFoundError:
            return _NOTHING
        except PayloadError:
            found = None
        if not isinstance(found, dict) or found.keys() != _REMEMBERED:
            raise UsageError(
                f"{path} is damaged, which holds what this client keeps from task to task",
                hint="restore it from a copy, or delete it to begin without",
            )
        return found

    def _remember(self, memory: dict[str, Any]) -> dict[str, Any]:
        """State and reply in one file, replaced in one step; what may be sent afterwards.

        What cannot be written does not leave: it could not be told again.
        """
        try:
            write_file(self.folder / home.MEMORY, encode(memory), 0o600, overwrite=True)
        except OSError as error:
            reason = f"the client cannot keep its reply: {error.strerror}"
            log.error("%s: %s", reason, self.folder)
            return memory | {"status": "failed", "reason": reason, "frame": b""}
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
