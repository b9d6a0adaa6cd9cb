"""Jobs side by side: what they were told, what came of them, and their curves."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from solera.core.errors import SoleraError
from solera.core.payload import decode
from solera.serve.coordinator.service import Coordinator
from solera.serve.wire import Job

MOST = 8
"""Jobs that are compared at once."""
_MOST_POINTS = 400
_OWN = ("clients", "failures", "seconds", "round")


def compare(coordinator: Coordinator, jobs: Sequence[Job]) -> dict[str, Any]:
    """What differs between jobs of a federation."""
    store = coordinator.store
    tables = [_learner(coordinator, job) for job in jobs]
    rounds = [store.rounds(job.id) for job in jobs]
    judged = [store.judged(job.id) for job in jobs]
    names = list(dict.fromkeys(name for table in tables for name in table))
    differ = [n for n in names if n != "kind" and len({repr(t.get(n)) for t in tables}) > 1]
    lines = [
        ("State", [job.state for job in jobs]),
        ("Learner", [str(t.get("kind", "–")) for t in tables]),
        *((name, [_short(t.get(name)) for t in tables]) for name in differ),
        ("Seed", [str(job.seed) for job in jobs]),
        ("Rounds", [f"{len(r):,}" for r in rounds]),
        ("Asks", [f"{store.progress(job.id).asks:,}" for job in jobs]),
        ("Time", [_time(job) for job in jobs]),
        *((f"{m} (judged)", [_number(j.get(m)) for j in judged]) for m in _keys(judged)),
        *((f"{m} (last round)", [_number(r[-1].get(m) if r else None) for r in rounds])
          for m in _keys([r[-1] if r else {} for r in rounds])),
    ]  # fmt: skip
    return {"lines": lines, "repeats": _repeats(tables, judged), "curves": _curves(jobs, rounds)}


def _learner(coordinator: Coordinator, job: Job) -> dict[str, Any]:
    try:
        learner = decode(coordinator.blobs.read(job.spec)).get("learner") or {}
    except (SoleraError, AttributeError):
        return {}
    return learner if isinstance(learner, dict) else {"kind": str(learner)}


def _keys(tables: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(k for table in tables for k in table if k not in _OWN))


def _repeats(tables: Sequence[Any], judged: Sequence[dict[str, float]]) -> list[Any]:
    """Mean and standard deviation of metrics over jobs that differ in nothing but the seed."""
    groups: dict[str, list[dict[str, float]]] = {}
    for table, metrics in zip(tables, judged, strict=True):
        if metrics:
            groups.setdefault(repr(sorted(table.items(), key=str)), []).append(metrics)
    kinds = {repr(sorted(t.items(), key=str)): str(t.get("kind", "–")) for t in tables}
    return [
        (kinds[key], metric, len(group), mean(values), stdev(values))
        for key, group in groups.items()
        if len(group) > 1
        for metric in _keys(group)
        if len(values := [m[metric] for m in group if metric in m]) > 1
    ]


def _curves(jobs: Sequence[Job], rounds: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rounds of all jobs in one table, with few enough points to draw."""
    longest = max(map(len, rounds), default=0)
    step = max(1, -(-longest // _MOST_POINTS))
    shown = []
    for i in range(0, longest, step):
        facts: dict[str, Any] = {"round": i}
        for job, own in zip(jobs, rounds, strict=True):
            if i < len(own):
                facts |= {f"{job.id}: {k}": v for k, v in own[i].items() if _is_curve(k)}
        shown.append(facts)
    return shown


def _is_curve(name: str) -> bool:
    return name not in _OWN and not name.startswith("bytes")


def _time(job: Job) -> str:
    return f"{job.changed - job.created:,.0f} s" if job.state == "finished" else "–"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "–"


def _short(value: Any) -> str:
    return "default" if value is None else str(value)[:80]
