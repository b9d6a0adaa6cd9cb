"""Models at a coordinator: publish one, and fetch one with the statement where it comes from."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from solera.learn.base import Learner
from solera.serve import wire
from solera.serve.connection import Connection
from solera.serve.provenance import ENDING, Provenance

_WAIT_SECONDS = 20


def publish(connection: Connection, job: str, learner: Learner) -> None:
    """Make a fitted learner the job's latest model."""
    new = wire.NewModel(connection.upload(learner.to_bytes()))
    connection.request("PUT", f"/v1/jobs/{job}/model", json=new)


def fetch(connection: Connection, job: str, out: str | os.PathLike[str]) -> Provenance:
    """Write a job's latest model to ``out``, and the signed statement about it beside it."""
    path = f"/v1/jobs/{job}/model/provenance?wait={_WAIT_SECONDS}"
    statement = connection.call("GET", path, Provenance)
    out = Path(out)
    out.write_bytes(connection.download(statement.model))
    beside = out.with_name(out.name + ENDING)
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(statement)) + b"\n")
    return statement
