"""Compare runs: one table of scores from their folders, and what the tests say about it.

Rows of the table are data sets, because seeds and partitions of one are not independent of each
other. On the test rows of one data set methods are compared in pairs (:mod:`solera.study.rows`).
"""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from solera.core.clients import FloatArray
from solera.core.constraints import nearest
from solera.core.errors import SoleraError, UsageError
from solera.evaluation.metrics import headline_metric, sign
from solera.study import runs
from solera.study.names import chain_of_text, short_names
from solera.study.rows import Answers, RowPair, pairs_of
from solera.study.run.cells import Stored
from solera.study.run.metrics_table import LAST, ROWS
from solera.study.statistics import (
    FriedmanResult,
    Pair,
    friedman,
    nemenyi,
    wilcoxon_holm,
)

Row = tuple[tuple[str, str], ...]
_OWN = {"cell", "run"}
"""Labels that only say where a score is kept."""


@dataclass(frozen=True)
class Score:
    """One value of a metric, what it belongs to, and the answers that it rests on."""

    labels: dict[str, str]
    value: float
    answers: Answers | None = None


@dataclass(frozen=True)
class Comparison:
    """Mean scores, data sets × methods, and what the tests say about them.

    ``left_out`` counts scores' rows (a data set, a partition, a seed) that not every method has.
    Tests are None below two data sets; ``on_rows`` are pairs of methods on the same test rows, by
    what these are of.
    """

    metric: str
    methods: tuple[str, ...]
    rows: tuple[str, ...]
    scores: FloatArray
    left_out: int
    alpha: float
    ranks: tuple[float, ...]
    friedman: FriedmanResult | None
    critical_difference: float | None
    pairs: tuple[Pair, ...]
    on_rows: Mapping[str, Sequence[RowPair]]

    @property
    def leader(self) -> str:
        """The method with the best mean rank."""
        return self.methods[int(np.argmin(self.ranks))]

    @property
    def smallest(self) -> tuple[float, float]:
        """The least p that so few data sets could give: Friedman's, and Wilcoxon's of a pair."""
        more = len(self.rows) - 1
        return math.factorial(len(self.methods)) ** -float(more), 2.0**-more

    @property
    def differ(self) -> bool:
        """Whether the methods differ over data sets that are enough to say so."""
        test = self.friedman
        return test is not None and max(test.p, self.smallest[0]) < self.alpha


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
            _answers(folder, row["cell"], part),
        )
        for row in rows
        if row["metric"] == metric
    ]


def _answers(folder: Path, cell: str, part: str) -> Answers | None:
    """What the models of a cell answered; None where its file is gone or does not say."""
    path = next((folder / "cells").glob(f"*{glob.escape(cell)}.json"), None)
    with suppress(OSError, msgspec.MsgspecError):
        if path is not None:
            result = msgspec.json.decode(path.read_bytes(), type=Stored).result
            return Answers.unpacked(result.answers if part == "test" else result.own_answers)
    return None


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
    Scores are compared where the other labels are the same: a data set, a partition, a seed. Their
    means over each data set are the rows of the table that is tested.
    Methods that train alone, federated and centralised are never taken for one: where there are
    several schemes, each is a method of its own.
    """
    known = sorted({label for score in scores for label in score.labels})
    if by not in known:
        raise UsageError(f"runs do not differ in {by!r}", hint=nearest(by, known))
    if by != "scheme":
        scores = _apart(scores, by)
    cells: dict[Row, dict[str, Score]] = {}
    for score in scores:
        row = tuple(sorted(_shared(score.labels, by).items()))
        method = score.labels.get(by, "")
        if method in cells.setdefault(row, {}):
            where = ", ".join(value for _, value in row if value)
            raise UsageError(
                f"{by} {method} has two scores for {where}",
                hint="compare fewer runs, or --by run",
            )
        cells[row][method] = score
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
    names = _short(methods)
    sets = _grouped(whole, _data_set)
    table = np.array(
        [
            [_mean([values[method] for values in each]) for method in methods]
            for each in sets.values()
        ]
    )
    result = friedman(sign(metric) * table)
    enough = len(sets) > 1
    pairs = wilcoxon_holm(sign(metric) * table) if enough else []
    divisions = _grouped(whole, _division)
    return Comparison(
        metric=metric,
        methods=names,
        rows=_names(list(sets)),
        scores=table,
        left_out=len(cells) - len(whole),
        alpha=alpha,
        ranks=tuple(result.ranks.tolist()),
        friedman=result if enough else None,
        critical_difference=nemenyi(result.ranks, len(sets), alpha) if enough else None,
        pairs=tuple(pair._replace(a=names[pair.a], b=names[pair.b]) for pair in pairs),
        on_rows={
            name: _on_rows(each, dict(zip(methods, names, strict=True)), metric)
            for name, each in zip(_names(list(divisions)), divisions.values(), strict=True)
        },
    )


def _mean(scores: Sequence[Score]) -> float:
    """Of cells that answered the same test rows alike only the first counts."""
    counted: list[Score] = []
    for score in scores:
        if score.answers is None or not any(
            other.answers is not None and score.answers.same_as(other.answers) for other in counted
        ):
            counted.append(score)
    return float(np.mean([score.value for score in counted]))


def _on_rows(
    each: Sequence[Mapping[str, Score]], names: Mapping[str, str], metric: str
) -> list[RowPair]:
    """Pairs of methods where what all of them answered is known."""
    said = {
        name: [known for values in each if (known := values[method].answers) is not None]
        for method, name in names.items()
    }
    return pairs_of({n: a for n, a in said.items() if len(a) == len(each)}, metric)


def _grouped(
    whole: Mapping[Row, dict[str, Score]], key: Callable[[Row], Row]
) -> dict[Row, list[dict[str, Score]]]:
    groups: dict[Row, list[dict[str, Score]]] = {}
    for row, values in whole.items():
        groups.setdefault(key(row), []).append(values)
    return groups


def _division(row: Row) -> Row:
    """What a row of scores is of, apart from seeds and folds."""
    return tuple((name, value) for name, value in row if name not in ("seed", "fold"))


def _data_set(row: Row) -> Row:
    """The data set that a row is of; where data sets are compared, how it is divided."""
    of_data = tuple((name, value) for name, value in row if name == "data")
    return of_data or _division(row)


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
    return [replace(score, labels=_with_scheme(score.labels, by)) for score in scores]


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


def _names(rows: Sequence[Row]) -> tuple[str, ...]:
    """What tells rows apart, in words."""
    varying = {
        key for row in rows for key, value in row if any(dict(r).get(key) != value for r in rows)
    }
    shown = [
        ", ".join(f"{key} {value}" for key, value in row if key in varying and value)
        for row in rows
    ]
    return tuple(text or "all" for text in shown)
