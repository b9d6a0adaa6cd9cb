"""What came of a job, as files: the model, where it comes from, and its card."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from solera.evaluation.evaluation import Evaluation
from solera.learn.base import from_bytes
from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.store.base import Conflict
from solera.serve.statements import signed
from solera.serve.web.requests import download
from solera.serve.wire import Job


def model(coordinator: Coordinator, job: Job) -> Response:
    """The model itself."""
    content = coordinator.blobs.read(coordinator.store.model(job.id).digest)
    return download(content, f"{job.id}.sol", "application/octet-stream")


def provenance(coordinator: Coordinator, job: Job) -> Response:
    """The signed statement of where it comes from."""
    statement = coordinator.store.provenance(job.id, coordinator.signed_event)
    identity = coordinator.identity
    if statement is None or identity is None:
        raise Conflict("The signed log does not hold the model yet; try again in a moment.")
    content = msgspec.json.format(msgspec.json.encode(signed(statement, identity)))
    return download(content, f"{job.id}.sol.provenance.json", "application/json")


def card(coordinator: Coordinator, job: Job) -> Response:
    """The model card, with what clients judged."""
    made = from_bytes(coordinator.blobs.read(coordinator.store.model(job.id).digest))
    found = coordinator.store.judged(job.id)
    text = made.card(Evaluation(found, {}, {}) if found else None)
    return download(text.encode(), f"{job.id}.sol.card.md", "text/markdown; charset=utf-8")
