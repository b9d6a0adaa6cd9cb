"""What a coordinator does by itself: run learners, end what is over, sign its log, tidy up.

Everything is read from the store again and again, so that a coordinator started anew goes on where
the last one stopped.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from solera.core.errors import SoleraError
from solera.engines.child import end
from solera.serve.audit import AuditDamaged, AuditLog
from solera.serve.connection import PIN, TOKEN
from solera.serve.coordinator.certificate import Certificate
from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.store.tables import NEXT
from solera.serve.wire import Event, Job

log = logging.getLogger("solera.coordinator")

_LOOK_SECONDS = 0.5
_TIDY_SECONDS = 600.0
_KEEP_SECONDS = 7 * 24 * 3600.0
"""How long the replies of an ended job are kept for a driver that is run again."""
_MOST_STARTS = 5
_MOST_LEARNERS = 32
_LONGEST_FACTS = 100_000
_SETTLED_SECONDS = 60.0
_END_SECONDS = 3.0


@dataclass
class _Driver:
    """The process of one job; ``starts`` in a row that ended badly."""

    process: subprocess.Popen[bytes]
    began: float
    starts: int


class Supervisor:
    """Looks after the jobs of a coordinator that is reached at ``url``.

    ``certificate`` is the one the coordinator shows, if any; ``folder`` is for the output of
    learners.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        url: str,
        folder: Path,
        audit: AuditLog,
        certificate: Certificate | None = None,
    ) -> None:
        self.coordinator = coordinator
        self.url = url
        self.folder = folder
        self.audit = audit
        self._environment = {**os.environ, TOKEN: coordinator.managed_token}
        self._certificate = certificate
        if certificate is not None:
            self._environment[PIN] = certificate.certificate
        self._drivers: dict[str, _Driver] = {}
        self._tidied = time.monotonic()
        self._forgotten = 0
        self._found = False

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        try:
            while True:
                try:
                    if await run_in_threadpool(self.look):
                        self.coordinator.notifier.notify()
                except Exception:  # the coordinator goes on, and says what it could not do
                    log.exception("the supervisor could not look after its jobs")
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self.close()

    def look(self) -> bool:
        """Do what is due; whether anyone waiting should look again."""
        now = time.time()
        changed = False
        if self._certificate is not None and self._certificate.reload():
            self.close()  # learners trust the one certificate that they began with
        self.coordinator.write_heard()
        self.coordinator.write_refusals(now)
        going_on = self.coordinator.store.jobs(ended=False)
        for job in going_on:
            changed |= self.coordinator.expire(job, now).state != job.state
            if job.kind != "driven":
                self._see_to(job)
        for federation in {job.federation for job in going_on if job.kind == "standing"}:
            changed |= self.coordinator.store.ask_newcomers(federation, now) > 0
        for gone in set(self._drivers) - {job.id for job in going_on}:
            end(self._drivers.pop(gone).process, _END_SECONDS)
        self._sign()
        self.coordinator.tell_log()
        due = time.monotonic() - self._tidied > _TIDY_SECONDS
        if due and self.coordinator.clock.believed():
            self.tidy(now)
        return changed

    def tidy(self, now: float) -> None:
        """Let go of what no one needs any more."""
        store = self.coordinator.store
        for job in store.jobs():
            if not NEXT[job.state] and now - job.changed > _KEEP_SECONDS:
                store.prune(job.id)
        store.prune_posts(now)
        gone = self.coordinator.blobs.collect(store.digests())
        log.info("collected %d blobs", gone)
        self._tidied = time.monotonic()

    def close(self) -> None:
        """End the learners; they go on when the coordinator is started again."""
        for driver in self._drivers.values():
            end(driver.process, _END_SECONDS)
        self._drivers.clear()

    # --- learners ---

    def _see_to(self, job: Job) -> None:
        """Make sure that the job's learner runs; one that keeps crashing ends its job."""
        driver = self._drivers.get(job.id)
        if driver is None:
            if len(self._drivers) < _MOST_LEARNERS:  # the others wait until one has ended
                self._drivers[job.id] = self._start(job.id, 1)
            return
        code = driver.process.poll()
        if code is None:
            return
        ran = time.monotonic() - driver.began
        starts = 1 if ran > _SETTLED_SECONDS else driver.starts + 1
        if starts > _MOST_STARTS:
            reason = f"the learner's process ended {_MOST_STARTS} times: {self._last_line(job.id)}"
            self.coordinator.store.set_job_state(job.id, "failed", reason, time.time())
            return
        if ran > min(2.0**driver.starts, _SETTLED_SECONDS) / 2:
            log.warning("job %s: its process ended with %d and is started again", job.id, code)
            self._drivers[job.id] = self._start(job.id, starts)

    def _start(self, job: str, starts: int) -> _Driver:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        parent = str(os.getpid())
        command = [sys.executable, "-m", "solera.serve.driver.managed", self.url, job, parent]
        with self._output(job).open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )
        return _Driver(process, time.monotonic(), starts)

    def _output(self, job: str) -> Path:
        return self.folder / f"{job}.log"

    def _last_line(self, job: str) -> str:
        lines = self._output(job).read_text(errors="replace")[-4000:].split("\n")
        return next((line for line in reversed(lines) if line.strip()), "without a word")[:500]

    # --- the signed log ---

    def _sign(self) -> None:
        """Copy new events into the signed log, each once, whatever crashes.

        Where that cannot be done, jobs that run go on, and no new one begins until it can.
        """
        try:
            self._copy_events()
        except (SoleraError, OSError) as error:
            if not self.coordinator.log_problem:
                log.error("nothing can be added to the signed log: %s", error)
            self.coordinator.log_problem = f"nothing can be added to the signed log: {error}"
        else:
            self.coordinator.log_problem = ""

    def _copy_events(self) -> None:
        store = self.coordinator.store
        if not self._found:
            self._find_end()
        while events := store.events(after=self.coordinator.signed_event):
            head = self.audit.extend([(event.event, _facts(event)) for event in events])
            last = self.coordinator.signed_event = events[-1].id
            store.forget_routine(last, head, after=self._forgotten)
            self._forgotten = last
        self.audit.head()  # a log that was cut is noticed, also when there is nothing to add

    def _find_end(self) -> None:
        """Where the log ends, which must be where the store remembers that it does, or later."""
        head, known = self.audit.head(), self.coordinator.store.signed_head() or (0, "")
        other = head.n == known[0] > 0 and head.hash != known[1]
        if head.n < known[0] or other:
            raise AuditDamaged(
                f"{self.audit.path} ends at line {head.n}, {known[0]} lines were written",
                hint="restore it from a copy",
            )
        self.coordinator.signed_event = int((self.audit.last() or {}).get("event", 0))
        self._found = True


def _facts(event: Event) -> Mapping[str, Any]:
    """What the log says of an event; of facts that are too long for a line, their hash."""
    facts = _all_facts(event)
    text = json.dumps(facts, default=str)
    if len(text) <= _LONGEST_FACTS:
        return facts
    digest = hashlib.sha256(text.encode()).hexdigest()
    named = ("event", "at", "federation", "job")
    short: dict[str, Any] = {name: facts[name] for name in named if name in facts}
    return short | {"sha256": digest, "characters": len(text)}


def _all_facts(event: Event) -> dict[str, Any]:
    about = {name: getattr(event, name) for name in ("federation", "job", "client", "reason")}
    known = {name: value for name, value in about.items() if value not in (None, "")}
    return {"event": event.id, "at": event.time, **known, **(event.facts or {})}
