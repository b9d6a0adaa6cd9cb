"""What ``solera doctor`` finds: each thing it looked at, what is wrong, and the way out."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from solera.core.errors import SoleraError
from solera.serve.audit import verify
from solera.serve.identity import Identity

State = Literal["ok", "soon", "wrong"]
LEAST_FREE = 1 << 30
"""Bytes of a disk below which something is wrong: uploads end at 256 MB."""
DAY = 24 * 3600.0


class Finding(msgspec.Struct, frozen=True):
    """``soon`` is not wrong yet. ``mend`` is a command, or what somebody has to do."""

    what: str
    state: State
    says: str
    mend: str = ""


Check = Callable[[], Iterator[Finding]]


def look(what: str, check: Check) -> list[Finding]:
    """What a check finds; where it cannot even look, that is what it finds."""
    try:
        return list(check())
    except SoleraError as error:
        return [Finding(what, "wrong", error.message, error.hint or "")]
    except OSError as error:
        return [Finding(what, "wrong", f"{error.strerror or error}: {error.filename or ''}")]


def check_disk(folder: Path) -> Iterator[Finding]:
    """Whether there is room where a folder lies."""
    disk = shutil.disk_usage(folder)
    free = f"{disk.free / 1e9:.1f} of {disk.total / 1e9:.1f} GB are free"
    if disk.free < LEAST_FREE:
        mend = f"make room on the disk of {folder}: df -h {folder}"
        yield Finding("disk", "wrong", f"only {free}", mend)
    else:
        yield Finding("disk", "ok", free)


def check_log(path: Path, identity: Identity) -> Iterator[Finding]:
    """Whether the signed log is what was written."""
    report = verify(path, identity.sign_key)
    if report.ok:
        yield Finding("signed log", "ok", f"{report.head.n} lines, unbroken")
        return
    yield Finding(
        "signed log",
        "wrong",
        report.problems[0],
        f"keep {path} as evidence and ask who could write to it",
    )


def age(moment: float) -> str:
    """How long ago, or how far ahead, a moment is."""
    days = abs(time.time() - moment) / DAY
    return f"{days:.0f} days" if days >= 2 else f"{days * 24:.0f} hours"
