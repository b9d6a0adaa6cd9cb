"""Closed jobs at this owner: what is shown, what people say of it, what runs.

A thread beside the agent's other work holds a connection open, on which the coordinator shows texts
at once. One that the policy refuses is refused at once, with the reason; one that people approved
starts by itself when all owners have.
"""

from __future__ import annotations

import logging
import threading
from base64 import b64decode
from pathlib import Path
from typing import Protocol

from solera.core.errors import PayloadError, SoleraError
from solera.core.payload import decode
from solera.serve.agent import home
from solera.serve.agent.attempts import Attempts
from solera.serve.agent.closed.run import ClosedRun, Owner
from solera.serve.agent.closed.store import OVER, ClosedStore, OwnJob
from solera.serve.agent.epoch_boards import CoordinatorBoard
from solera.serve.agent.epoch_files import EpochFiles
from solera.serve.agent.epoch_signing import settle_epoch
from solera.serve.agent.worker import Worker
from solera.serve.audit import AuditLog
from solera.serve.closed import ClosedJob, ClosedJobs, Ending, NewVerdict
from solera.serve.connection import Connection
from solera.serve.identity import Identity
from solera.trust.board.text import JobText, jid, parse
from solera.trust.epoch.atoms import Atoms
from solera.trust.epoch.epoch import Epoch

log = logging.getLogger("solera.agent")

_WAIT = 20.0
_HELD_SECONDS = 1.0
"""How often people's decisions are looked for while a text waits for one."""
_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


class Rules(Protocol):
    """What the owner has settled beforehand, and what its people say."""

    def epoch(self, hash: str, connection: Connection | None = None) -> Epoch | None:
        """The epoch of this hash, if it is the newest that this owner and all others signed."""

    def verdict(self, job: OwnJob, text: JobText, epoch: Epoch) -> NewVerdict | None:
        """What is said of a text; None while people have yet to decide."""

    def objection(self, job: OwnJob) -> str | None:
        """Why a job that runs may not go on."""

    def give_back(self, jid: str) -> None:
        """What a job was to spend, of which nothing has left, is not spent."""

    def told(self, job: OwnJob, text: JobText) -> None:
        """A text waits for people."""


class OwnerJobs(threading.Thread):
    """The thread; :attr:`stop` ends it and its runs."""

    def __init__(
        self,
        folder: Path,
        place: home.Place,
        identity: Identity,
        worker: Worker,
        attempts: Attempts,
        audit: AuditLog,
        rules: Rules,
        stop: threading.Event,
    ) -> None:
        super().__init__(name="closed jobs", daemon=True)
        self.store = ClosedStore(folder / home.CLOSED, audit)
        self.stop, self._rules = stop, rules
        self._folder, self._place, self._identity = folder, place, identity
        self._worker, self._attempts = worker, attempts
        self._runs: dict[str, ClosedRun] = {}
        self._version = ""

    def run(self) -> None:
        """Look, again and again."""
        pause = _PAUSE
        connection = self._connect()
        while not self.stop.is_set():
            try:
                self.look(connection)
                pause = _PAUSE
                continue
            except (SoleraError, OSError) as error:
                log.warning("closed jobs: %s", error)
            except Exception:
                log.exception("closed jobs")
            self._version = ""
            self.stop.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def look(self, connection: Connection, wait: float = _WAIT) -> None:
        """See once what the coordinator shows, and do what follows from it."""
        held = any(job.state == "held" for job in self.store.jobs())
        wait = min(wait, _HELD_SECONDS) if held else wait
        path = f"/v1/closed?known={self._version}&wait={wait:g}"
        shown = connection.call("GET", path, ClosedJobs)
        self.store.write_log()
        for job in shown.jobs:
            self._see(connection, job)
        going_on = {job.jid for job in shown.jobs}
        for own in self.store.jobs():
            if own.state in ("held", "approved") and own.jid not in going_on:
                self.store.move(own.jid, "refused", "it ended before it began")
                self._rules.give_back(own.jid)
        self._version = shown.version
        self.settle(connection)

    def settle(self, connection: Connection) -> None:
        """Sign the atoms of an epoch, where the own run has found them."""
        agreed = EpochFiles(self._folder).agreed()
        epoch = "" if agreed is None else agreed.epoch.hash.hex()
        for own in self.store.jobs():
            result = self.store.result_of(own.jid) if own.epoch == epoch else None
            if agreed is None or result is None:
                continue
            draft = agreed.epoch.draft
            found = decode(decode(result[1])["result"])
            atoms = Atoms.from_payload(found["atoms"], draft.dictionary)
            board = CoordinatorBoard(connection, self._place.federation, draft)
            settle_epoch(self._folder, self._identity, board, atoms)

    def _see(self, connection: Connection, job: ClosedJob) -> None:
        text = _checked_text(job)
        own = self.store.job(job.jid)
        if own is None:
            own = self.store.add(job.jid, job.epoch, b64decode(job.text))
            self._rules.told(own, text)
        if own.state in OVER:  # the agent ended before it could say so
            ending = Ending(own.state == "finished")
            connection.request("POST", f"/v1/closed/{job.jid}/over", json=ending)
            return
        epoch = self._rules.epoch(job.epoch, connection)
        if epoch is not None and epoch.atoms is not None:
            self.store.end_epochs_before(job.epoch)
        if own.state == "held":
            said = self._verdict(own, text, epoch)
            if said is None:
                return
            self._say(connection, own, said)
        if epoch is not None and job.state == "running":
            self._start(own, epoch)

    def _verdict(self, own: OwnJob, text: JobText, epoch: Epoch | None) -> NewVerdict | None:
        if epoch is None:
            return NewVerdict("refused", reason="this owner has signed another epoch, or none")
        if before := self._scored_before(own, text):
            reason = f"this model was scored on this part by job {before[:16]}: its figures stand"
            return NewVerdict("refused", reason=reason)
        return self._rules.verdict(own, text, epoch)

    def _scored_before(self, own: OwnJob, text: JobText) -> str | None:
        """An earlier job that has scored the same model on a fold of the same test part."""
        for job in self.store.jobs():
            if (job.state, job.epoch) != ("finished", own.epoch) or text.kind != "evaluation":
                continue
            other = parse(job.text)
            same = (other.kind, other.model) == (text.kind, text.model)
            if same and set(other.test) & set(text.test):
                return job.jid
        return None

    def _say(self, connection: Connection, own: OwnJob, said: NewVerdict) -> None:
        """Told first: what is not, is decided again."""
        connection.request("POST", f"/v1/closed/{own.jid}/verdict", json=said)
        self.store.move(own.jid, said.verdict, said.reason, person=said.person)

    def _start(self, own: OwnJob, epoch: Epoch) -> None:
        running = self._runs.get(own.jid)
        if own.state not in ("approved", "running") or (running and running.is_alive()):
            return
        self.store.move(own.jid, "running")
        owner = Owner(
            identity=self._identity,
            secret=home.read_secret(self._folder),
            epoch=epoch,
            worker=self._worker,
            attempts=self._attempts,
            store=self.store,
            connect=self._connect,
            objection=self._rules.objection,
            finished=self.settle,
            give_back=self._rules.give_back,
            stop=self.stop,
        )
        self._runs[own.jid] = run = ClosedRun(owner, own)
        run.start()

    def _connect(self) -> Connection:
        return home.connect_to(self._place, self._identity, _LONGEST_PAUSE)

    def words(self) -> str:
        """What is going on, for whoever looks at this client from afar."""
        running = [run for run in self._runs.values() if run.is_alive()]
        words = [f"{run.job.jid[:8]} round {run.round + 1}" for run in running]
        return f"runs closed job {', '.join(words)}" if words else ""


def _checked_text(job: ClosedJob) -> JobText:
    """The text, if it is the one that its name says."""
    content = b64decode(job.text)
    if jid(bytes.fromhex(job.epoch), content).hex() != job.jid:
        raise PayloadError("the coordinator shows a text under another's name")
    return parse(content)
