"""The jobs that wait at a client until a person approves them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from solera.core.errors import UsageError
from solera.core.private_files import write_file
from solera.serve.description import Description

_LONGEST = 20_000


class HeldJob(msgspec.Struct, frozen=True):
    """A job, as the coordinator tells it; ``description`` has been checked against ``hash``.

    ``frame`` is the whole of it, see :class:`~solera.serve.description.Description`.
    """

    hash: str
    job: str
    owner: str
    kind: str
    task: str
    since: str
    description: str
    frame: bytes = b""


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


def describe(job: Description) -> str:
    """A job in words: who asks, and what is learned."""
    learner = json.dumps(job.learner, default=_in_short)
    hours = None if job.seconds is None else job.seconds / 3600
    lasts = "without an end" if hours is None else f"{hours:,.1f} hours at most"
    lines = [
        f"{job.kind} job {job.job} of {job.owner or 'nobody named'}, seed {job.seed}, {lasts}",
        f"learner {learner}" if job.learner else "learner not named",
        "the driver chooses what is asked",
        *([f"looks at what this client keeps of job {job.parts_of}"] if job.parts_of else []),
    ]
    text = "\n".join([*lines, *job.toml.splitlines()])
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… {len(text):,} characters"


def _in_short(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{len(value):,} bytes" if shape is None else f"array {value.dtype} {shape}"
