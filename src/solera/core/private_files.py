"""Files that must be whole, on the disk, and for their owner alone."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from solera.core.errors import UsageError


def read_private(path: Path) -> bytes:
    """A file for its owner alone. One that others can read is refused: it may be secret no more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    with open(descriptor, "rb") as file:
        refuse_open(path, os.fstat(descriptor), "600")
        return file.read()


def write_file(path: Path, data: bytes, mode: int, *, overwrite: bool) -> None:
    """The whole file, on the disk, or nothing of it; with its mode from the start."""
    if not path.parent.is_dir():
        raise UsageError(
            f"{path}: there is no folder {path.parent}", hint=f"mkdir -p '{path.parent}'"
        )
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(fresh, path)
        else:
            os.link(fresh, path)  # unlike a rename, this fails when the path exists
    except FileExistsError:
        raise UsageError(
            f"{path} exists", hint="it is not replaced; choose another place"
        ) from None
    finally:
        fresh.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a new name in ``folder`` survive a power cut."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def refuse_open(path: Path, status: os.stat_result, mode: str) -> None:
    """Modes mean nothing on Windows, where the user's profile protects the file."""
    if os.name == "posix" and (stat.S_IMODE(status.st_mode) & 0o077):
        raise UsageError(
            f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):o})",
            hint=f"chmod {mode} '{path}', and consider the key known if others had access",
        )
