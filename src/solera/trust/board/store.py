"""What an owner keeps of its runs: in memory for tests, in SQLite for good.

A record is stored, with a line of the log, in one transaction before anything of it leaves. A
record that is stored is used again after a crash, and never made anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import time

from solera.trust.board.run import RunEnded

_OVER = "this job is over: it starts once"
_TABLES = """
CREATE TABLE IF NOT EXISTS board_records (
    job BLOB, name TEXT, content BLOB, PRIMARY KEY (job, name));
CREATE TABLE IF NOT EXISTS board_log (job BLOB, name TEXT, bytes INTEGER, at REAL);
CREATE TABLE IF NOT EXISTS board_over (job BLOB PRIMARY KEY, at REAL);
"""


@dataclass
class MemoryStore:
    """Records that live as long as the process."""

    records: dict[str, bytes] = field(default_factory=dict)
    over: bool = False

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """What is stored under this name, made the first time."""
        if self.over:
            raise RunEnded(_OVER)
        if name not in self.records:
            self.records[name] = make()
        return self.records[name]

    def erase(self) -> None:
        """Forget all but that it is over."""
        self.records.clear()
        self.over = True


class SQLiteStore:
    """The records of one job in a database that other jobs may share."""

    def __init__(self, path: str | Path, job: bytes) -> None:
        self.job = job
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._lock = Lock()
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("PRAGMA secure_delete=ON")
        self._database.executescript(_TABLES)

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """What is stored under this name, made the first time, with a line of the log."""
        with self._lock:
            if self.is_over:
                raise RunEnded(_OVER)
            row = self._row("SELECT content FROM board_records WHERE job = ? AND name = ?", name)
            if row is not None:
                return bytes(row[0])
            content = make()
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.execute(
                    "INSERT INTO board_records VALUES (?, ?, ?)", (self.job, name, content)
                )
                self._database.execute(
                    "INSERT INTO board_log VALUES (?, ?, ?, ?)",
                    (self.job, name, len(content), time()),
                )
            return content

    @property
    def is_over(self) -> bool:
        """Whether the job has ended here."""
        return self._row("SELECT at FROM board_over WHERE job = ?") is not None

    def erase(self) -> None:
        """Delete the records; that the job is over stays."""
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("DELETE FROM board_records WHERE job = ?", (self.job,))
            self._database.execute(
                "INSERT OR IGNORE INTO board_over VALUES (?, ?)", (self.job, time())
            )

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _row(self, query: str, *more: str) -> tuple[bytes, ...] | None:
        row: tuple[bytes, ...] | None = self._database.execute(query, (self.job, *more)).fetchone()
        return row
