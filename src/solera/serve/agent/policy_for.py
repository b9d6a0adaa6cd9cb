"""Policies and plans: a policy that is just enough for a job, and what a policy lacks for one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from solera.core.errors import UsageError
from solera.core.plan import PREPARE, Plan, PlannedTask
from solera.core.ranges import OPEN
from solera.core.task import installed_tasks
from solera.serve.agent.policy import Policy
from solera.serve.agent.policy_rules import TaskRule
from solera.serve.description import Description
from solera.trust.gate import POLICIES, ReleaseLimits
from solera.trust.release import Release, releases_of

# --- writing a policy ---


def policy_for(job: Description) -> str:
    """A policy, as TOML, that allows what this job asks and nothing else."""
    lines = [f"# Just enough for job {job.job!r} of {job.owner or 'nobody named'!r}."]
    if any(map(_adds_noise, job.plan)):
        lines.append(
            "# It adds noise: name epsilon and delta under [privacy], the budget of the rows."
        )
    named = strictest_policy(job.plan)
    if POLICIES[named].trusted:
        lines += [
            "# THE DRIVER CAN READ ROWS under this policy. The job needs it because",
            *_reasons(job.plan),
        ]
    elif "rows" in POLICIES[named].allows:
        lines.append("# ROWS LEAVE under this policy, or numbers from which they can be computed.")
    lines.append(f"policy = {_toml(named)}")
    for entry in job.plan:
        lines += ["", "[[task]]", *_task_lines(entry)]
    return "\n".join([*lines, ""])


def strictest_policy(plan: Plan) -> str:
    """The named policy that lets out what these tasks release, and the least besides."""

    def strictness(name: str) -> tuple[bool, int, str]:
        return POLICIES[name].trusted, len(POLICIES[name].allows), name

    for name in sorted(POLICIES, key=strictness):
        if not any(_kept_back(entry, POLICIES[name]) for entry in plan):
            return name
    raise UsageError("no named policy lets out all that this job asks", hint="make it two jobs")


def _reasons(plan: Plan) -> Iterator[str]:
    """What does not leave without trust, as comments."""
    for entry in plan:
        for why in _kept_back(entry, POLICIES["training"]):
            yield f"# - task {entry.task!r} {why}"


def _kept_back(entry: PlannedTask, limits: ReleaseLimits) -> list[str]:
    """Why releases of a task do not leave under such limits, whatever the rows are."""
    found, noised = [], _adds_noise(entry)
    for release in _releases(entry.task) or ():
        if release.kind not in limits.allows:
            found.append(f"releases {release.says}: this may not leave")
        elif release.tells_rows and not noised and not limits.trusted:
            instead = f"; in its place, {release.instead}" if release.instead else ""
            found.append(
                f'releases {release.says}: without noise, this needs policy = "trusted"{instead}'
            )
    return found


def _adds_noise(entry: PlannedTask) -> bool:
    return any(name.partition(".")[0] == "privacy" for name in entry.where)


def _releases(task: str) -> Sequence[Release] | None:
    """What leaves with the replies to a task, if that is declared; nothing with a preparation."""
    found = installed_tasks().get(task)
    if found is None:
        return () if task.startswith(PREPARE) else None
    return releases_of(found)


def _task_lines(entry: PlannedTask) -> Iterator[str]:
    asks = "one ask" if entry.most == 1 else f"at most {entry.most:,} asks"
    yield f"name = {_toml(entry.task)}  # {asks}"
    yield f"version = {entry.version}"
    limited = {name: allowed for name, allowed in entry.where.items() if not allowed.is_open}
    if limited:
        yield "[task.where]"
    for name, allowed in limited.items():
        limits = ", ".join(f"{key} = {_toml(value)}" for key, value in allowed.to_table().items())
        yield f"{_key(name)} = {{ {limits} }}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)


# --- comparing one ---


def missing(policy: Policy, job: Description) -> list[str]:
    """Everything that the policy would refuse of what a job asks, in words."""
    found = []
    if any(map(_adds_noise, job.plan)) and policy.limits.budget is None:
        found.append("the job adds noise, and the policy has no budget for that: [privacy]")
    for entry in job.plan:
        releases = _releases(entry.task)
        if releases is None:
            found.append(f"task {entry.task!r} is not installed here")
        kept = _kept_back(entry, policy.limits)
        if kept:
            found += [f"task {entry.task!r} {why}" for why in kept]
            continue
        rules = policy.rules_for(entry.task)
        objections = [list(_objections(rule, entry)) for rule in rules]
        if not rules:
            found.append(f"task {entry.task!r} is not allowed")
        elif all(objections):
            found += [f"task {entry.task!r}: {why}" for why in min(objections, key=len)]
    return found


def _objections(rule: TaskRule, entry: PlannedTask) -> Iterator[str]:
    """What one entry of a policy has against a planned task."""
    if rule.version not in (None, entry.version):
        yield f"version {entry.version} is asked, only version {rule.version} is allowed"
    for name, allowed in rule.where.items():
        asked = entry.where.get(name, OPEN)
        if asked.is_open and allowed != OPEN:
            yield f"{name} must be {allowed}, and the job does not say what it will be"
        elif not asked.within(allowed):
            yield f"{name} will be {asked}, and must be {allowed}"
    known = {name.partition(".")[0] for name in rule.where}
    if rule.only:
        for name in dict.fromkeys(name.partition(".")[0] for name in entry.where):
            if name not in known:
                yield f"{name} is not named, and nothing else is allowed"
