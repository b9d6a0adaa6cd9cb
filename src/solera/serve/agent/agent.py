"""The client's agent: connects outwards, runs what its policy allows, and remembers what it did.

One ask at a time: look for work, compare the ask with the policy and with the job that was
approved, run the task in the worker process, write state and reply to disk in one step, log what
leaves, send it. Whatever dies in between, the ask is still pending at the coordinator afterwards;
an ask whose reply is on disk is answered from there, so that a task never counts twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from solera.core.engine import Ask
from solera.core.errors import (
    DataError,
    PayloadError,
    Refusal,
    UsageError,
    WorkerDied,
)
from solera.core.task import installed_tasks
from solera.core.version import __version__
from solera.learn.vertical.party import PARTS
from solera.serve import wire
from solera.serve.agent import home
from solera.serve.agent.approvals import Approvals, Decision
from solera.serve.agent.asked import Asked, key_of
from solera.serve.agent.attempts import Attempts
from solera.serve.agent.closed.jobs import OwnerJobs
from solera.serve.agent.closed.rules import OwnerRules
from solera.serve.agent.closed.worker_side import TableSource
from solera.serve.agent.copies import Copies
from solera.serve.agent.heartbeat import Heartbeat
from solera.serve.agent.held_jobs import HeldJob, HeldJobs, describe
from solera.serve.agent.ledger import ledger_of
from solera.serve.agent.memory import NOTHING, Memory, digest_of
from solera.serve.agent.messages import Messages
from solera.serve.agent.notify import notify
from solera.serve.agent.policy import JobFacts, NeedsApproval, OwnerPolicy
from solera.serve.agent.policy_file import PolicyBroken, PolicyFile
from solera.serve.agent.secure_sums import vouched
from solera.serve.agent.sending import Sender
from solera.serve.agent.task_process import Guard, Rows
from solera.serve.agent.termination import Terminated, terminated_by_signal
from solera.serve.agent.withdrawn import FILE as WITHDRAWN
from solera.serve.agent.worker import Outcome, Worker
from solera.serve.audit import AuditLog
from solera.serve.connection import Connection, CoordinatorError
from solera.serve.description import Description
from solera.serve.held_words import held_words
from solera.serve.identity import Identity, seal_key_message
from solera.trust.open_asks import check_open_ask

log = logging.getLogger("solera.agent")

_HELD_SECONDS = 1.0
_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
TROUBLE = (DataError, WorkerDied, PolicyBroken, OSError)
"""What keeps a client from working and may pass: rows that are away, a disk that is full."""
_MOST_STATES = 64
"""Jobs whose state is kept; of more, the one that was worked on longest ago is let go."""
_LONGEST_REASON = 500
_SAID = ("job", "kind", "owner", "seed")
"""What the coordinator says of a job with each ask, and the description once for all."""


class Agent:
    """The agent of one client, living in ``folder``; see :meth:`join` and :meth:`run`.

    The policy of a :class:`PolicyFile` is read again when the file changes; ``source`` says which
    rows the worker reads under the policy it is given, ``table`` how it reads them by a dictionary,
    for closed jobs. ``connection`` is another one than to the
    place where the client has joined.
    """

    def __init__(
        self,
        folder: str | Path,
        worker: Worker,
        policy: OwnerPolicy | PolicyFile,
        *,
        source: Callable[[OwnerPolicy], Rows] | None = None,
        table: Callable[[OwnerPolicy], TableSource] | None = None,
        patience: float = 60.0,
        connection: Connection | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.worker = worker
        self._policy_file = policy if isinstance(policy, PolicyFile) else None
        self.policy = policy.policy if isinstance(policy, PolicyFile) else policy
        self._source, self._table = source, table
        self.identity = Identity.load(self.folder)
        self.place = home.read_place(self.folder)
        self._memory()  # a damaged one is found out now
        self.audit = AuditLog(self.folder / home.LOG, self.identity)
        self._lock = home.lock(self.folder)
        self.head = self.audit.head()
        self.held = HeldJobs(self.folder / home.HELD)
        self.attempts = Attempts(self.folder / home.ATTEMPTS)
        self.connection = connection or home.connect_to(self.place, self.identity, patience)
        self._asked = Asked(self.folder, self.place, self.connection)
        self._sender = Sender(self.place, self.identity, self.audit, self.connection)
        who = (self.place, self.identity, self.folder, self.connection)
        self.messages = Messages(*who, lambda: self.policy)
        self.stop = threading.Event()
        self._refreshing = threading.Lock()
        self.closed = self._closed_jobs()
        self.doing = ""
        self._held: list[wire.PendingAsk] = []
        self._waiting: list[HeldJob] = []
        self._listed: set[str] | None = None
        self._left_out = self._withdrawals()
        self._guard()

    def _closed_jobs(self) -> OwnerJobs:
        return OwnerJobs(
            self.folder,
            self.place,
            self.identity,
            self.worker,
            self.attempts,
            self.audit,
            OwnerRules(self.folder, self.place, self._policy_now),
            self.stop,
        )

    @property
    def approvals(self) -> Approvals:
        """What people decided, as far as the policy of now lets them."""
        return Approvals(self.folder / home.APPROVALS, self.policy.approval.approvers)

    def _guard(self) -> None:
        """Let the worker answer as the policy says, and keep copies if it says so."""
        key = self.policy.keep_copies
        self._copies = Copies.to(key, self.folder / home.COPIES) if key else None
        self.worker.change(Guard(self.policy.rules, ledger_of(self.folder, self.policy)))

    def _policy_now(self) -> OwnerPolicy:
        """The policy, as its file says at this moment."""
        self._refresh()
        return self.policy

    def _refresh(self) -> None:
        """Follow the policy's file, and who withdrew.

        :class:`PolicyBroken` if the policy makes no sense now.
        """
        with self._refreshing:
            self._follow_files()

    def _follow_files(self) -> None:
        withdrawn = self._withdrawals()
        if self._source is not None and withdrawn != self._left_out:
            self._read_anew(self._source)
        self._left_out = withdrawn
        if self._policy_file is None or not self._policy_file.refresh():
            return
        before, self.policy = self.policy, self._policy_file.policy
        self.head = self.audit.append("policy", before=before.hash(), now=self.policy.hash())
        log.info("the policy has changed: %s", self.policy.hash()[:12])
        try:
            self._guard()
        except UsageError as error:
            raise PolicyBroken(f"nothing runs: {error.message}", hint=error.hint) from None
        if self._source is not None and _what_is_read(before) != _what_is_read(self.policy):
            self._read_anew(self._source)

    def _read_anew(self, source: Callable[[OwnerPolicy], Rows]) -> None:
        """Let the worker read the rows as the policy of now says."""
        table = None if self._table is None else self._table(self.policy)
        self.worker.read(source(self.policy), table)

    def _withdrawals(self) -> bytes:
        """Who withdrew, as the file says."""
        path = self.folder / WITHDRAWN
        return path.read_bytes() if path.exists() else b""

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
        with suppress(Terminated), terminated_by_signal():
            with suppress(*TROUBLE):
                self.worker.begin()  # while there is no other thread that a fork would cut off
            self.closed.start()
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
            except (CoordinatorError, *TROUBLE) as error:
                log.warning("%s", error)
                if not isinstance(error, CoordinatorError):
                    self.doing = f"cannot work: {in_short(error)}"
                self.stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _beat(self) -> wire.Heartbeat:
        held = held_words((job.job, job.since) for job in self._waiting)
        doing = self.doing or self.closed.words() or held
        about = {"version": __version__[:50], "policy": self.policy.rules.policy}
        return wire.Heartbeat(doing=doing[:200], head=self.head, **about)

    def step(self, wait: float = 0.0) -> int:
        """Look for work once and do it; the number of asks answered."""
        self._refresh()
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
        self._refresh()
        if pending in self._held and not (self._rejection(pending) or self._approved(pending)):
            return False
        memory = self._memory()
        if not memory.answers(pending):
            try:
                memory = self._again(pending, memory) or self._work(pending, memory.states)
            except NeedsApproval as error:
                log.info("held: %s", error)
                return False
            memory = self._remember(memory)
            self.attempts.end(key_of(pending))
        self._send(pending, memory)
        return True

    def _again(self, pending: wire.PendingAsk, memory: Memory) -> Memory | None:
        """The last reply once more, if it came too late and the same is asked again.

        A task that exchanges messages has moved on with it: done twice, it would end elsewhere.
        """
        task = installed_tasks().get(pending.task)
        if task is None or not task.sealed or not memory.has_answered(pending):
            return None
        return replace(memory, sequence=pending.sequence)

    def _work(self, pending: wire.PendingAsk, states: dict[str, Any]) -> Memory:
        """What this client answers, and what it keeps for every job.

        The attempt is on disk before anything of the ask is looked at.
        """
        whose = {"job": pending.job, "sequence": pending.sequence, "ask": digest_of(pending)}
        done = replace(NOTHING, states=states, **whose)
        key = key_of(pending)
        try:
            if self.attempts.begin(key).hopeless:
                raise PayloadError("crashed: the ask ended the process that worked on it")
            parts = {PARTS: states[PARTS]} if PARTS in states else {}
            earlier = self._asked.description(pending).parts_of
            known = states.get(earlier or pending.job, {})
            frame, outcome = self._run(pending, {**known, **parts})
            own = {n: value for n, value in outcome.state.items() if n != PARTS and not earlier}
            others = [(job, s) for job, s in states.items() if job not in (pending.job, PARTS)]
            kept = dict([*others[1 - _MOST_STATES :], (pending.job, own)])
            if PARTS in outcome.state:  # of models: they outlive the job that made them
                kept[PARTS] = outcome.state[PARTS]
            return replace(done, frame=frame, states=kept, epsilon=outcome.epsilon)
        except NeedsApproval:
            self.attempts.undo(key)
            raise
        except Refusal as error:
            return replace(done, status="refused", reason=str(error)[:_LONGEST_REASON])
        except PayloadError as error:
            return replace(done, status="failed", reason=str(error)[:_LONGEST_REASON])
        except (CoordinatorError, *TROUBLE, KeyboardInterrupt, Terminated):
            self.attempts.undo(key)  # no fault of the ask, which will be done later
            raise
        except Exception as error:
            log.exception("ask %d of job %s", pending.sequence, pending.job, exc_info=error)
            return replace(done, status="failed", reason="error: the agent failed")

    def _run(self, pending: wire.PendingAsk, state: dict[str, Any]) -> tuple[bytes, Outcome]:
        """The reply as a frame, and what became of the task, if job and policy allow it."""
        description = self._asked.description(pending)
        _check_described(pending, description, self.place.federation)
        ask = self._asked.ask(pending)
        if pending.kind == "standing":  # it is told when the rows have changed
            self.worker.close()
            self.worker.begin()
        if rejection := self._rejection(pending):
            raise Refusal(f"{rejection.person} rejected the job: {rejection.reason}")
        approved = self._approved(pending)
        facts = JobFacts(self._asked.hash(pending), description.owner, description.kind)
        now = datetime.now()
        if (task := installed_tasks().get(ask.task)) is not None:  # the worker says of others why
            check_open_ask(self.policy.rules, task)
        self.policy.check_ask(facts, ask, now, approved=approved)
        who = (self.place, self.identity, self.folder, self.connection)
        ask = self.messages.opened(vouched(ask, pending.job, *who), pending.job)
        outcome = self._run_task(pending, ask, state)
        if outcome.kind == "refused":
            raise Refusal(outcome.reason)
        if outcome.reply is None:
            failed = outcome.kind == "failed"
            reason = outcome.reason if failed else f"{outcome.kind}: {outcome.reason}"
            raise PayloadError(reason)
        if approved and not self._approved(pending):
            raise NeedsApproval("the approval was withdrawn while the task ran")
        return self.messages.sealed(ask, pending.job, outcome.reply), outcome

    def _run_task(self, pending: wire.PendingAsk, ask: Ask, state: dict[str, Any]) -> Outcome:
        """What became of the task; one whose process dies is tried again, twice."""
        self.doing = pending.task
        key = key_of(pending)
        while True:
            outcome = self.worker.run(ask, self.place.client, state, pending.job)
            if outcome.kind != "crashed":
                break
            log.warning("task %s: %s", pending.task, outcome.reason)
            self.attempts.crashed(key)
            if self.attempts.begin(key).hopeless:
                break
        self.doing = ""
        return outcome

    def _approved(self, pending: wire.PendingAsk) -> bool:
        """Whether a person whom the policy names has approved this ask's job, not too long ago."""
        hash = self._asked.hash(pending)
        approval = self.approvals.approval(hash)
        if approval is None:
            return False
        seconds = self._asked.description(pending).seconds
        return datetime.now(UTC) < approval.ends(self.policy.approval.lasts(seconds))

    def _rejection(self, pending: wire.PendingAsk) -> Decision | None:
        """What a person whom the policy names has against this ask's job."""
        last = self.approvals.last(self._asked.hash(pending))
        return last if last is not None and last.verdict == "rejected" else None

    def _send(self, pending: wire.PendingAsk, done: Memory) -> None:
        """Log what leaves, and let it leave."""
        self.head = self._sender.log(pending, done, self._asked.hash(pending), self._copies)
        self._sender.send(pending, done)

    # --- holding ---

    def _hold(self, asks: list[wire.PendingAsk]) -> None:
        """Write down which jobs wait for an approval, when that has changed, and tell people."""
        self._held = asks
        jobs = {self._asked.hash(ask): ask for ask in asks}
        if jobs.keys() == self._listed:
            return
        known = {job.hash: job for job in self.held.read()}
        held = [known.get(hash) or self._held_job(hash, ask) for hash, ask in jobs.items()]
        self.held.write(held)
        self._listed, self._waiting = set(jobs), held
        for job in held:
            if job.hash not in known:
                told = msgspec.to_builtins(replace(job, frame=b""))
                del told["frame"]
                here = {"federation": self.place.federation, "client": self.place.name}
                notify(self.policy.notify, "held", **here, **told)

    def _held_job(self, hash: str, ask: wire.PendingAsk) -> HeldJob:
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        text = describe(self._asked.description(ask))
        told = (ask.job, ask.owner, ask.kind, ask.task, since, text)
        return HeldJob(hash, *told, self._asked.frame(ask))

    # --- remembering ---

    def _memory(self) -> Memory:
        return Memory.read(self.folder / home.MEMORY)

    def _remember(self, memory: Memory) -> Memory:
        """State and reply in one file; what may be sent afterwards.

        What cannot be written does not leave: it could not be told again.
        """
        try:
            memory.write(self.folder / home.MEMORY)
        except OSError as error:
            reason = f"the client cannot keep its reply: {error.strerror}"
            log.error("%s: %s", reason, self.folder)
            return replace(memory, status="failed", reason=reason, frame=b"")
        return memory

    def close(self) -> None:
        self.stop.set()
        self.worker.close()
        self.connection.close()
        self.attempts.close()
        self._lock.release()


def in_short(error: BaseException) -> str:
    """What the coordinator hears: the text of an error about rows may quote one."""
    if isinstance(error, OSError):
        return error.strerror or "the disk"
    return "its policy" if isinstance(error, PolicyBroken) else "the rows cannot be read"


def _check_described(pending: wire.PendingAsk, description: Description, federation: str) -> None:
    """Refuse an ask of a job that is not the one described: that, and only that, was approved."""
    if description.federation != federation:
        raise Refusal("the job's description is of another federation")
    for name in _SAID:
        if getattr(description, name) != getattr(pending, name):
            raise Refusal(f"the job's description names another {name}")


def _what_is_read(policy: OwnerPolicy) -> tuple[Any, ...]:
    """What of a policy decides which rows and columns the worker reads."""
    return policy.data.columns, policy.data.unit, policy.columns
