"""The folder of a client: its keys, where it has joined, and the one agent that works in it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from solera.core.errors import UsageError
from solera.core.private_files import write_file
from solera.serve.connection import Connection
from solera.serve.identity import Identity, sign_request

PLACE = "place.json"
MEMORY = "memory.sol"
APPROVALS = "approvals.json"
HELD = "held.json"
LOCK = "agent.lock"
LOG = "audit.log"
_KNOWN: dict[str, Any] = {
    "url": str,
    "ca": (str, type(None)),
    "client": int,
    "name": str,
    "federation": str,
}


def read_place(folder: Path) -> dict[str, Any] | None:
    """Where the client has joined, and under which number; None if it has not."""
    path = folder / PLACE
    try:
        place = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        place = None
    if not isinstance(place, dict) or not all(
        isinstance(place.get(name), kind) for name, kind in _KNOWN.items()
    ):
        raise UsageError(f"{path} is damaged", hint="restore it from a copy")
    return place


def write_place(folder: Path, place: dict[str, Any]) -> None:
    """Remember where the client has joined."""
    write_file(folder / PLACE, json.dumps(place).encode(), 0o600, overwrite=True)


def connection_of(
    identity: Identity, url: str, ca: str | None, federation: str, patience: float
) -> Connection:
    """A connection whose requests are signed by the client, for one federation."""

    def headers(method: str, path: str, body: bytes) -> dict[str, str]:
        digest = hashlib.sha256(body).hexdigest()
        return sign_request(identity, federation, method, path, digest, time.time())

    return Connection(url, headers, ca=ca, patience=patience)


class Lock:
    """One agent at a time in a folder; the system lets go of it when the process ends, somehow."""

    def __init__(self, folder: Path) -> None:
        self._file = open(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600), "r+")  # noqa: SIM115
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a worker does not inherit it
        except OSError:
            who = self._file.read(20).strip() or "unknown"
            self._file.close()
            raise UsageError(
                f"an agent works in {folder} already, process {who}",
                hint="stop it first, or give each agent a --folder of its own",
            ) from None
        self._file.truncate()
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()
