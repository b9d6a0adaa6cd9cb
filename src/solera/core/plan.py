"""What a fit will ask: every task, how often at most, and with parameters in which ranges.

A plan is made before anything is asked, from a learner's parameters and the schema
(:meth:`solera.learn.learner.Learner.asks`). It is part of the description of a job that owners
approve, and their agents compare every ask with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import msgspec

from solera.core.component import Component, describe
from solera.core.constraints import NonNegativeInt
from solera.core.errors import PayloadError
from solera.core.ranges import ABSENT, OPEN, Range, hull, range_objection, ranges_of, unplanned
from solera.core.task import Task

PREPARE = "prepare."
"""A transformer that rows pass through is planned as a task of this name and its class's."""
MOST_CLIENTS = 1000
"""Clients that a plan allows for where the number of asks depends on them."""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task of a plan.

    Parameters
    ----------
    task, version: which one.
    most: the most asks of it that one client gets.
    where: ranges of its plain parameters, all that there may be; an open range is that of a
        parameter, or of all in a table, that is not known before. Arrays are bound by the task's
        own declaration.
    optional: it may also be that nobody is asked.
    """

    task: str
    version: int
    most: NonNegativeInt
    where: Mapping[str, Range] = field(default_factory=dict)
    optional: bool = False

    def objection(self, asked: int, version: int, payload: Any) -> str | None:
        """What is planned otherwise than an ask after ``asked`` others, in words, or None."""
        if version != self.version:
            return f"version {version}, not version {self.version}"
        if asked >= self.most:
            return f"{asked + 1:,} asks, not at most {self.most:,}"
        return range_objection(self.where, payload) or unplanned(self.where, payload)

    def __str__(self) -> str:
        times = "once" if self.most == 1 else f"at most {self.most:,} times"
        said = [f"{n} {allowed}" for n, allowed in self.where.items() if not allowed.is_open]
        open_ = [name for name, allowed in self.where.items() if allowed.is_open]
        said += [f"anything in {', '.join(open_)}"] if open_ else []
        return "; ".join([f"{self.task} version {self.version}, {times}", *said])


Plan = tuple[PlannedTask, ...]


def planned(
    task: Task, most: int, *payloads: Any, open: Iterable[str] = (), optional: bool = False
) -> PlannedTask:
    """A task that is asked with what lies between these payloads.

    ``open`` are plain parameters, or tables of them, that are not known before.
    """
    where = ranges_of(*payloads) | dict.fromkeys(open, OPEN)
    return PlannedTask(task.name, task.version, most, where, optional)


def objection(
    plan: Iterable[PlannedTask],
    asks_so_far: Mapping[str, int],
    task: str,
    version: int,
    payload: Any,
) -> str | None:
    """How an ask departs from the plan, in words, or None if it does not.

    ``asks_so_far`` counts the earlier asks of this client by task. A transformer is judged as the
    task ``prepare.<its class>`` of version 1 with its parameters as the payload.
    """
    for entry in plan:
        if entry.task == task:
            departs = entry.objection(asks_so_far.get(task, 0), version, payload)
            return departs and f"task {task!r} is planned otherwise: {departs}"
    return f"task {task!r} is not planned"


# --- putting plans together ---


def prepared_by(step: Component, plan: Iterable[PlannedTask]) -> Plan:
    """The plan, and that rows pass through a transformer before each of its tasks.

    The transformers of which it is made are planned as well, each by its own parameters.
    """
    asks = tuple(plan)
    most = sum(entry.most for entry in asks if not entry.task.startswith(PREPARE))
    entries = [
        (PlannedTask(PREPARE + name, 1, most, ranges_of(params)),)
        for name, params in _components(describe(step))
    ]
    return in_turn(asks, *entries)


def _components(described: Any) -> Iterator[tuple[str, Any]]:
    """Name and parameters of every component in a description."""
    if isinstance(described, Mapping):
        if "$component" in described:
            yield described["$component"], described["params"]
        for value in described.values():
            yield from _components(value)
    elif isinstance(described, list):
        for value in described:
            yield from _components(value)


def in_turn(*plans: Iterable[PlannedTask]) -> Plan:
    """All of these plans, one after the other: asks of a task add up."""
    together: dict[str, PlannedTask] = {}
    for entry in (entry for plan in plans for entry in plan):
        known = together.get(entry.task)
        if known is not None:
            most, optional = known.most + entry.most, known.optional and entry.optional
            entry = _joined(known, entry, most, optional)
        together[entry.task] = entry
    return tuple(together.values())


def one_of(*plans: Iterable[PlannedTask]) -> Plan:
    """Any one of these plans: what is not in all of them is optional.

    Numbers in which they differ depend on something that is not known yet, and are left open.
    """
    tables = [{entry.task: entry for entry in plan} for plan in plans]
    found: dict[str, list[PlannedTask]] = {}
    for entry in (entry for table in tables for entry in table.values()):
        found.setdefault(entry.task, []).append(entry)
    return tuple(
        replace(
            reduce(lambda a, b: _joined(a, b, max(a.most, b.most), False, _choices), same),
            optional=len(same) < len(tables) or any(entry.optional for entry in same),
        )
        for same in found.values()
    )


def _choices(a: Range, b: Range) -> Range:
    """What two alternatives allow: text and truth values of either, numbers if they agree."""
    texts = a.among is not None and b.among is not None and a.max_length == b.max_length
    same = replace(a, optional=b.optional) == b
    return hull(a, b) if texts or same or () in (a.among, b.among) else OPEN


def _joined(
    a: PlannedTask,
    b: PlannedTask,
    most: int,
    optional: bool,
    join: Callable[[Range, Range], Range] = hull,
) -> PlannedTask:
    where = {
        name: join(a.where.get(name, ABSENT), b.where.get(name, ABSENT))
        for name in dict.fromkeys([*a.where, *b.where])
    }
    return PlannedTask(a.task, a.version, most, where, optional)


# --- on the wire ---


def plan_to_payload(plan: Iterable[PlannedTask]) -> list[dict[str, Any]]:
    """A plan as plain data, with ranges as a policy writes them."""
    return [
        {
            "task": entry.task,
            "version": entry.version,
            "most": entry.most,
            "where": {name: allowed.to_table() for name, allowed in entry.where.items()},
            "optional": entry.optional,
        }
        for entry in plan
    ]


def plan_from_payload(payload: Any) -> Plan:
    """The plan that :func:`plan_to_payload` wrote, checked."""
    try:
        return tuple(_checked(PlannedTask(**entry)) for entry in payload)
    except (msgspec.ValidationError, TypeError, AttributeError) as error:
        raise PayloadError(f"this is not a plan of asks: {error}") from None


def _checked(entry: PlannedTask) -> PlannedTask:
    where = {name: Range.from_table(table) for name, table in entry.where.items()}  # type: ignore[arg-type]
    fields = {name: getattr(entry, name) for name in ("task", "version", "most", "optional")}
    return msgspec.convert({**fields, "where": where}, PlannedTask)
