"""The state of jobs and clients in words: what happens, who is awaited for what, since when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from solera.serve.coordinator.store.store import Store
from solera.serve.coordinator.store.watching import Awaited
from solera.serve.held_words import held_since
from solera.serve.wire import Job

GOING_ON = ("created", "waiting", "running")
_SHOWN = 4


def of_jobs(store: Store, federation: str, jobs: Iterable[Job]) -> dict[str, str]:
    """What each of some jobs of a federation does or waits for."""
    by_job: dict[str, list[Awaited]] = {}
    for entry in store.awaited(federation):
        by_job.setdefault(entry.job, []).append(entry)
    names, doing = store.client_names(federation), store.doing(federation)
    return {job.id: of_job(job, by_job.get(job.id, []), names, doing) for job in jobs}


def of_job(
    job: Job, awaited: Sequence[Awaited], names: Mapping[int, str], doing: Mapping[int, str]
) -> str:
    """``running, round 12: waits for north (linear.train) since 18:30``.

    Or, where people have yet to decide, ``waits for approval at north since 18:30 UTC``.
    """
    if job.state not in GOING_ON:
        return f"{job.state}: {job.reason}" if job.reason else job.state
    if job.state == "created":
        return "is about to begin"
    if job.state == "waiting":
        return f"waits for clients to join: {job.reason}" if job.reason else "waits for clients"
    if not awaited:
        return "running: works on what came back"
    held = [
        f"{names.get(a.client, a.client)} since {since}"
        for a in awaited
        if (since := held_since(doing.get(a.client, ""), job.id))
    ]
    if held:
        return f"waits for approval at {_some(held)}"
    first = awaited[0]
    who = _some([names.get(a.client, f"client {a.client}") for a in awaited])
    return f"running, round {first.round}: waits for {who} ({first.task}) since {_at(first.since)}"


def of_learner(table: Any) -> str:
    """The learner of a job, such as ``FedScaler → FedLinear``."""
    return " → ".join(kind for kind, _ in steps_of(table)) or "–"


def steps_of(table: Any) -> list[tuple[str, dict[str, Any]]]:
    """The steps of a pipeline, or a learner alone: what each is, and its parameters."""
    if not isinstance(table, dict):
        return [(str(table), {})]
    if isinstance(table.get("steps"), list):
        return [step for each in table["steps"] for step in steps_of(each)]
    parameters = {name: value for name, value in table.items() if name != "kind"}
    return [(str(table["kind"]), parameters)] if "kind" in table else []


def of_client(doing: str, awaited: Sequence[Awaited]) -> str:
    """What a client says that it does, or what it is awaited for."""
    if doing:
        return doing
    if not awaited:
        return "nothing to do"
    first = awaited[0]
    return f"has yet to answer {first.task} of {first.job}, since {_at(first.since)}"


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")
