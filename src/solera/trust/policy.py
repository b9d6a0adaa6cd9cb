"""What an owner lets out: one of three policies, and how far each of them goes.

``sums``: approved jobs run at every owner, and only sums over all owners can be read. ``noise``:
so, and what is asked freely leaves with noise that a budget counts. ``trusted``: everything.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from solera.core.config import Problem, errors_located, nearest, read_text
from solera.core.errors import UsageError

Name = Literal["sums", "noise", "trusted"]
NAMES: tuple[Name, ...] = get_args(Name)
JOBS = ("statistics", "evaluation", "training", "vertical")
"""The kinds of jobs; ``"vertical"`` under ``trusted`` only."""

PROMISE = (
    "Your agent works out every question by itself, from the job that was approved and the totals "
    "so far. Nobody can send it another. Whoever writes the job chooses the job.",
    "What leaves is masked. What can be read is the sum over all owners of the epoch; owners read "
    "every sum, the researcher the result only. If all other owners put their parts together, "
    "yours is bare.",
    "Owners are trusted to answer truthfully. One that lies can steer the later questions of a job "
    "of several rounds, and then read rows: 46 of 225 by 19 steered sums of a network, 17 by 7 of "
    "k-means, 8 by 12 of a GLM. Only noise prevents it.",
    "Nothing is told about fewer than min_count persons of all owners together, as far as it is "
    "one cell of one job. Many exact sums together can give away a person's target to somebody "
    "who knows everybody's other columns; networks and trees do (20 boosted trees all 297 targets "
    "of the Cleveland heart data). Only noise prevents it.",
    "Anything asked freely leaves with noise that your ledger counts, or not at all, or you say "
    '"trusted".',
)
"""What an owner reads before anything else."""

_TABLES = ("data", "columns", "approval", "hours", "peers", "notify", "keep_copies")
"""Entries of a policy file about rows, people and hours, which an agent reads."""

_OLD_NAMES = {
    "statistics": 'policy = "sums" with jobs = ["statistics"]',
    "evaluation": 'policy = "sums" with jobs = ["evaluation"]',
    "training": 'policy = "sums", or policy = "trusted" where the driver may read rows',
    "vertical": 'policy = "trusted" with jobs = ["vertical"]',
    "upload": 'policy = "trusted"',
}
_GONE = {
    "task": 'jobs = ["statistics", "evaluation", "training"], of what may run',
    "bounds": "bounds of the column in the dictionary that all owners sign",
    "listed": "categories of the column in the dictionary that all owners sign",
    "classes": "classes of the target in the dictionary that all owners sign",
    "output": "min_count = 5, min_peers = 2 and keep_copies = … at the top of the file",
    "only_sums": 'policy = "sums"',
    "parameters": "exact_training = true, or nothing: a model of many parameters needs it",
}
"""Entries of earlier versions, and what to write in their place."""


@dataclass(frozen=True)
class Policy:
    """What an owner lets out.

    Parameters
    ----------
    policy: ``"sums"``, ``"noise"`` or ``"trusted"``.
    jobs: the kinds of jobs that may run.
    exact_training: whether models of many rounds may be trained by exact sums.
    min_peers: the fewest other owners in a sum.
    min_count: the fewest persons of all owners behind a number.
    refresh: how many persons at least must have changed at an owner between two epochs; by
        default the larger of 20 and 5 %.
    honest_peers: how many others are trusted to add their share of noise; by default all but one.
    budget: ε and δ of all that leaves with noise.
    unit: the column that says whose row it is, where a person may have several.

    >>> Policy.of("sums").min_count
    5
    >>> Policy.of({"policy": "noise", "privacy": {"epsilon": 2.0, "delta": 1e-6}}).budget
    (2.0, 1e-06)
    """

    policy: Name
    jobs: tuple[str, ...] = ("statistics", "evaluation", "training")
    exact_training: bool = False
    min_peers: int = 2
    min_count: int = 5
    refresh: int | None = None
    honest_peers: int | None = None
    budget: tuple[float, float] | None = None
    unit: str | None = None

    @classmethod
    def of(cls, value: str | Path | Mapping[str, Any] | Policy) -> Policy:
        """The policy of a name, of a file, or of a table with what a file may hold."""
        if isinstance(value, Policy):
            return value
        if isinstance(value, Mapping):
            return _from_table(value)
        if isinstance(value, Path) or value.endswith(".toml") or os.sep in value:
            text = read_text(value)
            with errors_located(text, str(value)):
                return _from_table(tomllib.loads(text))
        return _from_table({"policy": value})

    @property
    def trusts_the_driver(self) -> bool:
        """Whether whoever asks may read rows."""
        return self.policy == "trusted"

    def peers_of_noise(self, owners: int) -> int:
        """How many others of so many owners are trusted to add their share of noise."""
        return owners - 2 if self.honest_peers is None else self.honest_peers


def _check_name(name: Any) -> None:
    """An error unless there is a policy of this name; of an old one it says the new line."""
    if name in _OLD_NAMES:
        raise Problem(("policy",), f"there is no policy {name!r} any more", hint=_OLD_NAMES[name])
    if name not in NAMES:
        hint = f"there are {', '.join(NAMES)}"
        raise Problem(("policy",), f"there is no policy {name!r}", hint=hint)


def _check_entry(name: str, known: tuple[str, ...]) -> None:
    """An error unless a policy has an entry of this name; of an old one it says the new line."""
    if name in _GONE:
        line = f"write {_GONE[name]}"
        raise Problem((name,), f"a policy has no {name!r} any more", hint=line)
    if name not in known:
        raise Problem((name,), f"a policy has no {name!r}", hint=nearest(name, known))


def own_entries() -> tuple[str, ...]:
    """The entries of a file that say what leaves; the others are about rows and people."""
    computed = ("budget", "unit")
    return tuple(field.name for field in fields(Policy) if field.name not in computed)


def _from_table(table: Mapping[str, Any]) -> Policy:
    entries = own_entries()
    for name in table:
        _check_entry(name, (*entries, "privacy", *_TABLES))
    if "policy" not in table:
        raise Problem((), "a policy names itself", hint='add policy = "sums"')
    _check_name(table["policy"])
    hints = get_type_hints(Policy)
    values = {name: _value(name, table[name], hints[name]) for name in entries if name in table}
    if table["policy"] == "trusted":
        values = {"jobs": JOBS} | values
    policy = Policy(**values, budget=_budget_of(table), unit=_unit_of(table))
    _check(policy)
    return policy


def _value(name: str, value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise Problem((name,), f"{name} = {value!r}: {error}") from None


def _check(policy: Policy) -> None:
    for i, job in enumerate(policy.jobs):
        if job not in JOBS:
            where = ("jobs", i)
            raise Problem(where, f"there are no jobs {job!r}", hint=f"there are {', '.join(JOBS)}")
    if "vertical" in policy.jobs and policy.policy != "trusted":
        raise Problem(("jobs",), 'jobs of "vertical" are no sums', hint='policy = "trusted"')
    least = {"min_peers": 1 if policy.trusts_the_driver else 2, "min_count": 1}
    for name in ("min_peers", "min_count", "refresh", "honest_peers"):
        number = getattr(policy, name)
        if number is not None and number < least.get(name, 0):
            raise Problem((name,), f"{name} = {number}: it is at least {least.get(name, 0)}")


def _budget_of(table: Mapping[str, Any]) -> tuple[float, float] | None:
    """ε and δ of [privacy]."""
    privacy = table.get("privacy")
    if privacy is None:
        return None
    if not isinstance(privacy, Mapping) or "epsilon" not in privacy:
        raise Problem(("privacy",), "[privacy] needs epsilon = …")
    epsilon, delta = privacy["epsilon"], privacy.get("delta", 0.0)
    numbers = isinstance(epsilon, int | float) and isinstance(delta, int | float)
    if not numbers or not (0 < epsilon < math.inf and 0 <= delta < 1):
        raise Problem(("privacy",), "epsilon is over 0 and finite, delta at least 0 and below 1")
    return float(epsilon), float(delta)


def _unit_of(table: Mapping[str, Any]) -> str | None:
    """The column of [data] that says whose row it is."""
    data = table.get("data")
    unit = data.get("unit") if isinstance(data, Mapping) else None
    if unit is not None and not isinstance(unit, str):
        raise UsageError(f"unit = {unit!r} is no name of a column")
    return unit
