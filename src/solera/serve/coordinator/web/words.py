"""The state of jobs and clients in words: what happens, who is awaited for what, since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from solera.serve.coordinator.store.watching import Awaited
from solera.serve.wire import Job

GOING_ON = ("created", "waiting", "running")
_SHOWN = 4


def of_job(job: Job, awaited: Sequence[Awaited], names: Mapping[int, str]) -> str:
    """``running, round 12: waits for north (linear.train) since 18:30``."""
    if job.state not in GOING_ON:
        return f"{job.state}: {job.reason}" if job.reason else job.state
    if job.state == "created":
        return "is about to begin"
    if job.state == "waiting":
        return f"waits for clients to join: {job.reason}" if job.reason else "waits for clients"
    if not awaited:
        return "running: works on what came back"
    first = awaited[0]
    who = [names.get(a.client, f"client {a.client}") for a in awaited[:_SHOWN]]
    more = f" and {len(awaited) - _SHOWN} more" if len(awaited) > _SHOWN else ""
    since = datetime.fromtimestamp(first.since, UTC).strftime("%H:%M:%S")
    return (
        f"running, round {first.round}: waits for {', '.join(who)}{more} ({first.task}) "
        f"since {since} UTC"
    )


def of_client(doing: str, awaited: Sequence[Awaited]) -> str:
    """What a client says that it does, or what it is awaited for."""
    if doing:
        return doing
    if not awaited:
        return "nothing to do"
    first = awaited[0]
    since = datetime.fromtimestamp(first.since, UTC).strftime("%H:%M:%S")
    return f"has yet to answer {first.task} of {first.job}, since {since} UTC"
