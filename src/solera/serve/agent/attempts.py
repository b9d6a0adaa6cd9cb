"""What an agent has begun, on disk before it begins, and how often.

An ask that kills the worker or the agent is found pending again after the restart. Without a
memory of the attempt it would kill again, for good.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

from solera.serve.agent.database import Database

CRASHES = 3
"""A task whose process died so often has failed: once, and two retries."""
STARTS = 10
"""An ask that was begun so often and never ended has failed, too: it brings the agent down."""
_MOST = 10_000
"""Attempts that are kept; of more, the oldest are let go."""
_TABLES = """
CREATE TABLE IF NOT EXISTS attempts (
    job TEXT, sequence INTEGER, digest TEXT, starts INTEGER, crashes INTEGER,
    PRIMARY KEY (job, sequence, digest)
);
"""
_NEW = """
INSERT OR IGNORE INTO attempts (job, sequence, digest, starts, crashes) VALUES (?, ?, ?, 0, 0)
"""
_THIS = "job = ? AND sequence = ? AND digest = ?"


class AskKey(NamedTuple):
    """An ask: its place in its job and the digest of all that it says."""

    job: str
    sequence: int
    digest: str


class Attempt(NamedTuple):
    """How often an ask was begun, this time included, and how often its process died."""

    starts: int
    crashes: int

    @property
    def hopeless(self) -> bool:
        return self.crashes >= CRASHES or self.starts > STARTS


class Attempts:
    """The file of attempts. Every call is a transaction of its own, which survives ``kill -9``."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _TABLES, durable=False)

    def begin(self, ask: AskKey) -> Attempt:
        """One more attempt at this ask."""
        with self._database.write() as db:
            new = db.execute(_NEW, ask)
            if new.rowcount:
                _forget(db)
            db.execute(f"UPDATE attempts SET starts = starts + 1 WHERE {_THIS}", ask)
            known = db.execute(f"SELECT starts, crashes FROM attempts WHERE {_THIS}", ask)
            return Attempt(*known.fetchone())

    def crashed(self, ask: AskKey) -> None:
        """The process died that worked on this ask."""
        self._change("SET crashes = crashes + 1, starts = starts - 1", ask)

    def undo(self, ask: AskKey) -> None:
        """The agent was told to end: no fault of the ask."""
        self._change("SET starts = starts - 1", ask)

    def end(self, ask: AskKey) -> None:
        """The ask is answered: if it comes again, it is a new one."""
        with self._database.write() as db:
            db.execute(f"DELETE FROM attempts WHERE {_THIS}", ask)

    def _change(self, how: str, ask: AskKey) -> None:
        with self._database.write() as db:
            db.execute(f"UPDATE attempts {how} WHERE {_THIS}", ask)

    def close(self) -> None:
        self._database.close()


def _forget(db: sqlite3.Connection) -> None:
    """Keep the newest attempts."""
    old = f"SELECT rowid FROM attempts ORDER BY rowid DESC LIMIT -1 OFFSET {_MOST}"
    db.execute(f"DELETE FROM attempts WHERE rowid IN ({old})")
