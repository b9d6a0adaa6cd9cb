"""A closed job in words: what a text asks, and how far it is. For pages, commands and drivers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from solera.serve.closed import ClosedJob
from solera.trust.board.text import JobText, parse


def name_of(text: JobText) -> str:
    """What a job is called: which learner, and which repeat; all else is in its lines."""
    if text.kind == "training":
        again = f", repeat {text.repeat}" if text.repeat else ""
        names = {" → ".join(_kinds(learner)) or "a learner": None for learner in text.learners}
        points = f"the best of {len(text.learners)}: " if len(text.learners) > 1 else ""
        return f"{points}{', '.join(names)}{again}"
    if text.kind == "atoms":
        return "find the atoms of the epoch"
    if text.learner is not None:
        return learner_words(text.learner)
    return f"score {text.model[:12]}" if text.model else "describe"


def _kinds(learner: Any) -> list[str]:
    """The names of a learner, or of the steps of a pipeline."""
    if not isinstance(learner, Mapping) or "$component" not in learner:
        return []
    steps = learner.get("params", {}).get("steps")
    if not isinstance(steps, list | tuple):
        return [str(learner["$component"])]
    return [name for step in steps for name in _kinds(step)]


def learner_words(learner: Any) -> str:
    """A learner as one would write it."""
    if isinstance(learner, Mapping) and "$component" in learner:
        given = learner.get("params", {}).items()
        params = ", ".join(f"{n}={learner_words(v)}" for n, v in given if v is not None)
        return f"{learner['$component']}({params})"
    if isinstance(learner, list | tuple):
        return f"[{', '.join(map(learner_words, learner))}]"
    if isinstance(learner, Mapping):
        inside = (f"{name}: {learner_words(value)}" for name, value in learner.items())
        return f"{{{', '.join(inside)}}}"
    return repr(learner)


def text_lines(text: JobText) -> list[tuple[str, str]]:
    """All that a text says, a line for each."""
    target = text.target if isinstance(text.target, str | None) else ", ".join(text.target)
    lines = [
        ("kind", text.kind),
        *_learner_lines(text),
        ("model", text.model or ""),
        ("population", text.population),
        ("columns", ", ".join(text.columns) or "all"),
        ("target", target or "the dictionary's"),
        ("positive", text.positive),
        ("training folds", _folds(text.training) if text.kind != "evaluation" else ""),
        ("validation folds", _folds(text.validation)),
        ("test folds", _folds(text.test)),
        ("metrics", ", ".join(text.metrics)),
        ("stops early by", learner_words(list(text.callbacks)) if text.callbacks else ""),
        ("repeat", str(text.repeat)),
        ("patience", f"{text.patience} days"),
        ("researcher", f"{text.researcher or 'nobody named'}, key {text.researcher_key.hex()}"),
    ]
    return [(what, value) for what, value in lines if value]


def _learner_lines(text: JobText) -> list[tuple[str, str]]:
    if text.learner is None:
        return []
    if not isinstance(text.learner, list):
        return [("learner", learner_words(text.learner))]
    how = "fitted one after the other; the smallest mean loss over the validation folds is kept"
    points = enumerate(map(learner_words, text.learners), 1)
    return [("grid", how), *((f"learner {i} of {len(text.learners)}", p) for i, p in points)]


def text_words(text: JobText) -> str:
    """All that a text says."""
    return "\n".join(f"{what}: {value}" for what, value in text_lines(text))


def job_words(job: ClosedJob, *, now: datetime | None = None) -> str:
    """How far a closed job is, in one sentence."""
    waits = ", ".join(owner.name for owner in job.awaited)
    if job.state == "waiting":
        said = sum(owner.verdict == "approved" for owner in job.owners)
        return f"{said} of {len(job.owners)} owners have approved; waits for {waits}"
    if job.state == "running":
        done = f"runs: {job.sums} sums done{_round_words(job)}"
        if not waits or job.since is None:
            return done
        return f"{done}; waits for {waits} since {clock(job.since, now)}"
    if job.state == "finished":
        return "finished" if job.fetched else "finished; its researcher has yet to fetch the result"
    return f"{job.state}: {job.reason}"


def _round_words(job: ClosedJob) -> str:
    """The newest round of which an owner has told."""
    told = [re.search(rf"{job.jid[:8]} round (\d+)", owner.doing) for owner in job.owners]
    rounds = [int(match[1]) for match in told if match]
    return f", round {max(rounds)}" if rounds else ""


def parsed(job: ClosedJob) -> JobText:
    """The text of a job, as the coordinator tells it."""
    from base64 import b64decode

    return parse(b64decode(job.text))


def clock(moment: float, now: datetime | None = None) -> str:
    """A time of today, or a day and a time."""
    at, today = datetime.fromtimestamp(moment, UTC), now or datetime.now(UTC)
    return at.strftime("%H:%M UTC" if at.date() == today.date() else "%Y-%m-%d %H:%M UTC")


def _folds(folds: Sequence[int]) -> str:
    return ", ".join(map(str, folds))
