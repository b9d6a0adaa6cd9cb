"""One coordinator at a time for a folder and for a database: two would answer for each other."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, make_url, text

from solera.core.errors import UsageError
from solera.serve.process_lock import ProcessLock

LOCK = "coordinator.lock"
_WAIT_SECONDS = 5.0
"""A database notices after a moment that the coordinator before has died."""


class Sole:
    """Holds a folder and a database as long as this process lives, or until it is closed.

    The system lets go of a folder when the process ends, somehow, and PostgreSQL of a database when
    its connection is gone.
    """

    def __init__(self, folder: Path, database: str) -> None:
        self._locks: list[ProcessLock] = []
        self._connection: Connection | None = None
        try:
            self._lock(folder / LOCK, f"a coordinator runs in {folder} already")
            url = make_url(database)
            if url.get_backend_name() == "postgresql":
                self._lock_database(database)
            elif url.database and Path(url.database).parent.resolve() != folder.resolve():
                beside = Path(f"{url.database}.lock")
                self._lock(beside, f"a coordinator uses {url.database} already")
        except BaseException:
            self.close()
            raise

    def _lock(self, path: Path, problem: str) -> None:
        hint = "stop it first, or choose another folder"
        self._locks.append(ProcessLock(path, problem, hint=hint))

    def _lock_database(self, database: str) -> None:
        engine = create_engine(database, isolation_level="AUTOCOMMIT", hide_parameters=True)
        self._connection = engine.connect()
        until = time.monotonic() + _WAIT_SECONDS
        key = int.from_bytes(hashlib.sha256(b"solera coordinator").digest()[:7])
        taken: Any = text(f"SELECT pg_try_advisory_lock({key})")
        while not self._connection.scalar(taken):
            if time.monotonic() > until:
                raise UsageError(
                    f"a coordinator uses the database {make_url(database).database!r} already",
                    hint="stop it first, or choose another database",
                )
            time.sleep(0.1)

    def close(self) -> None:
        for lock in self._locks:
            lock.release()
        if self._connection is not None:
            self._connection.close()
            self._connection.engine.dispose()
