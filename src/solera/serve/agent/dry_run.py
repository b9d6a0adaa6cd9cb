"""What taking part would mean, told to the owner alone: rows, columns, classes, what may leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from solera.core.clients import Part
from solera.core.task import installed_tasks
from solera.data.federated import FederatedData
from solera.data.label_statistics import label_statistics
from solera.serve.agent.policy import Policy
from solera.trust.gate import POLICIES
from solera.trust.release import releases_of

Open = Callable[[Sequence[str] | None], FederatedData]
"""(columns) → the rows with these columns, or with all there are."""


def dry_run(open_rows: Open, policy: Policy) -> Iterator[str]:
    """What tasks would see and what could leave, a line each; nothing is sent."""
    data = open_rows(policy.data.columns or None)
    yield from _rows(data, policy)
    yield from _columns(data, open_rows, policy)
    yield from _classes(data, policy)
    yield from _limits(data, policy)
    yield from _named(policy)


def _rows(data: FederatedData, policy: Policy) -> Iterator[str]:
    parts: tuple[Part, ...] = ("train", "validation", "test")
    sizes = {part: int(data.sizes(part)[0]) for part in parts}
    kept = ", ".join(f"{size:,} to {part}" for part, size in sizes.items() if size)
    persons = "" if data.persons is None else f", of {len(np.unique(data.persons)):,} persons"
    yield f"rows      {sum(sizes.values()):,} ({kept}){persons}"


def _columns(data: FederatedData, open_rows: Open, policy: Policy) -> Iterator[str]:
    names = [feature.name for feature in data.schema.features]
    yield f"columns   {len(names):,} kept: {', '.join(names)}"
    if policy.data.columns:
        everything = [feature.name for feature in open_rows(None).schema.features]
        dropped = [name for name in everything if name not in names]
        yield f"          {len(dropped):,} dropped: {', '.join(dropped) or 'none'}"
    if policy.data.unit:
        yield f"          {policy.data.unit} says whose row it is, and is not shown"


def _classes(data: FederatedData, policy: Policy) -> Iterator[str]:
    """The classes of the rows to train on, which are those that may be named."""
    schema, least = data.schema, policy.limits.min_count
    if schema.target == "labels":
        (_, labels), *_ = label_statistics(data.y, schema.label_names).lines()
        yield f"labels    {labels}"
        return
    if schema.target != "classes":
        yield f"target    {schema.target}"
        return
    values, codes = np.unique(data.segments(np.array([0]))[0].y, return_inverse=True)
    units = data.units(0, "train")
    listed = set(policy.limits.listed.get("", ()))
    said = []
    for code, value in enumerate(values.tolist()):
        rows = int((codes == code).sum())
        count = rows if units is None else len(np.unique(units[codes == code]))
        persons = "" if units is None else f" of {count:,} persons"
        leaves = value in listed or count >= least
        said.append(f"{value} ({rows:,} rows{persons}{_withheld(leaves)})")
    yield f"classes   {', '.join(said[:40])}{', …' if len(said) > 40 else ''}"


def _withheld(leaves: bool) -> str:
    return "" if leaves else ", its name is withheld"


def _limits(data: FederatedData, policy: Policy) -> Iterator[str]:
    limits, rows = policy.limits, int(data.sizes()[0])
    units = data.units(0, "train")
    count = rows if units is None else len(np.unique(units))
    yield f"policy    {policy.named or 'unnamed'}: {sum(1 for _ in _tasks(policy)):,} tasks allowed"
    if count < limits.min_rows:
        few = "rows" if units is None else "persons"
        yield (
            f"          fewer {few} than min_rows = {limits.min_rows:,}: nothing about them leaves"
        )
    if not limits.trusted:
        yield f"          models of at most {int(rows * limits.parameters):,} parameters"
        yield f"          Gram matrices of at most {int(rows / limits.gram_rows):,} columns"


def _named(policy: Policy) -> Iterator[str]:
    """What each named policy would let out in place of the one that is named.

    Each is compared with the one before that is nearest to it.
    """
    known: dict[str, set[str]] = {}
    for name, limits in POLICIES.items():
        tasks = set(_tasks(replace(policy, named=name, tasks=())))
        nearest = min(known, key=lambda other: len(known[other] ^ tasks), default=None)
        before = set() if nearest is None else known[nearest]
        said = "would let out" if nearest is None else f"as {nearest}"
        if nearest is not None and tasks - before:
            said += ", and also"
        said += _families(tasks - before)
        if before - tasks:
            said += f", but not{_families(before - tasks)}"
        trust = "; THE DRIVER CAN READ ROWS" if limits.trusted else ""
        rows = "; ROWS LEAVE" if "rows" in limits.allows else ""
        known[name] = tasks
        yield f"{name:10} {said}{trust}{rows}"


def _families(tasks: set[str]) -> str:
    """Names of tasks, in short."""
    families: dict[str, list[str]] = {}
    for task in sorted(tasks):
        family, _, verb = task.partition(".")
        families.setdefault(family, []).append(verb)
    return "".join(f" {family}.{{{','.join(verbs)}}}" for family, verbs in families.items())


def _tasks(policy: Policy) -> Iterator[str]:
    for name, task in sorted(installed_tasks().items()):
        if policy.rules_for(name) and all(r.can_leave(policy.limits) for r in releases_of(task)):
            yield name
