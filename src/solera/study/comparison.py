"""Compare runs: one table of scores from their folders, and what the tests say about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from solera.core.clients import FloatArray
from solera.core.constraints import nearest
from solera.core.errors import SoleraError, UsageError
from solera.evaluation.metrics import headline_metric, sign
from solera.study import runs
from solera.study.names import chain_of_text, short_names
from solera.study.run.metrics_table import LAST, ROWS
from solera.study.statistics import (
    FriedmanResult,
    Interval,
    Pair,
    friedman,
    nemenyi,
    t_interval,
    wilcoxon_holm,
)

_OWN = {"cell", "run"}
"""Labels that only say where a score is kept."""


@dataclass(frozen=True)
class Score:
    """One value of a metric and what it belongs to."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Comparison:
    """Scores, rows × methods, and what the tests say about them.

    ``left_out`` counts rows that not every method has. Tests are None below two rows.
    """

    metric: str
    methods: tuple[str, ...]
    rows: tuple[str, ...]
    scores: FloatArray
    left_out: int
    alpha: float
    intervals: tuple[Interval, ...]
    ranks: tuple[float, ...]
    friedman: FriedmanResult | None
    critical_difference: float | None
    pairs: tuple[Pair, ...]

    @property
    def leader(self) -> str:
        """The method with the best mean rank."""
        return self.methods[int(np.argmin(self.ranks))]

    @property
    def worse(self) -> set[str]:
        """Methods that differ significantly from the leader."""
        differing = [{p.a, p.b} for p in self.pairs if p.p_holm < self.alpha]
        return set().union(*(pair - {self.leader} for pair in differing if self.leader in pair))


def read_scores(folder: runs.Paths, metric: str, part: str) -> list[Score]:
    """The values of a metric in a run folder; ``part`` is "test" or "clients"."""
    folder = Path(folder)
    rows = [row for row in runs.rows(folder) if row["part"] == part]
    known = sorted({row["metric"] for row in rows})
    if metric not in known:
        raise UsageError(
            f"{folder} has no metric {metric!r} of the {part} rows", hint=nearest(metric, known)
        )
    return [
        Score(
            {k: v for k, v in row.items() if k not in (*LAST, ROWS)} | {"run": folder.name},
            float(row["value"]),
        )
        for row in rows
        if row["metric"] == metric
    ]


def headline(folders: Iterable[runs.Paths], part: str = "test") -> str:
    """The metric that sums up what was learned in these run folders."""
    names: set[str] = set()
    for folder in folders:
        with suppress(SoleraError, OSError):
            names |= {row["metric"] for row in runs.rows(Path(folder)) if row["part"] == part}
    return headline_metric(names) or "accuracy"


def gather(
    folders: Iterable[runs.Paths], metric: str, part: str = "test"
) -> tuple[list[Score], list[str]]:
    """The scores of several run folders, and a line for every folder that cannot be read."""
    scores: list[Score] = []
    skipped: list[str] = []
    for folder in folders:
        try:
            scores += read_scores(folder, metric, part)
        except (SoleraError, OSError) as error:
            skipped.append(str(error) if isinstance(error, SoleraError) else f"{folder}: {error}")
    return scores, skipped


def compare(scores: Sequence[Score], by: str, metric: str, alpha: float = 0.05) -> Comparison:
    """Compare what ``by`` tells apart over all that agrees otherwise.

    ``by`` is a label: learner, partition, data, scheme, run, or a parameter such as ``learner.lr``.
    A row of the table is what the other labels have in common: a data set, a partition, a seed.
    Methods that train alone, federated and centralised are never taken for one: where there are
    several schemes, each is a method of its own.
    """
    known = sorted({label for score in scores for label in score.labels})
    if by not in known:
        raise UsageError(f"runs do not differ in {by!r}", hint=nearest(by, known))
    if by != "scheme":
        scores = _apart(scores, by)
    cells: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for score in scores:
        row = tuple(sorted(_shared(score.labels, by).items()))
        method = score.labels.get(by, "")
        if method in cells.setdefault(row, {}):
            where = ", ".join(value for _, value in row if value)
            raise UsageError(
                f"{by} {method} has two scores for {where}",
                hint="compare fewer runs, or --by run",
            )
        cells[row][method] = score.value
    methods = sorted({method for values in cells.values() for method in values})
    if len(methods) < 2:
        raise UsageError(
            f"all runs have the same {by}: {methods[0]}", hint=f"there are {', '.join(known)}"
        )
    whole = {row: values for row, values in cells.items() if len(values) == len(methods)}
    if not whole:
        raise UsageError(
            f"no data set, partition and seed has a score of all {len(methods)} methods",
            hint="run the learners on the same data with the same seeds",
        )
    table = np.array([[values[method] for method in methods] for values in whole.values()])
    names = _short(methods)
    result = friedman(sign(metric) * table)
    enough = len(whole) > 1
    pairs = wilcoxon_holm(sign(metric) * table) if enough else []
    return Comparison(
        metric=metric,
        methods=names,
        rows=_names(list(whole)),
        scores=table,
        left_out=len(cells) - len(whole),
        alpha=alpha,
        intervals=tuple(t_interval(column) for column in table.T),
        ranks=tuple(result.ranks.tolist()),
        friedman=result if enough else None,
        critical_difference=nemenyi(result.ranks, len(whole), alpha) if enough else None,
        pairs=tuple(pair._replace(a=names[pair.a], b=names[pair.b]) for pair in pairs),
    )


def where(scores: Sequence[Score], conditions: Mapping[str, str]) -> list[Score]:
    """The scores whose labels have these values, such as ``scheme`` that is ``federated``."""
    for label, value in conditions.items():
        known = {score.labels[label] for score in scores if label in score.labels}
        if not known:
            labels = {name for score in scores for name in score.labels}
            raise UsageError(f"runs have no {label!r}", hint=nearest(label, sorted(labels)))
        if value not in known:
            raise UsageError(f"no run has {label} {value!r}", hint=nearest(value, sorted(known)))
    return [s for s in scores if all(s.labels.get(k) == v for k, v in conditions.items())]


def _apart(scores: Sequence[Score], by: str) -> Sequence[Score]:
    """Scores whose methods say how they were trained, where that is not the same for all."""
    schemes = {score.labels.get("scheme", "") for score in scores}
    if len(schemes) < 2:
        return scores
    return [Score(_with_scheme(score.labels, by), score.value) for score in scores]


def _with_scheme(labels: Mapping[str, str], by: str) -> dict[str, str]:
    rest = {name: value for name, value in labels.items() if name != "scheme"}
    scheme = labels.get("scheme", "")
    return rest if scheme == "federated" else {**rest, by: f"{rest.get(by, '')}, {scheme}"}


def _shared(labels: dict[str, str], by: str) -> dict[str, str]:
    """The labels that a row of the table has in common."""
    outer = by.partition(".")[0]
    return {
        key: value
        for key, value in labels.items()
        if key not in _OWN and key not in (by, outer) and not key.startswith(f"{by}.")
    }


def _short(names: Sequence[str]) -> tuple[str, ...]:
    """``FedLinear(rounds=6)`` as ``FedLinear`` where that is enough to tell methods apart."""
    short = short_names([chain_of_text(name) for name in names])
    return tuple(short if len(set(short)) == len(names) else names)


def _names(rows: Sequence[tuple[tuple[str, str], ...]]) -> tuple[str, ...]:
    """What tells rows apart, in words."""
    varying = {
        key for row in rows for key, value in row if any(dict(r).get(key) != value for r in rows)
    }
    shown = [
        ", ".join(f"{key} {value}" for key, value in row if key in varying and value)
        for row in rows
    ]
    return tuple(text or "all" for text in shown)
