"""What a job is, in full: the description that owners read and approve, and the hash of both.

A description is a payload frame, kept by the coordinator as the blob ``spec`` of the job::

    {"job": "readmission", "federation": "cardio", "kind": "managed", "owner": "dr. vega",
     "seed": 0, "learner": {"kind": "FedHEONN", "lam": 0.01}, "seconds": 86400.0,
     "tasks": [{"name": "heonn.statistics", "version": 1, "asks": 1,
                "where": {"row_share": {"min": 1.0, "max": 1.0}}}],
     "toml": "…"}

``tasks`` are all that the job will ask, with the most asks of each and the ranges of their
parameters, written as in a policy; a transformer that rows pass through is ``prepare.<class>``,
with no number of asks. ``seconds`` is how long the job may take, counted from the approval.
``toml`` is the file of a job that a coordinator drives.

What is approved is :func:`job_hash`, which covers the job's own name beside these bytes: the same
description under another name, or another description under the same name, is another job.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from solera.core.errors import PayloadError
from solera.core.payload import decode, encode
from solera.serve.identity import signed_message
from solera.serve.wire import Digest, Kind, Name, Number, Person, Seconds, Seed, TaskName


class PlannedTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task that a job asks for: how often at most, with parameters in which ranges."""

    name: TaskName
    version: Number = 1
    asks: Number = 0
    where: dict[str, dict[str, Any]] = {}


class Description(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job, as its owner says it and as clients compare every ask with it."""

    job: Name
    federation: Name
    kind: Kind
    owner: Person
    seed: Seed
    learner: dict[str, Any] = {}
    tasks: Annotated[list[PlannedTask], Meta(max_length=1000)] = []
    seconds: Seconds | None = None
    toml: str = ""

    def to_bytes(self) -> bytes:
        """The frame whose digest is the job's ``spec``."""
        tasks = [asdict(task) for task in self.tasks]
        return encode({**asdict(self), "tasks": tasks})

    @classmethod
    def from_bytes(cls, frame: bytes) -> Description:
        """The description in a frame, checked."""
        try:
            return msgspec.convert(decode(frame), cls)
        except (msgspec.ValidationError, TypeError):
            raise PayloadError("the job's description is not one") from None


def job_hash(federation: str, job: str, spec: Digest) -> str:
    """What people approve: this job of this federation, with exactly this description."""
    return hashlib.sha256(signed_message("job", federation, job, spec)).hexdigest()
