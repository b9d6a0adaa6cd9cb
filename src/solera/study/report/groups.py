"""The cells of a study by configuration: what tables and pictures compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from solera.core.component import Component
from solera.study.files.reader import LOWER_IS_BETTER
from solera.study.files.tables import DataSpec
from solera.study.run.cells import Cell
from solera.study.run.results import Result, headline
from solera.study.run.runner import StudyRun


@dataclass
class Group:
    """One configuration over all its seeds and folds."""

    data: str
    partition: str
    method: str
    scheme: str
    cells: list[Cell] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, str]:
        """Where methods meet: the same rows, divided the same way."""
        return self.data, self.partition

    @property
    def name(self) -> str:
        return self.method if self.scheme == "federated" else f"{self.method}, {self.scheme}"

    def values(self, metric: str) -> list[float | None]:
        """The metric of every seed and fold, on the best rows there are to judge by."""
        return [value_of(result, metric) for result in self.results]

    def mean(self, metric: str) -> float:
        known = [v for v in self.values(metric) if v is not None]
        return float(np.mean(known)) if known else math.nan


def value_of(result: Result, metric: str) -> float | None:
    """The metric on test rows or, without these, on validation rows or the clients' own."""
    for found in (result.metrics, result.validation, result.client_metrics):
        if metric in found:
            return found[metric]
    return None


def groups(run: StudyRun) -> list[Group]:
    """The configurations of a study that have results, in its order."""
    finished = run.finished
    specs = [cell.training.spec for cell, _ in finished]
    methods = _names([spec.learner for spec in specs], _component_parts)
    partitions = _names([spec.partition for spec in specs], _component_parts)
    data = _names([spec.data for spec in specs], _data_parts)
    found: dict[Hashable, Group] = {}
    for i, (cell, result) in enumerate(finished):
        key = (data[i], partitions[i], methods[i], cell.training.scheme)
        group = found.setdefault(key, Group(*key))
        group.cells.append(cell)
        group.results.append(result)
    return list(found.values())


def metrics_of(run: StudyRun) -> list[str]:
    """The metrics that a study shows; the first decides what is best.

    Learners that predict nothing have none, and tables show a dash.
    """
    results = list(run.results.values())
    if run.study.metrics:
        return list(run.study.metrics)
    found = headline(results) or list(results[0].validation or results[0].client_metrics)
    return found or ["score"]


def better(metric: str, a: float, b: float) -> bool:
    """Whether a is better than b."""
    return a < b if metric in LOWER_IS_BETTER else a > b


def best(metric: str, candidates: Sequence[Group]) -> Group | None:
    """The group with the best mean."""
    known = [group for group in candidates if not math.isnan(group.mean(metric))]
    sign = 1 if metric in LOWER_IS_BETTER else -1
    return min(known, key=lambda group: sign * group.mean(metric), default=None)


def blocks(candidates: Sequence[Group], metric: str) -> tuple[list[str], Any]:
    """Methods against data sets, partitions, seeds and folds, as statistical tests want them.

    Rows that some method lacks are left out.
    """
    names = list(dict.fromkeys(group.name for group in candidates))
    table: dict[Hashable, dict[str, float]] = {}
    for group in candidates:
        for cell, value in zip(group.cells, group.values(metric), strict=True):
            fold = cell.training.fold
            row = (*group.place, cell.training.seed, None if fold is None else fold.number)
            if value is not None:
                table.setdefault(row, {})[group.name] = value
    whole = [[row[name] for name in names] for row in table.values() if len(row) == len(names)]
    return names, np.array(whole).reshape(len(whole), len(names))


def _names(
    things: Sequence[Any], parts: Callable[[Any], tuple[str, Mapping[str, Any]]]
) -> list[str]:
    """Short names that tell things apart: the kind, and the parameters that differ."""
    described = [parts(thing) for thing in things]
    values: dict[str, dict[str, set[str]]] = {}
    for kind, params in described:
        for name, value in params.items():
            values.setdefault(kind, {}).setdefault(name, set()).add(repr(value))
    return [
        " ".join([kind, *(f"{n}={v!r}" for n, v in params.items() if len(values[kind][n]) > 1)])
        for kind, params in described
    ]


def _component_parts(component: Component) -> tuple[str, Mapping[str, Any]]:
    return type(component).__name__, component.get_params(deep=False)


def _data_parts(data: DataSpec) -> tuple[str, Mapping[str, Any]]:
    return data.name, {"clients": data.clients, "client_test": data.client_test, **data.options}
