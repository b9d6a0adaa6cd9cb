"""Write-ahead logging of an SQLite file that several processes may open for the first time."""

from __future__ import annotations

import sqlite3
import time

_PATIENCE = 30.0  # seconds in which another process ends its first opening
_PAUSE = 0.01


def write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; SQLite does not wait for another that does, so try again."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
