"""Compare runs: one table of scores from their folders, and what the tests say about it."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from solera.core.errors import DataError, SoleraError, UsageError
from solera.study.statistics import (
    FriedmanResult,
    Interval,
    Pair,
    friedman,
    nemenyi,
    t_interval,
    wilcoxon_holm,
)

LOWER_IS_BETTER = {"hamming_loss", "mse", "mae", "loss"}
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
    scores: NDArray[np.float64]
    left_out: int
    intervals: tuple[Interval, ...]
    ranks: tuple[float, ...]
    friedman: FriedmanResult | None
    critical_difference: float | None
    pairs: tuple[Pair, ...]


def read_scores(folder: str | os.PathLike[str], metric: str, part: str) -> list[Score]:
    """The values of a metric in a run folder.

    Reads the tidy table ``metrics.csv`` where there is one, else ``spec.toml`` and
    ``results.json``. ``part`` is "test" or "clients".
    """
    folder = Path(folder)
    table = folder / "metrics.csv"
    found = _read_table(table, part) if table.exists() else _read_results(folder, part)
    known = sorted({name for name, _ in found})
    if metric not in known:
        near = get_close_matches(metric, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}"
        raise UsageError(f"{folder} has no metric {metric!r} of the {part} rows", hint=hint)
    return [Score({**s.labels, "run": folder.name}, s.value) for n, s in found if n == metric]


def _read_table(path: Path, part: str) -> list[tuple[str, Score]]:
    about = {"part", "round", "client", "metric", "value"}
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        missing = {"part", "metric", "value"} - set(reader.fieldnames or ())
        if missing:
            raise DataError(f"{path} is damaged: no column {', '.join(sorted(missing))}")
        try:
            return [
                (
                    line["metric"],
                    Score({k: v for k, v in line.items() if k not in about}, float(line["value"])),
                )
                for line in reader
                if line["part"] == part
            ]
        except (TypeError, ValueError) as error:
            raise DataError(f"{path} is damaged at line {reader.line_num}: {error}") from error


def _read_results(folder: Path, part: str) -> list[tuple[str, Score]]:
    from solera.study.files.tables import read
    from solera.study.run.single import finished

    if not (folder / "spec.toml").exists():
        raise UsageError(f"{folder} is not a run folder", hint="it has no spec.toml")
    spec = read(folder / "spec.toml")
    results = finished(folder)
    if not results:
        raise DataError(f"{folder} holds no finished seed")
    labels = {
        "data": spec.data.name,
        "partition": repr(spec.partition),
        "learner": repr(spec.learner),
        "clients": str(spec.data.clients),
        "options": repr(sorted(spec.data.options.items())),
    }
    return [
        (name, Score({**labels, "seed": str(seed)}, value))
        for seed, result in results.items()
        for name, value in (result.metrics if part == "test" else result.client_metrics).items()
    ]


def gather(
    folders: Iterable[str | os.PathLike[str]], metric: str, part: str = "test"
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
    """
    known = sorted({label for score in scores for label in score.labels})
    if by not in known:
        near = get_close_matches(by, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise UsageError(f"runs are not told apart by {by!r}", hint=hint)
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
    methods = sorted({method for found in cells.values() for method in found})
    if len(methods) < 2:
        raise UsageError(
            f"all runs have the same {by}: {methods[0]}", hint=f"there are {', '.join(known)}"
        )
    whole = {row: found for row, found in cells.items() if len(found) == len(methods)}
    if not whole:
        raise UsageError(
            f"no data set, partition and seed has a score of all {len(methods)} methods",
            hint="run the learners on the same data with the same seeds",
        )
    table = np.array([[found[method] for method in methods] for found in whole.values()])
    return _tested(metric, _short(methods), _names(list(whole)), table, len(cells), alpha)


def _tested(
    metric: str,
    methods: tuple[str, ...],
    rows: tuple[str, ...],
    table: NDArray[np.float64],
    all_rows: int,
    alpha: float,
) -> Comparison:
    n = len(rows)
    better = -table if metric in LOWER_IS_BETTER else table
    result = friedman(better)
    pairs = [
        Pair(methods[p.a], methods[p.b], p.p, p.p_holm, p.effect) for p in wilcoxon_holm(better)
    ]
    enough = n > 1
    return Comparison(
        metric=metric,
        methods=methods,
        rows=rows,
        scores=table,
        left_out=all_rows - n,
        intervals=tuple(t_interval(column) for column in table.T),
        ranks=tuple(result.ranks.tolist()),
        friedman=result if enough else None,
        critical_difference=nemenyi(result.ranks, n, alpha) if enough else None,
        pairs=tuple(pairs) if enough else (),
    )


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
    short = [name.partition("(")[0] for name in names]
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
