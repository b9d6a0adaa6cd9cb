"""Leaving a federation: what is held for a client, on both sides, and deleting it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from solera.core.errors import UsageError
from solera.core.private_files import sync_folder, write_file
from solera.serve import wire
from solera.serve.agent import home
from solera.serve.agent.epoch_files import FOLDER as EPOCHS
from solera.serve.agent.started import FILE as STARTED
from solera.serve.agent.withdrawn import FILE as WITHDRAWN
from solera.serve.audit import AuditLog
from solera.serve.connection import CoordinatorError
from solera.serve.identity import FILE, UNKNOWN_KEY, Identity
from solera.serve.statements import is_genuine

_DATABASE = ("-wal", "-shm", "")
_ATTEMPTS = tuple(f"{file}{end}" for file in (home.ATTEMPTS, home.CLOSED) for end in _DATABASE)
_OURS = (
    home.MEMORY,
    *_ATTEMPTS,
    home.APPROVALS,
    home.HELD,
    WITHDRAWN,
    STARTED,
    home.SECRET,
    home.LOCK,
    home.PLACE,
    FILE,
)
"""In the order in which they go: without the keys nothing more could be asked."""
_LEFT = tuple(f"{file}{end}" for file in ("releases.sqlite", home.LEDGER) for end in _DATABASE)
_LOGS = (home.LOG, f"{home.LOG}.head", *_LEFT)
"""What has left: proof of it, and what keeps it from leaving in other words."""
_PATIENCE = 5.0
RECEIPT = "receipt.json"
"""What the coordinator signed when the client left."""
T = TypeVar("T")


@dataclass(frozen=True)
class Holdings:
    """Rows per table and blobs at the coordinator, files and their bytes in the folder.

    ``place`` is where the client has joined, if it has. ``rows`` is None if the coordinator does
    not know this client, or knows it no more.
    """

    place: home.Place | None
    rows: dict[str, int] | None
    blobs: int
    bytes: int
    files: dict[str, int]


def files_of(folder: Path) -> dict[str, int]:
    """What a client keeps in its folder, in bytes."""
    files = {path.name: path.stat().st_size for path in _files(folder, (*_OURS, *_LOGS))}
    if copies := list((folder / home.COPIES).glob("*")):
        files[f"{home.COPIES}/"] = sum(path.stat().st_size for path in copies)
    if epochs := list((folder / EPOCHS).glob("*")):
        files[f"{EPOCHS}/"] = sum(path.stat().st_size for path in epochs)
    if not files:
        raise UsageError(f"no client lives in {folder}", hint="--folder names its folder")
    return files


def holdings(folder: Path) -> Holdings:
    """Everything held for the client of this folder; nothing is changed."""
    files = files_of(folder)
    place = home.find_place(folder)
    there = None if place is None else _ask(place, folder, "GET", "/v1/held", wire.Held)
    if there is None:
        return Holdings(place, None, 0, 0, files)
    return Holdings(place, there.rows, there.blobs, there.bytes, files)


def leave(folder: Path, *, log: bool) -> wire.Receipt | None:
    """Delete it all: at the coordinator first, for which the keys are needed, then here.

    The audit log stays, with a last line that says so, and so do copies and the record of what
    left, unless ``log``. A command that was cut
    short can be given again. The coordinator's receipt is written beside the log.
    """
    receipt = None
    place = home.find_place(folder)
    lock = home.lock(folder)
    try:
        if place is not None:
            if not log:
                audit = AuditLog(folder / home.LOG, Identity.load(folder))
                audit.append("leaving", federation=place.federation, url=place.url)
            answer = _ask(place, folder, "POST", "/v1/leave", wire.Left)
            receipt = None if answer is None else answer.receipt
            if receipt is not None and not log:
                _keep_receipt(folder, receipt, Identity.load(folder).sign_key.hex())
        for path in _files(folder, (*_LOGS, *_OURS) if log else _OURS):
            path.unlink()
        shutil.rmtree(folder / EPOCHS, ignore_errors=True)
        if log:
            shutil.rmtree(folder / home.COPIES, ignore_errors=True)
        sync_folder(folder)
        if not any(folder.iterdir()):
            folder.rmdir()
    finally:
        lock.release()
    return receipt


def _keep_receipt(folder: Path, receipt: wire.Receipt, key: str) -> None:
    if not is_genuine(receipt) or receipt.client != key:
        raise UsageError(
            "the coordinator's receipt is not genuine, or is not for this client",
            hint="everything there is deleted; give the command again to delete what is here",
        )
    write_file(folder / RECEIPT, msgspec.json.encode(receipt), 0o600, overwrite=True)


def _ask(place: home.Place, folder: Path, method: str, path: str, answer: type[T]) -> T | None:
    """What the coordinator says, or None if it knows this client no more."""
    connection = home.connect_to(place, Identity.load(folder), _PATIENCE)
    try:
        return connection.call(method, path, answer)
    except CoordinatorError as error:
        if UNKNOWN_KEY in error.message:
            return None
        raise
    finally:
        connection.close()


def _files(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """The files of those names, and what a crash left of them while they were written."""
    paths = [path for name in names for path in folder.glob(f".{name}.*")]
    paths += [folder / name for name in names]
    return [path for path in paths if path.is_file()]
