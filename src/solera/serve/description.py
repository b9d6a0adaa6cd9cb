"""What a job is, in full: the description that owners read and approve, and the hash of both.

A description is a payload frame, kept by the coordinator as the blob ``spec`` of the job::

    {"job": "readmission", "federation": "cardio", "kind": "managed", "owner": "dr. vega",
     "seed": 0, "learner": {"kind": "FedHEONN", "lam": 0.01}, "seconds": 86400.0, "toml": "…"}

``seconds`` is how long the job may take, counted from the approval. ``toml`` is the file of a job
that a coordinator drives.
``parts_of`` names an earlier job: tasks see what the client keeps of its model, and change nothing.

What is approved is :func:`job_hash`, which covers the job's own name beside these bytes: the same
description under another name, or another description under the same name, is another job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from solera.core.component import Component, component_name
from solera.core.errors import PayloadError
from solera.core.payload import decode, encode
from solera.serve.identity import signed_message
from solera.serve.wire import Kind, Name, Person, Seconds, Seed


class Description(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job, as its owner says it."""

    job: Name
    federation: Name
    kind: Kind
    owner: Person
    seed: Seed
    learner: dict[str, Any] = {}
    seconds: Seconds | None = None
    toml: str = ""
    parts_of: str = ""

    def to_bytes(self) -> bytes:
        """The frame whose digest is the job's ``spec``."""
        return encode(asdict(self))

    @classmethod
    def from_bytes(cls, frame: bytes) -> Description:
        """The description in a frame, checked."""
        try:
            fields = decode(frame)
            fields.pop("plan", None)  # of earlier versions
            return msgspec.convert(fields, cls)
        except (msgspec.ValidationError, TypeError, AttributeError):
            raise PayloadError("the job's description is not one") from None


def learner_table(learner: Component) -> dict[str, Any]:
    """A learner and its parameters, as a job file writes them; functions by their names."""
    params = {
        ("kind_" if name == "kind" else name): _plain(value)
        for name, value in learner.described_params().items()
    }
    return {"kind": component_name(type(learner)), **params}


def _plain(value: Any) -> Any:
    if isinstance(value, Component):
        return learner_table(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return getattr(value, "__name__", repr(value)) if callable(value) else value


def job_hash(federation: str, job: str, spec: str) -> str:
    """What people approve: this job of this federation, with exactly this description."""
    return hashlib.sha256(signed_message("job", federation, job, spec)).hexdigest()
