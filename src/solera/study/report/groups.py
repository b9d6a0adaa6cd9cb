"""The cells of a study by configuration: what tables and pictures compare."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from solera.core.errors import UsageError
from solera.evaluation.figure import Figure
from solera.evaluation.metrics import find_metric, sign
from solera.study.comparison import Comparison, Score, compare
from solera.study.files.tables import DataSpec, Variant
from solera.study.names import Chain, chain_of, short_names
from solera.study.run.cells import Cell
from solera.study.run.results import Result, headline
from solera.study.run.runner import StudyRun

MOST_DIVISIONS = 6
Division = tuple[str, str]
"""Names of the data and of the partition: the same rows, divided the same way."""


@dataclass
class Group:
    """One configuration over all its seeds and folds."""

    data: str
    partition: str
    method: str
    scheme: str
    name: str
    cells: list[Cell] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    @property
    def division(self) -> Division:
        """Where methods meet."""
        return self.data, self.partition

    def values(self, metric: str) -> list[float | None]:
        """The metric of every seed and fold, on the best rows there are to judge by."""
        return [value_of(result, metric) for result in self.results]

    def mean(self, metric: str) -> float:
        known = [v for v in self.values(metric) if v is not None]
        return float(np.mean(known)) if known else math.nan


def value_of(result: Result, metric: str) -> Figure | None:
    """The metric on test rows or, without these, on validation rows or the clients' own."""
    values: dict[str, Figure]
    for values in (result.metrics, result.validation, result.client_metrics):
        if metric in values:
            return values[metric]
    return None


WHOSE = {
    "rows": "test rows that no client has",
    "validation": "rows of the fold left out",
    "test": "test rows of the clients' own",
}
"""Which rows a metric of a study is of, by the part that its figure names."""


def whose_rows(results: Sequence[Result], metric: str) -> str:
    """How many rows the metric of some results is of, and whose."""
    values = [value for result in results if (value := value_of(result, metric)) is not None]
    words = " or ".join(dict.fromkeys(WHOSE.get(v.part, "rows not known") for v in values))
    counts = sorted(value.rows for value in values if value.rows is not None)
    ends = dict.fromkeys([*counts[:1], *counts[-1:]])
    return f"{' to '.join(f'{rows:,}' for rows in ends)} {words}".strip()


def best(metric: str, candidates: Sequence[Group]) -> Group | None:
    """The group with the best mean; None where it is not known which way the metric is better."""
    if find_metric(metric) is None:
        return None
    known = [group for group in candidates if not math.isnan(group.mean(metric))]
    return max(known, key=lambda group: sign(metric) * group.mean(metric), default=None)


def scores_of(groups: Sequence[Group], metric: str) -> list[Score]:
    """What statistical tests compare: methods over data sets, partitions, seeds and folds."""
    return [
        Score({"method": group.name, "data": group.data, "partition": group.partition,
               "seed": str(cell.seed), "fold": str(cell.fold)}, value)
        for group in groups
        for cell, value in zip(group.cells, group.values(metric), strict=True)
        if value is not None
    ]  # fmt: skip


@dataclass
class StudyResults:
    """What the sections of a report work with."""

    run: StudyRun

    @cached_property
    def groups(self) -> list[Group]:
        """The configurations that have results, in the order of the study."""
        finished = self.run.finished
        variants = [cell.variant for cell, _ in finished]
        learners = [chain_of(variant.learner) for variant in variants]
        methods = short_names(learners, [variant.label for variant in variants])
        partitions = short_names([_partition_chain(variant) for variant in variants])
        data = short_names([_data_chain(variant.data) for variant in variants])
        one_method = len(set(methods)) == 1 and len(self.run.study.schemes) > 1
        by_key: dict[Hashable, Group] = {}
        for i, (cell, result) in enumerate(finished):
            key = (data[i], partitions[i], methods[i], cell.scheme)
            name = methods[i] if cell.scheme == "federated" else f"{methods[i]}, {cell.scheme}"
            group = by_key.setdefault(key, Group(*key, cell.scheme if one_method else name))
            group.cells.append(cell)
            group.results.append(result)
        return list(by_key.values())

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that are shown; the first decides what is best.

        Learners that predict nothing have none, and tables show a dash.
        """
        results = list(self.run.results.values())
        if self.run.study.metrics:
            return list(self.run.study.metrics)
        names = headline(results) or list(results[0].validation or results[0].client_metrics)
        return names or ["score"]

    @property
    def metric(self) -> str:
        """The metric that decides what is best."""
        return self.metrics[0]

    @cached_property
    def divisions(self) -> dict[Division, list[Group]]:
        """The groups by the rows they have and how these are divided."""
        divisions: dict[Division, list[Group]] = {}
        for group in self.groups:
            divisions.setdefault(group.division, []).append(group)
        return divisions

    @property
    def shown_divisions(self) -> list[tuple[Division, list[Group]]]:
        """As many divisions as there are sentences and pictures about; tables show all."""
        return list(self.divisions.items())[:MOST_DIVISIONS]

    @cached_property
    def series(self) -> dict[str, list[Result]]:
        """The results of every group by a name that tells it apart."""
        if len(self.divisions) == 1:
            return {g.name: g.results for g in self.groups}
        return {f"{g.name} on {g.data}, {g.partition}": g.results for g in self.groups}

    @cached_property
    def comparison(self) -> Comparison | None:
        """The methods over data sets, partitions, seeds and folds, where these are enough."""
        try:
            comparison = compare(scores_of(self.groups, self.metric), "method", self.metric)
        except UsageError:  # one method, or none that all rows have
            return None
        return comparison if len(comparison.rows) > 2 else None


def _partition_chain(variant: Variant) -> Chain:
    """The partition; where a column says whose row it is, that column; and who attacks."""
    group = variant.data.group
    rows: Chain = chain_of(variant.partition) if group is None else ((group, {}),)
    return rows if variant.attack is None else (*rows, *chain_of(variant.attack))


def _data_chain(data: DataSpec) -> Chain:
    entries = {"clients": data.clients, "client_test": data.client_test, **data.options}
    return ((data.name, {name: repr(value) for name, value in entries.items()}),)
