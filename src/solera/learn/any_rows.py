"""Plans that are made before clients have agreed on what their rows look like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from solera.core.errors import DataError, SchemaError
from solera.core.plan import Plan, one_of
from solera.core.rounds import Callback
from solera.core.schema import Feature, Kind, Schema, Target

_MOST_COLUMNS = 10_000
"""So many columns are allowed for."""


def plan_for_any_rows(learner: Any, callbacks: Sequence[Callback]) -> Plan:
    """What a learner asks clients whatever their rows: one of the plans for rows of each kind."""
    plans, problems = [], []
    for schema in _possible_schemas():
        try:
            plans.append(learner.asks(schema, callbacks=callbacks))
        except (DataError, SchemaError) as problem:  # rows that it cannot learn from
            problems.append(problem)
    if not plans:
        raise problems[0]
    return one_of(*plans)


def _possible_schemas() -> Iterator[Schema]:
    """Rows of all kinds, no two of the same width and outputs, and wide ones."""
    targets: list[tuple[Target, int]] = [
        ("classes", 2), ("classes", 3), ("labels", 4), ("labels", 5), ("numbers", 1), ("numbers", 6)
    ]  # fmt: skip
    kinds: tuple[Kind, ...] = ("numeric", "categorical")
    for i, (kind, (target, outputs)) in enumerate(product(kinds, [*targets, ("none", 0)])):
        width = _MOST_COLUMNS if target == "classes" and outputs == 2 else 2 + i
        categories = () if kind == "numeric" else ("a", "b")
        features = (Feature("x", kind, categories),) * width
        classes = np.arange(outputs if target in ("classes", "labels") else 0)
        yield Schema(features, target, classes, outputs)
