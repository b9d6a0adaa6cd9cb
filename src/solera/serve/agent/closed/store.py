"""What a client must not forget of its closed jobs, in one file.

What is about to be posted, the form of it, the client's state and the line for the log are one
record, on the disk before anything leaves: after a crash the record is posted again, never another.
The lines go on to the signed log from there.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from solera.serve.agent.database import Database
from solera.serve.audit import AuditLog
from solera.trust.board.run import RunEnded

_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    jid TEXT PRIMARY KEY, epoch TEXT, text BLOB, since REAL, state TEXT, reason TEXT,
    step TEXT DEFAULT '', waits TEXT DEFAULT '[]', waits_since REAL DEFAULT 0,
    numbers INTEGER DEFAULT 0
);
CREATE TABLE IF NOT EXISTS records (
    jid TEXT, name TEXT, content BLOB, PRIMARY KEY (jid, name)
);
CREATE TABLE IF NOT EXISTS lines (id INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT, facts TEXT);
CREATE TABLE IF NOT EXISTS results (
    hash TEXT PRIMARY KEY, jid TEXT, epoch TEXT, content BLOB, part BLOB
);
"""

State = Literal["held", "approved", "running", "finished", "ended", "refused"]
OVER: tuple[State, ...] = ("finished", "ended", "refused")
_SUMS = "(SELECT count(*) FROM records r WHERE r.jid = jobs.jid AND name LIKE 'sum%')"
_COLUMNS = f"jid, epoch, text, since, state, reason, {_SUMS}, step, waits, waits_since"


class OwnJob(NamedTuple):
    """A closed job at this client; ``waits`` names the owners it waits for, for ``step``."""

    jid: str
    epoch: str
    text: bytes
    since: float
    state: State
    reason: str
    sums: int
    step: str
    waits: list[str]
    waits_since: float


class ClosedStore:
    """The file; ``audit`` is the client's signed log."""

    def __init__(self, path: Path, audit: AuditLog | None = None) -> None:
        self._database = Database(path, _TABLES, durable=True)
        self._audit = audit
        self._turn = threading.Lock()
        self._written: int | None = None
        """The last line that the log has."""

    # --- jobs ---

    def add(self, jid: str, epoch: str, text: bytes) -> OwnJob:
        """Remember a text that was shown, once."""
        with self._database.write() as db:
            row = (jid, epoch, text, time.time())
            db.execute(
                "INSERT OR IGNORE INTO jobs (jid, epoch, text, since, state, reason)"
                " VALUES (?, ?, ?, ?, 'held', '')",
                row,
            )
            return _job(db, jid)

    def job(self, jid: str) -> OwnJob | None:
        """A text that was shown before."""
        with self._database.write() as db:
            return _find_job(db, jid)

    def jobs(self) -> list[OwnJob]:
        """All of them, oldest first."""
        with self._database.write() as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM jobs ORDER BY since").fetchall()
            return [_read_job(row) for row in rows]

    def move(self, jid: str, state: State, reason: str = "", **facts: Any) -> None:
        """A job goes on; what is over stays over. The log hears of it."""
        with self._database.write() as db:
            job = _job(db, jid)
            if job.state == state or job.state in OVER:
                return
            db.execute(
                "UPDATE jobs SET state = ?, reason = ?, waits = '[]' WHERE jid = ?",
                (state, reason, jid),
            )
            _add_line(db, f"closed job {state}", jid=jid, reason=reason, **facts)
        self.write_log()

    def waits(self, jid: str, step: str, names: list[str]) -> float:
        """The job waits for these owners, or for nobody any more; since when."""
        with self._database.write() as db:
            job, now = _job(db, jid), time.time()
            since = job.waits_since if job.step == step and job.waits else now
            if (job.step, job.waits) != (step, names):
                db.execute(
                    "UPDATE jobs SET step = ?, waits = ?, waits_since = ? WHERE jid = ?",
                    (step, json.dumps(names), since, jid),
                )
            return since

    # --- results ---

    def finish(self, jid: str, hash: str, content: bytes, part: bytes, numbers: int) -> None:
        """Keep a result by its hash until the epoch ends; keys and records go.

        ``part`` is what this client alone keeps of the model.
        """
        with self._database.write() as db:
            job = _job(db, jid)
            row = (hash, jid, job.epoch, content, part)
            db.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?)", row)
            db.execute("UPDATE jobs SET numbers = ? WHERE jid = ?", (numbers, jid))
        self.move(jid, "finished", result=hash, numbers=numbers)
        self.erase(jid)

    def end(self, jid: str, reason: str, numbers: int) -> None:
        """The job is over without a result; what its sums have told still counts."""
        with self._database.write() as db:
            db.execute("UPDATE jobs SET numbers = ? WHERE jid = ?", (numbers, jid))
        self.move(jid, "ended", reason, numbers=numbers)

    def result(self, hash: str) -> tuple[bytes, bytes] | None:
        """A result of an earlier closed job, and what this client alone keeps of its model."""
        with self._database.write() as db:
            query = "SELECT content, part FROM results WHERE hash = ?"
            row = db.execute(query, (hash,)).fetchone()
            return None if row is None else (bytes(row[0]), bytes(row[1]))

    def result_of(self, jid: str) -> tuple[str, bytes] | None:
        """The result of a job and its hash."""
        with self._database.write() as db:
            row = db.execute("SELECT hash, content FROM results WHERE jid = ?", (jid,)).fetchone()
            return None if row is None else (row[0], bytes(row[1]))

    def numbers_told(self, epoch: str) -> int:
        """How many numbers all jobs of an epoch have told of the sums."""
        with self._database.write() as db:
            told = "SELECT coalesce(sum(numbers), 0) FROM jobs WHERE epoch = ?"
            return int(db.execute(told, (epoch,)).fetchone()[0])

    def end_epochs_before(self, epoch: str) -> None:
        """Results are kept until their epoch ends: those of other epochs than this one go."""
        with self._database.write() as db:
            db.execute("DELETE FROM results WHERE epoch != ?", (epoch,))

    # --- records ---

    def once(self, jid: str, name: str, make: Callable[[], bytes]) -> bytes:
        """What is stored under this name; made and stored the first time, never made again."""
        with self._database.write() as db:
            if _job(db, jid).state in OVER:
                raise RunEnded("this job is over: a text starts once in an epoch")
            kept = db.execute("SELECT content FROM records WHERE jid = ? AND name = ?", (jid, name))
            row = kept.fetchone()
        if row is not None:
            return bytes(row[0])
        content = make()
        with self._database.write() as db:
            db.execute("DELETE FROM lines WHERE id <= ?", (self._written or 0,))
            db.execute("INSERT INTO records VALUES (?, ?, ?)", (jid, name, content))
            digest = hashlib.sha256(content).hexdigest()
            _add_line(db, "closed record", jid=jid, name=name, digest=digest, bytes=len(content))
        self.write_log()
        return content

    def erase(self, jid: str) -> None:
        """Keys and records of a job go; that it is over stays."""
        with self._database.write() as db:
            db.execute("PRAGMA secure_delete = ON")
            db.execute("DELETE FROM records WHERE jid = ?", (jid,))
        self._database.empty_journal()

    def write_log(self) -> None:
        """Hand new lines on to the signed log; they are deleted with the next record."""
        if self._audit is None:
            return
        with self._turn:
            with self._database.write() as db:
                new = "SELECT id, event, facts FROM lines WHERE id > ? ORDER BY id"
                lines = db.execute(new, (self._written or 0,)).fetchall()
            if self._written is None:  # before a crash the log may have got some of them
                last = self._audit.last()
                known = [i for i, line in enumerate(lines) if json.loads(line[2]) == last]
                lines = lines[known[-1] + 1 :] if known else lines
            if lines:
                self._audit.extend([(event, json.loads(facts)) for _, event, facts in lines])
                self._written = lines[-1][0]

    def close(self) -> None:
        self._database.close()


class JobRecords:
    """The disk of one run: a :class:`~solera.trust.board.run.RunStore`."""

    def __init__(self, store: ClosedStore, jid: str) -> None:
        self._store, self._jid = store, jid

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """See :meth:`ClosedStore.once`."""
        return self._store.once(self._jid, name, make)

    def erase(self) -> None:
        """See :meth:`ClosedStore.erase`."""
        self._store.erase(self._jid)


def _add_line(db: sqlite3.Connection, event: str, **facts: Any) -> None:
    db.execute("INSERT INTO lines (event, facts) VALUES (?, ?)", (event, json.dumps(facts)))


def _find_job(db: sqlite3.Connection, jid: str) -> OwnJob | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE jid = ?", (jid,)).fetchone()
    return None if row is None else _read_job(row)


def _job(db: sqlite3.Connection, jid: str) -> OwnJob:
    job = _find_job(db, jid)
    assert job is not None, jid
    return job


def _read_job(row: tuple[Any, ...]) -> OwnJob:
    job = OwnJob(*row)
    return job._replace(text=bytes(job.text), waits=json.loads(row[8]))
