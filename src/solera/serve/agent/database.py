"""A small database file in the client's folder, for what grows with the asks."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from solera.core.errors import UsageError
from solera.serve.write_ahead import write_ahead


class Database:
    """SQLite in one file, for its owner alone. Opened when it is first used, by each process.

    With ``durable`` a transaction that has ended survives a power cut; without, a killed process.
    """

    def __init__(self, path: Path, tables: str, *, durable: bool) -> None:
        self.path = path
        self._tables = tables
        self._durable = durable
        self._open: tuple[int, sqlite3.Connection] | None = None
        self._turn = threading.Lock()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction, one at a time; nothing of it stays when the block raises."""
        try:
            with self._turn:
                db = self._connection()
                db.execute("BEGIN IMMEDIATE")
                with db:
                    yield db
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # a disk that is full may be emptied
                raise OSError(0, f"{self.path.name}: {error}", str(self.path)) from None
            raise UsageError(
                f"{self.path} is damaged: {error}", hint="restore it from a copy"
            ) from None

    def _connection(self) -> sqlite3.Connection:
        if self._open is None or self._open[0] != os.getpid():  # a forked copy is not to be used
            if not self.path.exists():  # to close a file is to lose this process's locks on it
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            db = sqlite3.connect(
                self.path, timeout=10, isolation_level=None, check_same_thread=False
            )
            write_ahead(db)
            db.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
            db.executescript(self._tables)
            self._open = (os.getpid(), db)
        return self._open[1]

    def empty_journal(self) -> None:
        """What was deleted stays in the journal until that is copied into the file."""
        with self._turn, suppress(sqlite3.Error):
            self._connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Let go of the file."""
        kept, self._open = self._open, None
        if kept is not None and kept[0] == os.getpid():
            with suppress(sqlite3.Error):
                kept[1].close()
