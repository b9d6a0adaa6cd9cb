"""A text at the coordinator, waited for: who has approved, what is done, who is waited for."""

from __future__ import annotations

import sys
import time
from base64 import b64encode
from collections.abc import Callable

from solera.core.errors import SoleraError
from solera.serve.closed import ClosedJob, NewText, version_of
from solera.serve.closed_words import clock, job_words
from solera.serve.connection import Connection
from solera.serve.driver.closed.researcher import Researcher
from solera.trust.board.result import Closed, open_result
from solera.trust.board.text import REPEATS, JobText, canonical, jid
from solera.trust.epoch.epoch import Epoch

_WAIT = 20
_SAY_SECONDS = 10.0
"""How often sums are told of where a line cannot be written anew."""


class ClosedJobEnded(SoleraError):
    """A closed job that owners refused, or that ended without a result."""


class Attached:
    """A text, registered for an epoch; the same text again is the same job."""

    def __init__(
        self,
        connection: Connection,
        federation: str,
        epoch: Epoch,
        text: JobText,
        researcher: Researcher,
    ) -> None:
        self._connection, self._epoch = connection, epoch
        self._text, self._researcher = text, researcher
        self._content = canonical(text)
        self.jid = jid(epoch.hash, self._content).hex()
        keys = [owner.key.hex() for owner in epoch.owners]
        new = NewText(epoch.hash.hex(), b64encode(self._content).decode(), keys)
        path = f"/v1/federations/{federation}/closed/{self.jid}"
        self.job = connection.call("PUT", path, ClosedJob, new)

    def wait(self, say: Callable[[str], None] | None = None) -> Closed:
        """The result, checked: signed by all owners for this text, sealed to this researcher."""
        status = Status() if say is None else say
        try:
            while self.job.going_on:
                status(f"{self.jid[:12]} {job_words(self.job)}")
                self.job = self._next()
        except KeyboardInterrupt:
            note = f"detached: job {self.jid[:12]} goes on without this program; "
            print(f"{note}the same call attaches again", file=sys.stderr)
            raise
        status(f"{self.jid[:12]} {self.job.state}")
        if self.job.state != "finished":
            raise self._ended()
        sealed = self._connection.request("GET", f"/v1/closed/{self.jid}/result").content
        keys = [owner.key for owner in self._epoch.owners]
        private = self._researcher.private
        return open_result(sealed, private, epoch=self._epoch.hash, keys=keys, text=self._content)

    def _next(self) -> ClosedJob:
        path = f"/v1/closed/{self.jid}?known={version_of([self.job])}&wait={_WAIT}"
        return self._connection.call("GET", path, ClosedJob)

    def _ended(self) -> ClosedJobEnded:
        job = self.job
        if job.state == "refused":
            return ClosedJobEnded(
                f"job {self.jid[:12]} was refused by {job.reason}",
                hint="another text is another job; ask the owner what it would approve",
            )
        repeat = self._text.repeat + 1
        again = f"seed={repeat}" if repeat < REPEATS else "another text, or the next epoch"
        return ClosedJobEnded(
            f"job {self.jid[:12]} {job.reason or 'ended'} ({clock(job.changed)}): its owners know "
            "why; a text starts once in an epoch",
            hint=again,
        )


class Status:
    """Says how far a job is: on one line of a terminal, elsewhere line by line, not too often."""

    def __init__(self) -> None:
        self._last, self._at = "", float("-inf")

    def __call__(self, words: str) -> None:
        kind, now = words.partition(":")[0], time.monotonic()
        if sys.stderr.isatty():
            print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)
        elif kind != self._last or now - self._at > _SAY_SECONDS:
            print(words, file=sys.stderr, flush=True)
            self._last, self._at = kind, now

    def end(self) -> None:
        """The line is done."""
        if sys.stderr.isatty() and self._last:
            print(file=sys.stderr)
