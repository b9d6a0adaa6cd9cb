"""Reading a policy: every entry is checked, and what is wrong is named with its line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import MISSING
from datetime import time
from typing import Any, get_args, get_type_hints

import msgspec

from solera.core.config import Problem, Where, family, nearest
from solera.core.plan import PREPARE
from solera.core.ranges import Range
from solera.core.task import installed_tasks
from solera.learn.base import Transformer
from solera.serve.agent.policy import Policy
from solera.serve.agent.policy_rules import Column, OutputRules, TaskRule
from solera.trust.gate import POLICIES

_APPROVERS = '[approval.approvers] with ana = "…", the key that `solera approver new ana` shows'

_GONE = {
    "saturation": "weights are not looked at; remove the line",
    "numbers": "numbers that left are not counted; remove the line, or let noise bound them "
    "([privacy])",
}
"""Limits of earlier versions, and what to write in their place."""
_WRITTEN = {
    "named": "policy",
    "start": "from",
    "end": "to",
    "among": "in",
    "tasks": "task",
    "source": "from",
}
"""How fields are written in the file, where that is another word."""


def read_policy(content: Mapping[str, Any]) -> Policy:
    """The policy that the tables of a file declare."""
    policy: Policy = _read(Policy, "a policy", content, ())
    if policy.approval.mode == "ask" and not policy.approval.approvers:
        raise Problem(("approval",), 'mode = "ask" needs approvers', hint=_APPROVERS)
    budget = policy.privacy
    if budget is not None and not math.isfinite(budget.epsilon + budget.delta):
        raise Problem(("privacy",), "epsilon and delta must be finite")
    if policy.hours is not None and policy.hours.start == policy.hours.end:
        raise Problem(("hours",), "from and to are the same", hint="leave [hours] out")
    if policy.named and policy.named not in POLICIES:
        hint = nearest(policy.named, POLICIES)
        raise Problem(("policy",), f"there is no policy {policy.named!r}", hint=hint)
    for name, (low, high) in policy.bounds.items():
        if not -math.inf < low <= high < math.inf:
            raise Problem(("bounds", name), f"{name}: the bounds must be finite and in order")
    for i, rule in enumerate(policy.tasks):
        _check_name(rule.name, ("task", i, "name"))
    return policy


def _check_name(name: str, where: Where) -> None:
    """An error unless some installed task or transformer is meant."""
    known = [*installed_tasks(), *(f"{PREPARE}{found}" for found in family(Transformer))]
    covers = TaskRule(name).covers
    if not any(covers(found) for found in known):
        near = nearest(name.removesuffix("*"), known)
        hint = near if near.startswith("did") else "`solera tasks` lists what is installed"
        raise Problem(where, f"no installed task is called {name!r}", hint=hint)


def _read(cls: type[Any], what: str, table: Any, where: Where) -> Any:
    """The dataclass that a table declares, or a problem at the entry that is wrong."""
    if not isinstance(table, Mapping):
        raise Problem(where, f"{what} is a table, not {table!r}")
    hints = get_type_hints(cls, include_extras=True)
    fields = {_WRITTEN.get(f.name, f.name): f for f in dataclasses.fields(cls)}
    for name in table:
        if cls is OutputRules and name in _GONE:
            raise Problem((*where, name), f"[output] has no {name!r} any more: {_GONE[name]}")
        if name not in fields:
            raise Problem((*where, name), f"{what} has no {name!r}", hint=nearest(name, fields))
    for name, f in fields.items():
        if name not in table and f.default is MISSING and f.default_factory is MISSING:
            raise Problem(where, f"{what} needs {name} = …")
    return cls(
        **{
            fields[name].name: _value(name, value, hints[fields[name].name], (*where, name))
            for name, value in table.items()
        }
    )


def _value(name: str, value: Any, hint: Any, where: Where) -> Any:
    kinds = [t for t in get_args(hint) or (hint,) if dataclasses.is_dataclass(t)]
    if name == "where" and isinstance(value, Mapping):
        return {key: _read(Range, f"rule {key!r}", v, (*where, key)) for key, v in value.items()}
    if name == "task":
        if not isinstance(value, list):
            raise Problem(where, "tasks are listed as [[task]], with two brackets")
        return tuple(_read(TaskRule, "[[task]]", v, (*where, i)) for i, v in enumerate(value))
    if name == "columns" and isinstance(value, Mapping):
        return {key: _read(Column, f"column {key!r}", v, (*where, key)) for key, v in value.items()}
    if kinds and isinstance(kinds[0], type):
        return _read(kinds[0], f"[{name}]", value, where)
    if name == "approvers" and isinstance(value, list):
        raise Problem(where, "approvers are named with their public keys", hint=_APPROVERS)
    try:
        if hint is time and isinstance(value, str):
            return time.fromisoformat(value)
        return msgspec.convert(value, hint)
    except (msgspec.ValidationError, ValueError) as error:
        raise Problem(where, f"{name} = {value!r}: {error}") from None
