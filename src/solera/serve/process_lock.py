"""A file that one process at a time holds, and who holds it: the system lets go when it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from solera.core.errors import UsageError


class ProcessLock:
    """Holds a file as long as this process lives, or until it is released.

    ``problem`` and ``hint`` are the error where another process holds it. No child inherits it.
    """

    def __init__(self, path: Path, problem: str, *, hint: str) -> None:
        self._file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")  # noqa: SIM115
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = self._file.read(20).strip() or "unknown"
            self._file.close()
            raise UsageError(f"{problem}, process {who}", hint=hint) from None
        self._file.truncate()
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def is_held(path: Path) -> bool:
    """Whether another process holds the file at this moment."""
    try:
        with open(path, "rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
