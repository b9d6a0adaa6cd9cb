"""What may run on an owner's data: a TOML file that allows; what it does not allow is refused.

    policy = "training"          # what may leave at all: "statistics", "evaluation", "training",
                                 # "vertical", "upload" or "trusted"; `solera policy explain`

    [data]
    min_rows = 50                # no task about rows runs on fewer
    columns = ["age", "bmi"]     # the only columns tasks see besides the target; absent: all
    unit = "patient_id"          # whose row it is: persons are counted, not rows

    [columns]                    # columns that have other names or units here
    weight = { from = "peso_lb", times = 0.4536 }
    sex = { from = "sexo", categories = { H = "male", M = "female" } }

    [bounds]                     # what may be told as smallest and largest value
    age = [0, 110]

    [listed]                     # categories that may be named however rare
    sex = ["female", "male"]
    classes = ["no", "yes"]      # of the target

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

    [output]                     # limits of the named policy, tightened or loosened
    max_bytes = 10_000_000       # of one reply
    min_count = 5                # the fewest rows behind a number
    only_sums = true             # numbers about rows leave in secure sums only
    min_peers = 3                # with so many other clients in them whose keys are known
    keep_copies = "copies.pub"   # a copy of all that leaves, sealed to this key

    [peers]                      # whose keys count for min_peers, and who may be sent sealed
                                 # messages, by name; absent: all known ones
    hospital-b = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"

    [privacy]                    # noise lets more leave, neural networks too, until it is spent:
    epsilon = 4.0                # the budget of these rows, over all jobs; `solera budget`
    delta = 1e-6
    ledger = "/srv/rows.ledger"  # counted here with other agents on these rows; absent: the folder

    [[task]]                     # only these tasks; none listed: all that the named policy lets out
    name = "linear.train"        # or a prefix: "preprocess.*"
    version = 1                  # absent: any
    only = false                 # true: the task may carry no parameter but those below
    [task.where]
    epochs = { max = 10 }
    lr = { min = 0.0, max = 1.0 }
    loss = { in = ["softmax", "sigmoid"] }
    note = { max_length = 80, optional = true }

Where several entries name a task the most exact name counts; among entries of one name it is enough
that one allows. A transformer that clients pass their rows through first is allowed as a task
``prepare.<its class>``. An ask says by a ``privacy`` table in its payload that noise is to be
added; the client's own code does it. Refusals travel to the coordinator, so they never tell a small
number.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from hashlib import blake2b
from typing import Any

from solera.core.component import installed_components
from solera.core.config import errors_located, read_text
from solera.core.cover import told_alone
from solera.core.engine import Ask
from solera.core.errors import Refusal
from solera.core.plan import PREPARE
from solera.core.ranges import value_at
from solera.core.task import find_task, installed_tasks
from solera.learn.base import Transformer
from solera.serve.agent.policy_rules import (
    ApprovalRules,
    Budget,
    Category,
    Column,
    DataRules,
    Hours,
    NotifyRules,
    OutputRules,
    PublicKey,
    TaskRule,
    components_in,
)
from solera.trust.gate import POLICIES, ReleaseLimits
from solera.trust.release import releases_of

_UNNAMED = "training"
"""Whose limits hold in a file that names no policy; its tasks are those that it lists."""
_LIMITS = (
    "allows",
    "min_count",
    "parameters",
    "gram_rows",
    "categories",
    "category_share",
    "encrypted",
    "noised",
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

    named: str = ""
    data: DataRules = field(default_factory=DataRules)
    columns: Mapping[str, Column] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    listed: Mapping[str, tuple[Category, ...]] = field(default_factory=dict)
    approval: ApprovalRules = field(default_factory=ApprovalRules)
    hours: Hours | None = None
    output: OutputRules = field(default_factory=OutputRules)
    peers: Mapping[str, PublicKey] = field(default_factory=dict)
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
        from solera.serve.agent.policy_reading import read_policy

        with errors_located(text, file):
            return read_policy(tomllib.loads(text))

    @property
    def limits(self) -> ReleaseLimits:
        """What the gate lets out: that of the named policy, with the file's own limits."""
        given = {
            name: value for name in _LIMITS if (value := getattr(self.output, name)) is not None
        }
        if self.data.min_rows is not None:
            given["min_rows"] = self.data.min_rows
        if self.privacy is not None:
            given["budget"] = (self.privacy.epsilon, self.privacy.delta)
        listed = {("" if name == "classes" else name): v for name, v in self.listed.items()}
        return replace(
            POLICIES[self.named or _UNNAMED],
            unit=self.data.unit,
            bounds=self.bounds,
            listed=listed,
            **given,
        )

    # --- before a task runs ---

    def check_ask(
        self,
        job: JobFacts,
        ask: Ask,
        client: int,
        now: datetime,
        *,
        approved: bool = False,
    ) -> None:
        """Refuse an ask that breaks a rule, be it by its task or by its transformers."""
        for step in ask.prepare:
            for name, params in components_in(step.description):
                self._check_task(f"{PREPARE}{name}", 1, params)
            _check_transformer(step.description)
        payload = ask.payload_for(client)
        self.check(job, ask.task, ask.version, payload, now, approved=approved)
        if self.output.only_sums and ask.cover is None and not told_alone(find_task(ask.task)):
            raise Refusal(
                f"only sums leave here, and {ask.task!r} is not asked for in a secure sum"
            )

    def check(
        self,
        job: JobFacts,
        task: str,
        version: int,
        payload: Any,
        now: datetime,
        *,
        approved: bool = False,
    ) -> None:
        """Raise a :class:`Refusal` that names the rule, unless every rule is kept.

        ``approved`` is what :meth:`Approvals.approved` says of the job's hash; ``now`` is local
        time unless it carries a time zone.
        """
        self._check_task(task, version, payload)
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
        """The entries for a task, those with the most exact name.

        Where none is listed at all, the named policy decides by what the task lets out.
        """
        if self.named and not self.tasks:
            return [TaskRule(task)] if self.lets_out(task) else []
        found = [rule for rule in self.tasks if rule.covers(task)]
        exact = max((_exactness(rule.name) for rule in found), default=(False, 0))
        return [rule for rule in found if _exactness(rule.name) == exact]

    def lets_out(self, task: str) -> bool:
        """Whether all that a task releases is of kinds that may leave."""
        if task.startswith(PREPARE):
            return _is_transformer(task.removeprefix(PREPARE))
        found = installed_tasks().get(task)
        if found is None:
            return False
        return {release.kind for release in releases_of(found)} <= self.limits.allows

    # --- before a reply leaves ---

    def check_reply(self, task: str, payload_size: int) -> None:
        """Raise a :class:`Refusal` when a reply of that encoded size must not leave."""
        most = self.output.max_bytes
        if most is not None and payload_size > most:
            raise Refusal(f"the reply to {task!r} has {payload_size:,} bytes, max_bytes = {most:,}")

    # --- for people ---

    def hash(self) -> str:
        """A digest of what the policy says, whatever its comments and layout."""
        said = json.dumps(asdict(self), sort_keys=True, default=_plain)
        return blake2b(said.encode(), digest_size=32).hexdigest()

    def describe(self) -> str:
        """The policy in sentences, one a line."""
        from solera.serve.agent.policy_words import describe

        return describe(self)


def _check_transformer(description: Any) -> None:
    """Rows pass through transformers only, and only through those that are installed."""
    name = value_at(description, "made.$component")
    if not _is_transformer(name):
        raise Refusal(f"the preparation {str(name)[:80]!r} is not an installed transformer")


def _exactness(name: str) -> tuple[bool, int]:
    return (not name.endswith("*"), len(name))


def _is_transformer(name: Any) -> bool:
    found = installed_components().get(name) if isinstance(name, str) else None
    return found is not None and issubclass(found, Transformer)


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else str(value)
