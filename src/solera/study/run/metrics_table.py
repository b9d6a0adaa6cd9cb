"""The table of all numbers of a run: one number per line, and what it belongs to.

Columns: ``cell``, ``data``, ``partition``, ``learner``, ``scheme``, ``seed``, ``fold``, one for
every parameter that varies (``learner.lr``), then ``part``, ``round``, ``client``, ``metric``,
``value`` and, where they are known, the ``rows`` that the value rests on.

========== =====================================================================
part       what ``value`` is
========== =====================================================================
test       a metric of the data set's test rows
clients    a metric of all rows that clients keep to test on
client     the score of one ``client`` on its own of these
others     a metric of clients' models, trained alone, on the test rows of the others
validation a metric of the rows of the fold left out
baseline   a metric of the most frequent class, or the mean, of training rows
common     a metric of ``clients`` by what all share, where each has its own model
round      what the learner logged in a ``round``
cost       rounds, bytes, seconds of training and of prediction; their kWh and kg CO₂e
           (``kwh``), those of reading, warming up and the like (``kwh apart``), and kWh by task;
           ``repeats`` of a cell whose predictions are those of another seed or fold
========== =====================================================================
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from solera.core.rounds import logged
from solera.evaluation.figure import Figure
from solera.study.run.folder import write_text
from solera.study.run.results import Result, different

Labels = Mapping[str, Any]
FIRST = ("cell", "data", "partition", "learner", "scheme", "seed", "fold")
LAST = ("part", "round", "client", "metric", "value")
ROWS = "rows"
"""The last column, which earlier versions did not write."""

Line = tuple[str, int | None, int | str | None, str, float]
"""Part, round, client by name or number, metric, value."""


def numbers(result: Result) -> Iterator[Line]:
    """All numbers of a result: part, round, client by name or number, metric, value."""
    parts = {
        "test": result.metrics,
        "clients": result.client_metrics,
        "others": result.others,
        "validation": result.validation,
        "baseline": result.baseline,
        "common": result.common or {},
    }
    for part, metrics in parts.items():
        for metric, value in metrics.items():
            yield part, None, None, metric, value
    for client, value in result.clients.items():
        named = result.names[client] if result.names else client
        yield "client", None, named, result.score or "score", value
    for entry in result.history:
        for metric, value in logged(entry).items():
            yield "round", entry["round"], None, metric, value
    always = ("rounds", "bytes_down", "bytes_up", "seconds")
    costs = {name: getattr(result, name) for name in always}
    costs["seconds of prediction"] = result.predicting
    if (use := result.energy) is not None:
        work = use.of_work()
        costs |= {"kwh": work.kwh, "co2e": work.co2e, "kwh apart": use.kwh - work.kwh}
        costs |= {f"kwh of {task}": kwh for task, kwh in use.tasks.items()}
    for metric, value in costs.items():
        yield "cost", None, None, metric, value


def table_text(rows: Sequence[tuple[Labels, Result]]) -> str:
    """The table as CSV."""
    lines = [(labels, line) for labels, result in rows for line in numbers(result)]
    return lines_text([*lines, *_repeats(rows)])


def _repeats(rows: Sequence[tuple[Labels, Result]]) -> Iterator[tuple[Labels, Line]]:
    """A line for every cell that answers all test rows as another of its method does."""
    methods: dict[str, list[tuple[Labels, Result]]] = {}
    for labels, result in rows:
        method = {k: v for k, v in labels.items() if k not in ("cell", "seed", "fold")}
        methods.setdefault(repr(method), []).append((labels, result))
    for cells in methods.values():
        counted = {id(result) for result in different([result for _, result in cells])}
        for labels, result in cells:
            if id(result) not in counted:
                yield labels, ("cost", None, None, "repeats", 1.0)


def lines_text(lines: Sequence[tuple[Labels, Line]]) -> str:
    """The table of single numbers as CSV."""
    varying = dict.fromkeys(key for labels, _ in lines for key in labels if key not in FIRST)
    header = [*FIRST, *varying, *LAST, ROWS]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for labels, line in lines:
        *place, value = line
        rows = value.rows if isinstance(value, Figure) else None
        keys = [labels.get(key) for key in (*FIRST, *varying)]
        writer.writerow([*keys, *place, float(value), rows])
    return text.getvalue()


def write_table(folder: Path, rows: Sequence[tuple[Labels, Result]]) -> None:
    """Write ``metrics.csv``."""
    write_text(folder / "metrics.csv", table_text(rows))
