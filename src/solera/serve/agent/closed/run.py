"""One closed job at this owner, from START to its end.

The learner runs in a process without rows; each sum it wants is worked out on the own rows in the
worker, masked, stored, posted and read. Whatever dies in between, all of it is done again from the
records, which never change.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from solera.core.component import build
from solera.core.errors import DataError, SoleraError
from solera.core.payload import decode, encode
from solera.learn.client_models import part_of
from solera.serve.agent.attempts import CRASHES, AskKey, Attempts
from solera.serve.agent.closed.connection import BoardClient, Interrupted
from solera.serve.agent.closed.learner_child import LearnerDied, LearnerProcess
from solera.serve.agent.closed.store import ClosedStore, JobRecords, OwnJob
from solera.serve.agent.closed.terms import OwnAnswer, OwnTerms
from solera.serve.agent.sending import numbers_in
from solera.serve.agent.worker import Worker
from solera.serve.connection import Connection, CoordinatorError
from solera.serve.identity import Identity
from solera.trust.board.run import OwnerRun, RunEnded, RunStopped
from solera.trust.board.sums import Total, sums_of
from solera.trust.board.text import JobText, parse
from solera.trust.epoch.epoch import Epoch

log = logging.getLogger("solera.agent")

_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_DAY = 24 * 3600.0


@dataclass(frozen=True)
class Owner:
    """What a run needs of the agent.

    ``objection(job)`` says why the job may not go on here now, if so; ``give_back(jid)`` that it
    has ended before anything has left; ``finished(connection)`` that it is over.
    """

    identity: Identity
    secret: bytes
    epoch: Epoch
    worker: Worker
    attempts: Attempts
    store: ClosedStore
    connect: Callable[[], Connection]
    objection: Callable[[OwnJob], str | None]
    finished: Callable[[Connection], None]
    give_back: Callable[[str], None]
    stop: threading.Event

    @property
    def index(self) -> int:
        """Which owner of the epoch this is."""
        keys = [owner.key for owner in self.epoch.owners]
        return keys.index(self.identity.sign_key)


class ClosedRun(threading.Thread):
    """The thread of one job."""

    def __init__(self, owner: Owner, job: OwnJob) -> None:
        super().__init__(name=f"closed {job.jid[:8]}", daemon=True)
        self.owner, self.job = owner, job
        self.text: JobText = parse(job.text)
        self.learner: LearnerProcess | None = None
        self.round = 0
        """The round of what the learner asked last, from 0."""
        self._told = 0
        """How many numbers its sums have told."""
        self._names = [one.name for one in owner.epoch.owners]

    def run(self) -> None:
        """Go on until the job is over or the agent is told to end."""
        pause = _PAUSE
        while not self.owner.stop.is_set():
            try:
                with closing(self.owner.connect()) as connection:
                    self._go_on(self._board(connection))
                    self.owner.finished(connection)
                return
            except (Interrupted, LearnerDied, SoleraError, OSError) as error:
                log.warning("closed job %s: %s", self.job.jid[:8], error)
            except Exception:
                log.exception("closed job %s", self.job.jid[:8])
            self.owner.stop.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _board(self, connection: Connection) -> BoardClient:
        patience = self.text.patience * _DAY
        stop, owners = self.owner.stop, len(self._names)
        return BoardClient(connection, self.job.jid, owners, self._waits, patience, stop)

    def _go_on(self, board: BoardClient) -> None:
        run = OwnerRun(
            index=self.owner.index,
            identity=self.owner.identity,
            keys=[one.key for one in self.owner.epoch.owners],
            epoch=self.owner.epoch.hash,
            text=self.job.text,
            board=board,
            store=JobRecords(self.owner.store, self.job.jid),
        )
        terms, self._told = self._own_terms(), 0
        try:
            terms.check()
            run.start()
            run.keys()
            closed = run.close(self._learned(run, terms))
        except DataError as error:
            self._end(run, board, RunStopped(str(error)))  # nothing was posted: nobody is to blame
            return
        except RunEnded as ended:
            self._end(run, board, ended)
            return
        board.leave_result(closed.sealed)
        hash, part = closed.digest.hex(), encode(part_of(decode(terms.state)))
        self.owner.store.finish(self.job.jid, hash, closed.content, part, self._told)
        board.end(finished=True)

    def _end(self, run: OwnerRun, board: BoardClient, ended: RunEnded) -> None:
        """Over for all at the same step; the reason stays here."""
        reason = str(ended)
        try:
            if not isinstance(ended, RunStopped):
                reason = f"{reason}; {run.blame()}"
            board.end(finished=False)
        except (RunEnded, CoordinatorError) as error:
            log.info("closed job %s: %s", self.job.jid[:8], error)
        job = self.owner.store.job(self.job.jid)
        if job is not None and not job.sums:
            self.owner.give_back(self.job.jid)
        run.end()
        self.owner.store.end(self.job.jid, reason, self._told)

    # --- the learner ---

    def _learned(self, run: OwnerRun, terms: OwnTerms) -> bytes:
        """The result, from a learner that asks for one sum after the other."""
        with LearnerProcess(self._order(terms), self.owner.stop) as self.learner:
            while "result" not in (said := self._heard(run)):
                terms.fit, self.round = said["fit"], said["round"]
                self.learner.send({"total": self._total(run, terms, said)})
            terms.fit = said["fit"]
            result: bytes = said["result"]
            return result

    def _own_terms(self) -> OwnTerms:
        owner = self.owner
        job = {
            "text": self.job.text,
            "epoch": owner.epoch.encode(),
            "secret": owner.secret,
            "owner": owner.index,
        }
        seconds = self.text.patience * _DAY
        return OwnTerms(owner.worker, owner.attempts, self.job.jid, job, seconds)

    def _order(self, terms: OwnTerms) -> dict[str, Any]:
        model = None
        if self.text.model is not None:
            kept = self.owner.store.result(self.text.model)
            if kept is None:
                raise RunEnded(f"result {self.text.model[:12]} is not kept here")
            model = decode(kept[0])["result"]
            if self.text.kind == "evaluation":
                terms.restore(kept[1])
        return {"text": self.job.text, "epoch": self.owner.epoch.encode(), "model": model}

    def _heard(self, run: OwnerRun) -> Any:
        """What the learner says; one whose process dies again and again at one sum ends the run."""
        assert self.learner is not None
        try:
            return self.learner.receive()
        except LearnerDied as error:
            key = AskKey(self.job.jid, run.k, "learner")
            self.owner.attempts.crashed(key)
            if self.owner.attempts.begin(key).crashes >= CRASHES:
                raise RunEnded(str(error)) from None
            raise

    def _total(self, run: OwnerRun, terms: OwnTerms, said: Mapping[str, Any]) -> Any:
        """What one ask comes to over all owners; the own part is worked out unless it is stored."""
        if objection := self.owner.objection(self.job):
            run.stop(objection)
        aggregation, answer = build(said["aggregation"]), OwnAnswer(terms, said)
        total: Total = run.drive(sums_of(said["total"], aggregation, answer), terms.restore)
        self._told += numbers_in(total.partial)
        return {
            "partial": total.partial,
            "absent": dict(total.absent),
            "noised": list(total.noised),
        }

    def _waits(self, step: str, missing: Sequence[int]) -> float:
        """Write down for whom the job waits; since when."""
        names = [self._names[owner] for owner in missing]
        return self.owner.store.waits(self.job.jid, step, names)
