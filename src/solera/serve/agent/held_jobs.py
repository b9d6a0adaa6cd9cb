"""The jobs that wait at a client until a person approves them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from solera.core.errors import UsageError
from solera.core.payload import decode
from solera.core.private_files import write_file

_LONGEST = 20_000


class HeldJob(msgspec.Struct, frozen=True):
    """A job, as the coordinator tells it; ``description`` has been checked against ``hash``."""

    hash: str
    job: str
    owner: str
    kind: str
    task: str
    since: str
    description: str


class HeldJobs:
    """What an agent holds, in a file, so that people can look while the agent rests."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[HeldJob]:
        """The jobs held when the agent last looked."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=list[HeldJob])
        except FileNotFoundError:
            return []
        except msgspec.MsgspecError:
            raise UsageError(
                f"{self.path} is damaged", hint="delete it; the agent writes it anew"
            ) from None

    def write(self, jobs: Iterable[HeldJob]) -> None:
        """Replace what the file says."""
        write_file(self.path, msgspec.json.encode(list(jobs)), 0o600, overwrite=True)


def describe(spec: bytes) -> str:
    """The description of a job in words: its TOML if it has one, else its fields."""
    content = decode(spec)
    toml = content.get("toml") if isinstance(content, Mapping) else None
    text = toml if isinstance(toml, str) else json.dumps(content, indent=2, default=_in_short)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… {len(text):,} characters"


def _in_short(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{len(value):,} bytes" if shape is None else f"array {value.dtype} {shape}"
