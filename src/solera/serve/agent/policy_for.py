"""Policies and plans: a policy that is just enough for a job, and what a policy lacks for one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from solera.core.plan import PlannedTask
from solera.core.ranges import Range
from solera.serve.agent.policy import Policy
from solera.serve.agent.policy_rules import TaskRule
from solera.serve.description import Description

# --- writing a policy ---


def policy_for(job: Description) -> str:
    """A policy, as TOML, that allows what this job asks and nothing else."""
    said = f"{job.learner['kind']} of job {job.job!r}" if job.learner else f"job {job.job!r}"
    lines = [f"# Just enough for {said}, owner {job.owner or 'unnamed'!r}."]
    for entry in job.plan:
        lines += ["", "[[task]]", *_task_lines(entry)]
    return "\n".join([*lines, ""])


def _task_lines(entry: PlannedTask) -> Iterator[str]:
    asks = "one ask" if entry.most == 1 else f"at most {entry.most:,} asks"
    yield f"name = {_toml(entry.task)}  # {asks}"
    yield f"version = {entry.version}"
    if entry.where:
        yield "[task.where]"
    for name, allowed in entry.where.items():
        limits = ", ".join(f"{key} = {_toml(value)}" for key, value in allowed.to_table().items())
        yield f"{_key(name)} = {{ {limits} }}" if limits else f"{_key(name)} = {{}}"


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
    for entry in job.plan:
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
        asked = entry.where.get(name)
        if asked is None:
            if allowed != Range(optional=True):
                yield f"{name} must be {allowed}, and the job does not say what it will be"
        elif not asked.within(allowed):
            yield f"{name} will be {asked}, and must be {allowed}"
    known = {name.partition(".")[0] for name in rule.where}
    if rule.only:
        for name in dict.fromkeys(name.partition(".")[0] for name in entry.where):
            if name not in known:
                yield f"{name} is not named, and nothing else is allowed"
