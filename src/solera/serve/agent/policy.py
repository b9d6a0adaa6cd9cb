"""What may run on an owner's data: a TOML file.

    policy = "sums"              # what may leave: "sums", "noise" or "trusted";
                                 # `solera policy explain`
    jobs = ["statistics", "evaluation", "training"]
    exact_training = false       # models of many rounds by exact sums
    min_peers = 2                # the fewest other owners in a sum
    min_count = 5                # the fewest persons of all owners behind a number
    keep_copies = "copies.pub"   # a copy of all that leaves, sealed to this key

    [data]
    columns = ["age", "bmi"]     # the only columns tasks see besides the target; absent: all
    unit = "patient_id"          # whose row it is, where a person may have several

    [columns]                    # columns that have other names or units here
    weight = { from = "peso_lb", times = 0.4536 }
    sex = { from = "sexo", categories = { H = "male", M = "female" } }

    [approval]
    mode = "ask"                 # a named person approves every job by its hash; "auto": no one
    kinds = ["statistics"]       # with mode = "auto": only these jobs; "open": what a driver asks
    days = 30                    # how long an approval holds, or less if the job says so
    [approval.approvers]         # public keys, made by: solera approver new ana
    ana = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"

    [notify]                     # of jobs that wait and of decisions, with JSON on its input
    command = ["mail-the-committee"]
    webhook = "https://chat.example/hook"

    [hours]
    from = "20:00"               # local time; may pass midnight
    to = "06:00"

    [peers]                      # who may be sent sealed messages, by name; absent: all known ones
    hospital-b = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"

    [privacy]                    # noise lets more leave until it is spent:
    epsilon = 4.0                # the budget of these rows, over all jobs; `solera budget`
    delta = 1e-6
    ledger = "/srv/rows.ledger"  # counted here with other agents on these rows; absent: the folder

Without [approval] a named person approves every job, and under ``trusted`` nobody. Refusals travel
to the coordinator, so they never tell a small number.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field
from datetime import datetime, time, timedelta
from hashlib import blake2b
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from solera.core.component import installed_components
from solera.core.config import Problem, Where, errors_located, nearest, read_text
from solera.core.engine import Ask
from solera.core.errors import Refusal
from solera.learn.base import Transformer
from solera.trust.policy import JOBS, Policy, own_entries

PublicKey = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
OPEN = "open"
"""The kind of a job in which a driver asks what it likes."""
_APPROVERS = '[approval.approvers] with ana = "…", the key that `solera approver new ana` shows'
_WRITTEN = {"start": "from", "end": "to", "source": "from"}
"""How fields are written in the file, where that is another word."""


class NeedsApproval(Refusal):
    """The job may run once a named person has approved its hash."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a policy knows of the job an ask belongs to."""

    hash: str
    owner: str
    kind: str


# --- the tables of a file ---


@dataclass(frozen=True, slots=True)
class DataRules:
    """[data]: which columns tasks see, and whose rows they are."""

    columns: tuple[str, ...] = ()
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """An entry of [columns]: where a column comes from, in which unit and by which names.

    A number becomes (value + ``plus``) × ``times``; a category the name that ``categories`` gives,
    and what it does not list is missing.
    """

    source: str
    plus: float = 0.0
    times: float = 1.0
    categories: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """[approval]"""

    mode: Literal["auto", "ask"]
    kinds: tuple[str, ...] = ()
    approvers: Mapping[str, PublicKey] = field(default_factory=dict)
    days: Annotated[float, msgspec.Meta(gt=0, le=3650)] = 30.0

    def is_needed(self, kind: str) -> bool:
        """Whether a person has to approve a job of this kind."""
        return self.mode == "ask" or (bool(self.kinds) and kind not in self.kinds)

    def lasts(self, seconds: float | None) -> timedelta:
        """How long an approval holds of a job that wants so many seconds."""
        most = self.days * 86400
        return timedelta(seconds=most if seconds is None else min(seconds, most))


@dataclass(frozen=True, slots=True)
class NotifyRules:
    """[notify]: whom to tell of what waits for people, a command or a web address."""

    command: tuple[str, ...] = ()
    webhook: Annotated[str, msgspec.Meta(pattern=r"^(https?://.+)?$")] = ""


@dataclass(frozen=True, slots=True)
class Hours:
    """[hours]: from ``start`` until just before ``end``, perhaps of the next day."""

    start: time
    end: time

    def __contains__(self, moment: time) -> bool:
        if self.start < self.end:
            return self.start <= moment < self.end
        return moment >= self.start or moment < self.end

    def __str__(self) -> str:
        return f"from {self.start:%H:%M} to {self.end:%H:%M}"


@dataclass(frozen=True, slots=True)
class Budget:
    """[privacy]: ε and δ of all that leaves with noise; ``ledger`` is another file to count in."""

    epsilon: float
    delta: float = 0.0
    ledger: str = ""


@dataclass(frozen=True, slots=True)
class OwnerPolicy:
    """What an owner allows: what leaves, ``rules``, of which rows, when, and who approves it."""

    rules: Policy
    approval: ApprovalRules
    data: DataRules = field(default_factory=DataRules)
    columns: Mapping[str, Column] = field(default_factory=dict)
    hours: Hours | None = None
    peers: Mapping[str, PublicKey] = field(default_factory=dict)
    privacy: Budget | None = None
    notify: NotifyRules = field(default_factory=NotifyRules)
    keep_copies: str = ""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> OwnerPolicy:
        """The policy of a file."""
        return cls.parse(read_text(path), file=str(path))

    @classmethod
    def parse(cls, text: str, *, file: str = "policy.toml") -> OwnerPolicy:
        """The policy that TOML text declares; ``file`` is named in errors."""
        with errors_located(text, file):
            return _read_policy(tomllib.loads(text))

    # --- before a task runs ---

    def check_ask(self, job: JobFacts, ask: Ask, now: datetime, *, approved: bool = False) -> None:
        """Raise a :class:`Refusal` that names the rule, unless every rule is kept.

        ``approved`` is what :meth:`Approvals.approved` says of the job's hash; ``now`` is local
        time unless it carries a time zone.
        """
        for step in ask.prepare:
            _check_transformer(step.description)
        if job.kind == "standing" and not self.rules.trusts_the_driver:
            raise Refusal('standing jobs are no sums: they run under the policy "trusted" only')
        moment = (now.astimezone() if now.tzinfo else now).time()
        if self.hours is not None and moment not in self.hours:
            raise Refusal(f"it is {moment:%H:%M}, the policy allows tasks {self.hours}")
        if self.approval.is_needed(OPEN) and not approved:
            raise NeedsApproval(
                f"job {job.hash} ({job.kind}, of {job.owner}) is not approved",
                hint=f"{' or '.join(self.approval.approvers) or 'nobody'} can approve it",
            )

    # --- for people ---

    def hash(self) -> str:
        """A digest of what the policy says, whatever its comments and layout."""
        content = json.dumps(asdict(self), sort_keys=True, default=str)
        return blake2b(content.encode(), digest_size=32).hexdigest()

    def describe(self) -> str:
        """The policy in words, one rule a line."""
        rules, approval, budget = self.rules, self.approval, self.privacy
        approvers = " or ".join(approval.approvers) or "nobody: name approvers"
        renamed = [f"{name} from {column.source}" for name, column in self.columns.items()]
        needed = f"by {approvers}, for {approval.days:g} days"
        kinds = f"not needed for {', '.join(approval.kinds)}; else " if approval.kinds else ""
        lines = [
            f"policy {self.hash()[:12]}, {rules.policy!r}",
            f"  jobs      {', '.join(rules.jobs)}; exact training "
            + ("allowed" if rules.exact_training else "refused"),
            f"  sums      over at least {rules.min_peers} other owners, numbers from "
            f"{rules.min_count} persons of all",
            f"  data      columns: {', '.join(self.data.columns) or 'all'}"
            + "".join(f"; {text}" for text in renamed),
            f"  approval  {kinds}{needed if approval.mode == 'ask' or kinds else 'not needed'}",
            f"  hours     {self.hours or 'at any time'}",
            "  privacy   "
            + (f"ε = {budget.epsilon:g}, δ = {budget.delta:g}" if budget else "no budget")
            + (", over all jobs, for what leaves with noise" if budget else "")
            + f"; counts on the noise of {rules.honest_peers or 'all but one'} of the others",
        ]
        if rules.trusts_the_driver:
            lines[2] = "  sums      THE DRIVER CAN READ ROWS: whatever is asked leaves as it is"
        if self.keep_copies:
            lines.append("  copies    a sealed copy of each reply is kept")
        return "\n".join(lines)


def _check_transformer(description: Any) -> None:
    """Rows pass through transformers only, and only through those that are installed."""
    made = description.get("made") if isinstance(description, Mapping) else None
    name = made.get("$component") if isinstance(made, Mapping) else None
    known = installed_components().get(name) if isinstance(name, str) else None
    if known is None or not issubclass(known, Transformer):
        raise Refusal(f"the preparation {str(name)[:80]!r} is not an installed transformer")


# --- reading ---


def _read_policy(content: Mapping[str, Any]) -> OwnerPolicy:
    """The policy that the tables of a file declare."""
    rules = Policy.of(content)
    hints = get_type_hints(OwnerPolicy, include_extras=True)
    tables = {name: value for name, value in content.items() if name not in own_entries()}
    mode = "auto" if rules.trusts_the_driver else "ask"
    given = {"approval": {}, **tables}
    if isinstance(given["approval"], Mapping):
        given["approval"] = {"mode": mode, **given["approval"]}
    values = {name: _value(name, value, hints[name], (name,)) for name, value in given.items()}
    policy = OwnerPolicy(rules, **values)
    _check(policy, asks_explicitly="mode" in tables.get("approval", {}))
    return policy


def _check(policy: OwnerPolicy, *, asks_explicitly: bool) -> None:
    approval = policy.approval
    if asks_explicitly and approval.mode == "ask" and not approval.approvers:
        raise Problem(("approval",), 'mode = "ask" needs approvers', hint=_APPROVERS)
    for i, kind in enumerate(approval.kinds):
        if kind not in (*JOBS, OPEN):
            where = ("approval", "kinds", i)
            raise Problem(where, f"there are no jobs {kind!r}", hint=nearest(kind, [*JOBS, OPEN]))
    if approval.kinds and approval.mode == "ask":
        raise Problem(("approval", "kinds"), 'kinds needs mode = "auto"')
    if policy.hours is not None and policy.hours.start == policy.hours.end:
        raise Problem(("hours",), "from and to are the same", hint="leave [hours] out")


def _read(cls: type[Any], what: str, table: Any, where: Where) -> Any:
    """The dataclass that a table declares, or a problem at the entry that is wrong."""
    if not isinstance(table, Mapping):
        raise Problem(where, f"{what} is a table, not {table!r}")
    hints = get_type_hints(cls, include_extras=True)
    fields = {_WRITTEN.get(f.name, f.name): f for f in dataclasses.fields(cls)}
    for name in table:
        if cls is DataRules and name == "min_rows":
            line = "min_count = 5 at the top of the file counts the persons of all owners"
            raise Problem((*where, name), "[data] has no 'min_rows' any more", hint=line)
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
