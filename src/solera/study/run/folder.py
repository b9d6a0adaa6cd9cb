"""Files of a run folder: whole or not there, whatever interrupts their writing."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from solera.core.private_files import write_file
from solera.core.version import __version__, versions_of
from solera.evaluation.figure import plain

_PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "tenseal", "codecarbon")


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step."""
    write_file(path, text.encode(), 0o644, overwrite=True)


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file in one step."""
    encoded = msgspec.json.encode(content, enc_hook=plain)
    write_file(path, msgspec.json.format(encoded, indent=2) + b"\n", 0o644, overwrite=True)


class Events:
    """``events.jsonl``: what happened in a run folder, one line each."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"

    def add(self, event: str, **details: Any) -> None:
        """Append a line; lines of a few hundred bytes are written whole."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = msgspec.json.encode({"at": now, "event": event, **details}, enc_hook=plain)
        with open(self.path, "ab") as file:
            file.write(line + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """All lines; one that a crash cut short is left out."""
        if not self.path.exists():
            return []
        events = []
        for line in self.path.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                events.append(msgspec.json.decode(line))
        return events


def environment() -> dict[str, str]:
    """Versions of what results may depend on."""
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "solera": __version__,
        **versions_of(*_PACKAGES),
    }


def read_environment(folder: Path) -> dict[str, str]:
    """The versions that a run folder keeps."""
    return msgspec.json.decode((folder / "environment.json").read_bytes(), type=dict[str, str])
