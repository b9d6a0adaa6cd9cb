"""Jobs and studies side by side: what came of them, and whether chance explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from solera.core.errors import DataError, SoleraError
from solera.core.payload import decode
from solera.core.statistics import friedman, t_interval, wilcoxon_holm
from solera.evaluation.figure import Figure
from solera.evaluation.metrics import find_metric, metric_label
from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.web import words
from solera.serve.coordinator.web.studies import Repeated, configurations
from solera.serve.wire import Job

MOST = 24
"""Jobs that are compared at once."""
_MOST_POINTS = 400
_OWN = ("clients", "failures", "seconds", "round", "secure")


def compare(
    coordinator: Coordinator, jobs: Sequence[Job], tables: Mapping[str, Path]
) -> dict[str, Any]:
    """What differs between jobs of a federation, and what studies of these ``tables`` found."""
    found = _side_by_side(coordinator, jobs) if jobs else {"lines": [], "curves": []}
    repeated = {"": found.pop("repeated", [])}
    unreadable = []
    for name, table in tables.items():
        try:
            repeated[name] = configurations(table)
        except (DataError, OSError) as error:
            unreadable.append((name, str(error)))
    return found | {
        "means": [line for name, groups in repeated.items() for line in _means(name, groups)],
        "differences": [d for name, groups in repeated.items() for d in _differences(name, groups)],
        "unreadable": unreadable,
    }


def _side_by_side(coordinator: Coordinator, jobs: Sequence[Job]) -> dict[str, Any]:
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
        *_metric_lines("judged", judged),
        *_metric_lines("last round", [r[-1] if r else {} for r in rounds]),
    ]  # fmt: skip
    repeated = _repeated(jobs, tables, judged)
    return {"lines": lines, "repeated": repeated, "curves": _curves(jobs, rounds)}


def _learner(coordinator: Coordinator, job: Job) -> dict[str, Any]:
    """The learner as ``kind``, and its parameters; of a pipeline with the name of their step."""
    try:
        table = decode(coordinator.blobs.read(job.spec)).get("learner") or {}
    except (SoleraError, AttributeError):
        return {}
    steps = words.steps_of(table)
    alone = len(steps) == 1
    given = {
        name if alone else f"{kind}: {name}": v for kind, own in steps for name, v in own.items()
    }
    return {"kind": words.of_learner(table), **given}


def _metric_lines(when: str, tables: Sequence[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    return [
        (f"{metric_label(metric)} ({when})", [_number(table.get(metric)) for table in tables])
        for metric in _keys(tables)
    ]


def _keys(tables: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(k for table in tables for k in table if k not in _OWN))


def _repeated(
    jobs: Sequence[Job], tables: Sequence[dict[str, Any]], judged: Sequence[Mapping[str, float]]
) -> list[Repeated]:
    """Jobs that were judged with two seeds or more, apart from the seed the same."""
    groups: dict[str, Repeated] = {}
    for job, table, metrics in zip(jobs, tables, judged, strict=True):
        if metrics:
            key = repr(sorted(table.items(), key=str))
            group = groups.setdefault(key, Repeated(_name(table, tables), {}))
            group.seeds[job.seed] = {**metrics}
    return [group for group in groups.values() if len(group.seeds) > 1]


def _name(table: dict[str, Any], tables: Sequence[dict[str, Any]]) -> str:
    """A learner, and the parameters in which another of the same kind differs."""
    kind = table.get("kind", "–")
    alike = [other for other in tables if other.get("kind") == kind]
    differ = [n for n in table if len({repr(other.get(n)) for other in alike}) > 1]
    return ", ".join([str(kind), *(f"{n} = {_short(table[n])}" for n in differ)])


def _means(study: str, repeated: Sequence[Repeated]) -> list[Any]:
    """Mean, its 95 % interval and the standard deviation of metrics over seeds."""
    found = []
    for group in repeated:
        for metric in _keys(list(group.seeds.values())):
            values = [m[metric] for m in group.seeds.values() if metric in m]
            spread = (t_interval(values), stdev(values)) if len(values) > 1 else (None, None)
            found.append((study, group.name, metric, len(values), fmean(values), *spread))
    return found


def _differences(study: str, repeated: Sequence[Repeated]) -> list[dict[str, Any]]:
    """For each metric, pairs of configurations over the seeds that all of them have.

    The mean difference with its 95 % interval, and Wilcoxon's p with Holm's correction; of three or
    more also Friedman's p.
    """
    shared = set.intersection(*(set(group.seeds) for group in repeated)) if repeated else set()
    if len(repeated) < 2 or len(shared) < 2:
        return []
    found = []
    for metric in _keys([repeated[0].seeds[seed] for seed in shared]):
        rows = [[group.seeds[seed].get(metric) for group in repeated] for seed in sorted(shared)]
        if any(value is None for row in rows for value in row):
            continue
        table = np.array(rows, dtype=float)
        pairs = [
            (
                repeated[pair.a].name,
                repeated[pair.b].name,
                t_interval(table[:, pair.a] - table[:, pair.b]),
                pair.p_holm,
            )
            for pair in wilcoxon_holm(table)
        ]
        test = friedman(table).p if len(repeated) > 2 else None
        about = find_metric(metric)
        falls = about is not None and not about.larger_is_better
        of = {"study": study, "metric": metric, "seeds": len(shared), "falls": falls}
        found.append(of | {"pairs": pairs, "friedman": test})
    return found


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
    if isinstance(value, Figure):
        return value.marked
    return f"{value:.4g}" if isinstance(value, int | float) else "–"


def _short(value: Any) -> str:
    return "default" if value is None else str(value)[:80]
