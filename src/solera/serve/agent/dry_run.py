"""What tasks would see of an owner's rows, told to the owner alone: rows, columns, classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from solera.core.clients import Part
from solera.data.federated import FederatedData
from solera.data.label_statistics import label_statistics
from solera.serve.agent.policy import OwnerPolicy

Open = Callable[[Sequence[str] | None], FederatedData]
"""(columns) → the rows with these columns, or with all there are."""


def dry_run(open_rows: Open, policy: OwnerPolicy) -> Iterator[str]:
    """What tasks would see, a line each; nothing is sent."""
    data = open_rows(policy.data.columns or None)
    yield from _rows(data)
    yield from _columns(data, open_rows, policy)
    yield from _classes(data)


def _rows(data: FederatedData) -> Iterator[str]:
    parts: tuple[Part, ...] = ("train", "validation", "test")
    sizes = {part: int(data.sizes(part)[0]) for part in parts}
    kept = ", ".join(f"{size:,} to {part}" for part, size in sizes.items() if size)
    persons = "" if data.persons is None else f", of {len(np.unique(data.persons)):,} persons"
    yield f"rows      {sum(sizes.values()):,} ({kept}){persons}"


def _columns(data: FederatedData, open_rows: Open, policy: OwnerPolicy) -> Iterator[str]:
    names = [feature.name for feature in data.schema.features]
    yield f"columns   {len(names):,} kept: {', '.join(names)}"
    if policy.data.columns:
        everything = [feature.name for feature in open_rows(None).schema.features]
        dropped = [name for name in everything if name not in names]
        yield f"          {len(dropped):,} dropped: {', '.join(dropped) or 'none'}"
    if policy.data.unit:
        yield f"          {policy.data.unit} says whose row it is, and is not shown"


def _classes(data: FederatedData) -> Iterator[str]:
    """The classes of the rows to train on."""
    schema = data.schema
    if schema.target == "labels":
        (_, labels), *_ = label_statistics(data.y, schema.label_names).lines()
        yield f"labels    {labels}"
        return
    if schema.target != "classes":
        yield f"target    {schema.target}"
        return
    y, units = data.segments(np.array([0]))[0].y, data.units(0, "train")
    shown = []
    for value in np.unique(y):
        rows = y == value
        persons = "" if units is None else f" of {len(np.unique(units[rows])):,} persons"
        shown.append(f"{value} ({rows.sum():,} rows{persons})")
    yield f"classes   {', '.join(shown[:40])}{', …' if len(shown) > 40 else ''}"
