"""The cells of a study by configuration: what tables and pictures compare."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from solera.core.errors import UsageError
from solera.core.schema import Schema
from solera.core.statistics import ROUNDING
from solera.data.dataset import Dataset
from solera.evaluation.figure import Figure
from solera.evaluation.intervals import Interval
from solera.evaluation.metrics import find_metric, sign
from solera.study.comparison import Comparison, Score, compare
from solera.study.files.tables import DataSpec, Variant
from solera.study.names import Chain, chain_of, short_names
from solera.study.rows import Answers, RowPair, interval, pairs_of
from solera.study.run.cells import Cell
from solera.study.run.results import Result, different, headline
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
        return _mean(value_of(result, metric) for result in different(self.results))

    def validated(self, metric: str) -> float:
        """The mean of the metric on rows that were left out to validate by."""
        return _mean(result.validation.get(metric) for result in self.results)


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else math.nan


def value_of(result: Result, metric: str) -> Figure | None:
    """The metric on test rows or, without these, on the clients' own or on validation rows."""
    values: dict[str, Figure]
    for values in (result.metrics, result.client_metrics, result.validation):
        if metric in values:
            return values[metric]
    return None


def answers_of(results: Sequence[Result], metric: str) -> list[Answers]:
    """What was answered on the rows that a metric is shown of; nothing where that is not known."""
    on_test = all(metric in result.metrics for result in results)
    packed = [result.answers if on_test else result.own_answers for result in results]
    found = [Answers.unpacked(content) for content in packed]
    return [answers for answers in found if answers is not None] if all(packed) else []


def interval_of(results: Sequence[Result], metric: str) -> Interval | None:
    """Of 95 % over rows like the test rows, for the mean over the models of these results."""
    if (found := interval(answers_of(results, metric), metric)) is not None:
        return found
    figures = [value_of(result, metric) for result in different(results)]
    bounds = [figure.interval for figure in figures if figure is not None and figure.interval]
    if not bounds or len(bounds) < len(figures):
        return None
    low, high = np.mean(bounds, axis=0).tolist()
    return low, high


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


def leaders(metric: str, candidates: Sequence[Group]) -> list[Group]:
    """The groups with the best mean; several where only rounding tells them apart.

    Where rows were left out to validate by, these decide, among groups that have most of them:
    halving gives more to the better. Nobody leads where it is not known which way is better.
    """
    if find_metric(metric) is None:
        return []
    by_validation = is_validated(metric, candidates)
    most = max((len(group.cells) for group in candidates), default=0)
    some = [g for g in candidates if len(g.cells) == most] if by_validation else candidates
    means = [g.validated(metric) if by_validation else g.mean(metric) for g in some]
    heights = [-math.inf if math.isnan(mean) else sign(metric) * mean for mean in means]
    top = max(heights, default=-math.inf)
    if not math.isfinite(top):
        return []
    near = ROUNDING * abs(top)
    return [group for group, height in zip(some, heights, strict=True) if top - height <= near]


def best(metric: str, candidates: Sequence[Group]) -> Group | None:
    """The first of the :func:`leaders`."""
    return next(iter(leaders(metric, candidates)), None)


def is_validated(metric: str, groups: Sequence[Group]) -> bool:
    """Whether rows that decide nothing else choose among groups."""
    return any(not math.isnan(group.validated(metric)) for group in groups)


def named(schema: Schema, dataset: Dataset) -> Schema:
    """The schema of a model, whose classes go by the names that the data set has for codes."""
    codes = schema.classes
    coded = len(dataset.class_names) == len(codes) and schema.target == "classes"
    if not coded or not np.array_equal(np.sort(codes), np.arange(len(codes))):
        return schema
    return replace(schema, classes=np.array([dataset.class_names[int(code)] for code in codes]))


def class_names(dataset: Dataset) -> tuple[str, ...]:
    """What classes are called, in the order of models; or labels."""
    classes = named(dataset.schema, dataset).classes
    return tuple(map(str, classes)) if dataset.schema.target == "classes" else dataset.class_names


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
        """The methods over data sets, where there are several of both."""
        try:
            comparison = compare(scores_of(self.groups, self.metric), "method", self.metric)
        except UsageError:  # one method, or none that all rows have
            return None
        return comparison if len(comparison.rows) > 1 else None

    @cached_property
    def pairs(self) -> dict[Division, list[RowPair]]:
        """Methods in pairs on the test rows of each division."""
        found = {}
        for division, groups in self.shown_divisions:
            leader = best(self.metric, groups)
            methods = {group.name: answers_of(group.results, self.metric) for group in groups}
            name = "" if leader is None else leader.name
            if pairs := pairs_of(methods, self.metric, name):
                found[division] = pairs
        return found


def _partition_chain(variant: Variant) -> Chain:
    """The partition; where a column says whose row it is, that column; and who attacks."""
    group = variant.data.group
    rows: Chain = chain_of(variant.partition) if group is None else ((group, {}),)
    return rows if variant.attack is None else (*rows, *chain_of(variant.attack))


def _data_chain(data: DataSpec) -> Chain:
    entries = {"clients": data.clients, "client_test": data.client_test, **data.options}
    return ((data.name, {name: repr(value) for name, value in entries.items()}),)
