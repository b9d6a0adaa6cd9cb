"""The folder of a client: its keys, where it has joined, and the one agent that works in it."""

from __future__ import annotations

import hashlib
import secrets
import time
from pathlib import Path

import msgspec

from solera.core.errors import UsageError
from solera.core.private_files import read_private, write_file
from solera.serve.connection import Connection
from solera.serve.identity import Identity, sign_request
from solera.serve.process_lock import ProcessLock, is_held

PLACE = "place.json"
MEMORY = "memory.sol"
APPROVALS = "approvals.json"
HELD = "held.json"
ATTEMPTS = "attempts.sqlite"
"""What left, for comparisons that earlier versions made; an agent deletes it."""
LEDGER = "ledger.sqlite"
CLOSED = "closed.sqlite"
"""Closed jobs: their texts, records and results."""
COPIES = "copies"
SECRET = "secret.key"
LOCK = "agent.lock"
LOG = "audit.log"


class Place(msgspec.Struct, frozen=True):
    """Where a client has joined, and under which number."""

    url: str
    ca: str | None
    client: int
    name: str
    federation: str


def find_place(folder: Path) -> Place | None:
    """Where the client of a folder has joined; None if it has not."""
    path = folder / PLACE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Place)
    except FileNotFoundError:
        return None
    except ValueError:
        raise UsageError(f"{path} is damaged", hint="restore it from a copy") from None


def read_place(folder: Path) -> Place:
    """Where the client of a folder has joined; an error if it has not."""
    place = find_place(folder)
    if place is None:
        raise UsageError(f"no client in {folder} has joined yet")
    return place


def write_place(folder: Path, place: Place) -> None:
    """Remember where the client has joined."""
    write_file(folder / PLACE, msgspec.json.encode(place), 0o600, overwrite=True)


def connect(
    identity: Identity, url: str, ca: str | None, federation: str, patience: float
) -> Connection:
    """A connection whose requests are signed by the client, for one federation."""

    def headers(method: str, path: str, body: bytes, start: str) -> dict[str, str]:
        digest = hashlib.sha256(body).hexdigest()
        return sign_request(identity, federation, method, path, digest, time.time(), start)

    return Connection(url, headers, ca=ca, patience=patience)


def connect_to(place: Place, identity: Identity, patience: float) -> Connection:
    """A connection to where the client has joined."""
    return connect(identity, place.url, place.ca, place.federation, patience)


def read_secret(folder: Path) -> bytes:
    """32 bytes that all that protects this client's rows is drawn from; made once, and kept."""
    path = folder / SECRET
    if not path.exists():
        write_file(path, secrets.token_bytes(32), 0o600, overwrite=False)
    secret = read_private(path)
    if len(secret) != 32:
        raise UsageError(f"{path} is damaged", hint="restore it from a copy")
    return secret


def is_working(folder: Path) -> bool:
    """Whether an agent of another process works in a folder at this moment."""
    return is_held(folder / LOCK)


def lock(folder: Path) -> ProcessLock:
    """One agent at a time in a folder."""
    return ProcessLock(
        folder / LOCK,
        f"an agent works in {folder} already",
        hint="stop it first, or give each agent a --folder of its own",
    )
