"""What may run on an owner's data: a TOML file that allows; what it does not name is refused.

    [data]
    min_rows = 50                # no task runs on fewer rows
    columns = ["age", "bmi"]     # the only columns tasks see besides the target; absent: all

    [approval]
    mode = "ask"                 # a named person approves every job by its hash; "auto": no one
    days = 30                    # how long an approval holds, or less if the job says so
    [approval.approvers]         # public keys, made by: solera approver new ana
    ana = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"

    [notify]                     # of jobs that wait and of decisions, with JSON on its input
    command = ["mail-the-committee"]
    webhook = "https://chat.example/hook"

    [hours]
    from = "20:00"               # local time; may pass midnight
    to = "06:00"

    [output]
    max_bytes = 10_000_000       # of one reply
    min_count = 5                # smallest count, other than 0, that a reply may hold

    [privacy]
    epsilon = 4.0                # the budget that a ledger will keep, over all jobs
    delta = 1e-6                 # until it does, tasks that spend of it are refused

    [[task]]
    name = "linear.train"        # or a prefix: "preprocess.*"
    version = 1                  # absent: any
    counts = ["rows"]            # what ``min_count`` looks at; "a.b" reaches into tables
    small = "refuse"             # what happens to a reply with small counts; or "zero" them
    only = false                 # true: the task may carry no parameter but those below
    [task.where]
    epochs = { max = 10 }
    lr = { min = 0.0, max = 1.0 }
    loss = { in = ["softmax", "sigmoid"] }
    note = { max_length = 80, optional = true }

Where several entries name a task the most exact name counts; among entries of one name it is enough
that one allows. A transformer that clients pass their rows through first is allowed as a task
``prepare.<its class>``. An ask says by a ``privacy`` table in its payload that it spends of the
budget. Refusals travel to the coordinator, so they never tell a small number.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field
from datetime import datetime, time
from hashlib import blake2b
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np

from solera.core.component import installed_components
from solera.core.config import Problem, Where, errors_located, nearest, read_text
from solera.core.engine import Ask
from solera.core.errors import Refusal
from solera.core.ranges import Range, value_at
from solera.learn.base import Transformer
from solera.serve.agent.policy_rules import (
    ApprovalRules,
    Budget,
    DataRules,
    Hours,
    NotifyRules,
    OutputRules,
    TaskRule,
    components_in,
)


class NeedsApproval(Refusal):
    """The job may run once a named person has approved its hash."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a policy knows of the job an ask belongs to."""

    hash: str
    owner: str
    kind: str


@dataclass(frozen=True, slots=True)
class Policy:
    """What an owner allows; an empty one allows nothing."""

    data: DataRules = field(default_factory=DataRules)
    approval: ApprovalRules = field(default_factory=ApprovalRules)
    hours: Hours | None = None
    output: OutputRules = field(default_factory=OutputRules)
    privacy: Budget | None = None
    notify: NotifyRules = field(default_factory=NotifyRules)
    tasks: tuple[TaskRule, ...] = ()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Policy:
        """The policy of a file."""
        return cls.parse(read_text(path), file=str(path))

    @classmethod
    def parse(cls, text: str, *, file: str = "policy.toml") -> Policy:
        """The policy that TOML text declares; ``file`` is named in errors."""
        with errors_located(text, file):
            return _policy(tomllib.loads(text))

    # --- before a task runs ---

    def check_ask(
        self,
        job: JobFacts,
        ask: Ask,
        client: int,
        rows: int,
        now: datetime,
        *,
        approved: bool = False,
    ) -> None:
        """Refuse an ask that breaks a rule, be it by its task or by its transformers."""
        for step in ask.prepare:
            for name, params in components_in(step.description):
                self._check_task(f"prepare.{name}", 1, params)
            _check_transformer(step.description)
        self.check(
            job, ask.task, ask.version, ask.payload_for(client), rows, now, approved=approved
        )

    def check(
        self,
        job: JobFacts,
        task: str,
        version: int,
        payload: Any,
        rows: int,
        now: datetime,
        *,
        approved: bool = False,
    ) -> None:
        """Raise a :class:`Refusal` that names the rule, unless every rule is kept.

        ``approved`` is what :meth:`Approvals.approved` says of the job's hash; ``now`` is local
        time unless it carries a time zone.
        """
        self._check_task(task, version, payload)
        if value_at(payload, "privacy") is not None:
            raise Refusal(f"task {task!r} spends of a privacy budget, and no ledger keeps one yet")
        if rows < self.data.min_rows:
            raise Refusal(f"there are fewer rows than min_rows = {self.data.min_rows:,}")
        moment = (now.astimezone() if now.tzinfo else now).time()
        if self.hours is not None and moment not in self.hours:
            raise Refusal(f"it is {moment:%H:%M}, the policy allows tasks {self.hours}")
        if self.approval.mode == "ask" and not approved:
            raise NeedsApproval(
                f"job {job.hash} ({job.kind}, of {job.owner}) is not approved",
                hint=f"{' or '.join(self.approval.approvers)} can approve it",
            )

    def _check_task(self, task: str, version: int, payload: Any) -> None:
        rules = self.rules_for(task)
        if not rules:
            raise Refusal(f"the policy does not allow task {task!r}")
        objections = [rule.objection(version, payload) for rule in rules]
        if all(objections):
            raise Refusal(f"the policy does not allow task {task!r} with {objections[0]}")

    def rules_for(self, task: str) -> list[TaskRule]:
        """The entries for a task, those with the most exact name."""
        found = [rule for rule in self.tasks if rule.covers(task)]
        exact = max((_exactness(rule.name) for rule in found), default=(False, 0))
        return [rule for rule in found if _exactness(rule.name) == exact]

    # --- before a reply leaves ---

    def suppress(self, task: str, reply: Any) -> Any:
        """The reply with small counts set to 0, where the task's entry says ``small = "zero"``."""
        for rule in self.rules_for(task):
            for name in rule.counts if rule.small == "zero" else ():
                value = value_at(reply, name)
                if value is not None and (small := self._small(value)).any():
                    zeroed = np.where(small, np.zeros_like(value), value)
                    whole = isinstance(value, np.ndarray)
                    reply = _with(reply, name.split("."), zeroed if whole else zeroed.tolist())
        return reply

    def check_reply(self, task: str, payload_size: int, reply: Any) -> None:
        """Raise a :class:`Refusal` when a reply of that encoded size must not leave."""
        most, least = self.output.max_bytes, self.output.min_count
        if most is not None and payload_size > most:
            raise Refusal(f"the reply to {task!r} has {payload_size:,} bytes, max_bytes = {most:,}")
        for name in dict.fromkeys(name for rule in self.rules_for(task) for name in rule.counts):
            value = value_at(reply, name, _NOTHING)
            if value is _NOTHING:
                raise Refusal(f"the reply to {task!r} has no {name!r}, whose counts are limited")
            if value is not None and self._small(value).any():
                raise Refusal(
                    f"the reply to {task!r}: {name!r} holds a count below min_count = {least}"
                )

    def _small(self, value: Any) -> Any:
        counts = np.asarray(value)
        if counts.dtype.kind not in "biuf":
            raise Refusal("a reply holds something other than numbers where counts are limited")
        return (counts != 0) & ~(np.abs(counts.astype(np.float64)) >= self.output.min_count)

    # --- for people ---

    def hash(self) -> str:
        """A digest of what the policy says, whatever its comments and layout."""
        said = json.dumps(asdict(self), sort_keys=True, default=str)
        return blake2b(said.encode(), digest_size=32).hexdigest()

    def describe(self) -> str:
        """The policy in sentences, one a line."""
        ask = self.approval.mode == "ask"
        approvers, days = " or ".join(self.approval.approvers), self.approval.days
        most, budget = self.output.max_bytes, self.privacy
        lines = [
            f"policy {self.hash()[:12]}: what is not listed is refused",
            f"  data      at least {self.data.min_rows:,} rows; columns: "
            + (", ".join(self.data.columns) or "all"),
            f"  approval  {f'by {approvers}, for {days:g} days' if ask else 'not needed'}",
            f"  hours     {self.hours or 'at any time'}",
            f"  output    {'any size' if most is None else f'at most {most:,} bytes'}; "
            f"counts from {self.output.min_count}",
            "  privacy   "
            + (f"ε = {budget.epsilon:g}, δ = {budget.delta:g}" if budget else "no budget")
            + "; no ledger yet, so tasks that spend of it are refused",
        ]
        return "\n".join([*lines, *(f"  task      {rule}" for rule in self.tasks or ("none",))])


_NOTHING = object()


def _check_transformer(description: Any) -> None:
    """Rows pass through transformers only, and only through those that are installed."""
    name = value_at(description, "made.$component")
    found = installed_components().get(name) if isinstance(name, str) else None
    if found is None or not issubclass(found, Transformer):
        raise Refusal(f"the preparation {str(name)[:80]!r} is not an installed transformer")


def _with(tree: Any, keys: Sequence[str], value: Any) -> Any:
    """The tree with another value at these keys."""
    return {**tree, keys[0]: _with(tree[keys[0]], keys[1:], value)} if keys else value


def _exactness(name: str) -> tuple[bool, int]:
    return (not name.endswith("*"), len(name))


# --- reading ---

_APPROVERS = '[approval.approvers] with ana = "…", the key that `solera approver new ana` shows'

_WRITTEN = {"start": "from", "end": "to", "among": "in", "tasks": "task"}
"""How fields are written in the file, where that is another word."""


def _policy(content: Mapping[str, Any]) -> Policy:
    policy: Policy = _read(Policy, "a policy", content, ())
    if policy.approval.mode == "ask" and not policy.approval.approvers:
        raise Problem(("approval",), 'mode = "ask" needs approvers', hint=_APPROVERS)
    budget = policy.privacy
    if budget is not None and not math.isfinite(budget.epsilon + budget.delta):
        raise Problem(("privacy",), "epsilon and delta must be finite")
    if policy.hours is not None and policy.hours.start == policy.hours.end:
        raise Problem(("hours",), "from and to are the same", hint="leave [hours] out")
    return policy


def _read(cls: type[Any], what: str, table: Any, where: Where) -> Any:
    """The dataclass that a table declares, or a problem at the entry that is wrong."""
    if not isinstance(table, Mapping):
        raise Problem(where, f"{what} is a table, not {table!r}")
    hints = get_type_hints(cls, include_extras=True)
    fields = {_WRITTEN.get(f.name, f.name): f for f in dataclasses.fields(cls)}
    for name in table:
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
