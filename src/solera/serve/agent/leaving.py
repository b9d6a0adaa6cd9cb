"""Leaving a federation: what is held for a client, on both sides, and deleting it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solera.core.errors import UsageError
from solera.core.private_files import sync_folder
from solera.serve.agent import home
from solera.serve.audit import AuditLog
from solera.serve.connection import CoordinatorError
from solera.serve.identity import FILE, UNKNOWN_KEY, Identity

_OURS = (home.MEMORY, home.APPROVALS, home.HELD, home.LOCK, home.PLACE, FILE)
"""In the order in which they go: without the keys nothing more could be asked."""
_LOGS = (home.LOG, f"{home.LOG}.head")
_PATIENCE = 5.0


@dataclass(frozen=True)
class Holdings:
    """Rows per table and blobs at the coordinator, files and their bytes in the folder.

    ``place`` is where the client has joined, if it has. ``rows`` is None if the coordinator does
    not know this client, or knows it no more.
    """

    place: dict[str, Any] | None
    rows: dict[str, int] | None
    blobs: int
    bytes: int
    files: dict[str, int]


def holdings(folder: Path) -> Holdings:
    """Everything held for the client of this folder; nothing is changed."""
    files = {path.name: path.stat().st_size for path in _files(folder, (*_OURS, *_LOGS))}
    if not files:
        raise UsageError(f"no client lives in {folder}", hint="--folder names its folder")
    place = home.read_place(folder)
    told = None if place is None else _ask(Identity.load(folder), place, "GET", "/v1/held")
    return Holdings(place, **(told or {"rows": None, "blobs": 0, "bytes": 0}), files=files)


def leave(folder: Path, *, log: bool) -> None:
    """Delete it all: at the coordinator first, for which the keys are needed, then here.

    The audit log stays, with a last line that says so, unless ``log``. A command that was cut
    short can be given again.
    """
    place = home.read_place(folder)
    lock = home.Lock(folder)
    try:
        if place is not None:
            identity = Identity.load(folder)
            if not log:
                facts = {"federation": place["federation"], "url": place["url"]}
                AuditLog(folder / home.LOG, identity).append("leaving", **facts)
            _ask(identity, place, "POST", "/v1/leave")
        for path in _files(folder, (*_LOGS, *_OURS) if log else _OURS):
            path.unlink()
        sync_folder(folder)
        if not any(folder.iterdir()):
            folder.rmdir()
    finally:
        lock.release()


def _ask(identity: Identity, place: dict[str, Any], method: str, path: str) -> Any:
    """What the coordinator says, or None if it knows this client no more."""
    connection = home.connection_of(
        identity, place["url"], place["ca"], place["federation"], _PATIENCE
    )
    try:
        return connection.request(method, path).json()
    except CoordinatorError as error:
        if UNKNOWN_KEY in error.message:
            return None
        raise
    finally:
        connection.close()


def _files(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """The files of those names, and what a crash left of them while they were written."""
    found = [path for name in names for path in folder.glob(f".{name}.*")]
    found += [folder / name for name in names]
    return [path for path in found if path.is_file()]
