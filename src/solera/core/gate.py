"""The gate: what may come in to an owner's rows, and what may leave them.

A task says what it takes (``ask=``, :mod:`solera.core.disclosure.declared`) and what leaves with
its reply (``release=``, :mod:`solera.core.release`). The gate compares both with the client's own
rows and with the owner's limits. It stands in every engine at the same place, right before and
right after the task; at an agent always, in a simulation with ``so.simulate(…, policy=…)``.

The limits begin where hospitals trust DataSHIELD (Wilson et al. 2017; Avraam et al. 2024): no cell
of fewer than five rows, no model with more parameters than a third of the rows, no more than forty
levels of a category. Every number is counted with its effective rows
(:mod:`solera.core.disclosure.evidence`), and so is its difference to each number that left before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from solera.core.clients import Client, Part
from solera.core.disclosure.declared import check_payload
from solera.core.disclosure.evidence import Persons
from solera.core.disclosure.memory import Memory
from solera.core.disclosure.noised import Ledger, MemoryLedger, Noised, is_noised
from solera.core.errors import GateRefusal, UsageError
from solera.core.release import Kind, Leaving
from solera.core.schema import Schema
from solera.core.task import Task


@dataclass(frozen=True)
class ReleaseLimits:
    """What an owner lets out.

    Parameters
    ----------
    allows: the kinds of releases that may leave.
    min_count: the fewest effective rows behind a number; smaller cells are merged or withheld.
    min_rows: the fewest rows of a client that answers anything about its rows.
    parameters: the most parameters of a model per row it is trained on.
    gram_rows: the fewest rows per column of a Gram matrix.
    saturation: the largest |wⱼ| σⱼ of a linear model, against weights that single out a row.
    categories, category_share: the most categories or classes that are named, and per row.
    listed: categories that may be named however rare, by column; ``classes`` under "".
    bounds: the least and largest value of a column that may be told, where extremes are asked.
    numbers: how many numbers may leave per value of the table, over all jobs.
    trusted: the driver may read rows: replies leave as they are.
    encrypted: releases that may only leave encrypted or masked.
    unit: the column that says whose row it is; persons are counted instead of rows.
    budget: ε and δ over all jobs, for what leaves with noise (:mod:`.disclosure.noised`).
    noised: releases that may only leave with noise.
    """

    allows: frozenset[Kind] = frozenset({"facts", "cells", "categories", "extremes"})
    min_count: int = 5
    min_rows: int = 10
    parameters: float = 1 / 3
    gram_rows: float = 3.0
    saturation: float = 8.0
    categories: int = 40
    category_share: float = 1 / 3
    listed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    numbers: float = 100.0
    trusted: bool = False
    encrypted: frozenset[Kind] = frozenset()
    unit: str | None = None
    budget: tuple[float, float] | None = None
    noised: frozenset[Kind] = frozenset()


_STATISTICS: frozenset[Kind] = frozenset({"facts", "cells", "gram", "categories", "extremes"})
_TRAINING: frozenset[Kind] = _STATISTICS | {"update", "tree", "cipher"}
POLICIES: dict[str, ReleaseLimits] = {
    "statistics": ReleaseLimits(_STATISTICS),
    "evaluation": ReleaseLimits(frozenset({"facts", "cells", "categories"})),
    "training": ReleaseLimits(_TRAINING),
    "vertical": ReleaseLimits(_TRAINING | {"rows"}),
    "upload": ReleaseLimits(_TRAINING | {"rows"}),
    "trusted": ReleaseLimits(_TRAINING, min_rows=1, trusted=True),
}
"""The named policies, from the strictest to the one that trusts the driver with rows."""


def find_limits(policy: str | ReleaseLimits) -> ReleaseLimits:
    """The limits of a named policy, or those that are given."""
    if isinstance(policy, ReleaseLimits):
        return policy
    if policy not in POLICIES:
        raise UsageError(f"there is no policy {policy!r}", hint=f"there are {', '.join(POLICIES)}")
    return POLICIES[policy]


def check_ask(limits: ReleaseLimits, task: Task, payload: Any, schema: Schema) -> None:
    """Refuse a task that says not what leaves, and a payload that does not fit the schema."""
    if task.release is None:
        raise GateRefusal(f"task {task.name!r} does not declare what leaves with its reply")
    for release in task.release:
        if release.kind not in limits.allows:
            raise GateRefusal(f"task {task.name!r} releases {release.says}, which is not allowed")
        noised = isinstance(release, Noised) and is_noised(payload, limits)
        if limits.noised.intersection(_kinds(release)) and not noised:
            raise GateRefusal(f"task {task.name!r} releases {release.says}, which need noise here")
    check_payload(task, payload, schema)


def _kinds(release: Any) -> set[Kind]:
    """The kind of a release, and of the one whose rules it follows."""
    inner = getattr(release, "inside", None) or getattr(release, "inner", None)
    return {release.kind} if inner is None else {release.kind, *_kinds(inner)}


def is_about_rows(task: Task) -> bool:
    """Whether anything that leaves with a reply depends on rows."""
    return any(release.about_rows for release in task.release or ())


class Gate:
    """Judges what comes in to the rows of a client and what leaves.

    ``memory`` is what left, ``ledger`` what left with noise was worth; ``outcome`` and ``merged``
    what became of the numbers of the last reply (:class:`~solera.core.release.Leaving`).
    """

    def __init__(
        self, limits: ReleaseLimits, memory: Memory | None = None, ledger: Ledger | None = None
    ) -> None:
        self.limits = limits
        self.memory = Memory() if memory is None else memory
        self.ledger: Ledger = MemoryLedger(self.memory) if ledger is None else ledger
        self.outcome: dict[str, Any] = {}
        self.merged: dict[str, Any] = {}

    def admit(self, task: Task, client: Client, payload: Any) -> None:
        """Refuse a task or payload that does not fit the rows, and too few rows."""
        check_ask(self.limits, task, payload, client.data.schema)
        self.check_rows(task, client)

    def check_rows(self, task: Task, client: Client) -> None:
        """Refuse to answer about too few rows, or persons."""
        if not is_about_rows(task):
            return
        rows = self.persons(client, "train").count(np.ones((len(client.data), 1), bool))[0]
        if rows < self.limits.min_rows:
            raise GateRefusal(f"there are fewer rows than min_rows = {self.limits.min_rows:,}")

    def release(self, task: Task, client: Client, payload: Any, reply: Any) -> Any:
        """The reply as it may leave; what may not is merged, replaced or refused."""
        assert task.release is not None
        leaving = Leaving(task.name, client, payload, reply, self)
        undeclared = leaving.undeclared(task.release)
        if undeclared:
            raise GateRefusal(f"task {task.name!r} does not declare that {undeclared!r} leaves")
        if self.limits.trusted:  # who may read rows is told all of a sum, too
            return reply
        for release in task.release:
            leaving.reply = release.judge(leaving)
        self.outcome, self.merged = leaving.outcome, leaving.merged
        return leaving.reply

    def persons(self, client: Client, part: Part) -> Persons:
        """Whose rows these are, where the owner counts persons."""
        if self.limits.unit is None:
            return Persons()
        units = client.data.units(part)
        if units is None:
            raise GateRefusal(f"no column {self.limits.unit!r} says whose rows these are")
        return Persons(units)
