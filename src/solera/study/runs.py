"""The run store: every run and study of a folder, as a list, as one table, side by side.

    so.runs.read("runs/digits")                 # a pandas frame, one number per line
    so.runs.read("runs/digits", "runs/wine")    # several runs, told apart by the column "run"
    so.runs.read()                              # all runs under runs/

The columns are those of :mod:`solera.study.run.metrics_table`. A folder that cannot be read is
named in a warning and left out.
"""

from __future__ import annotations

import csv
import os
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from solera.core.constraints import nearest
from solera.core.errors import MissingExtra, SoleraError, UsageError
from solera.core.html import html_table
from solera.evaluation.figure import Figure
from solera.evaluation.metrics import headline_metric, sign
from solera.study.exporters import Exporter
from solera.study.run.folder import Events, read_environment
from solera.study.run.metrics_table import FIRST, LAST, ROWS

ROOT = "runs"
_HINT = "start it again with --fresh, or remove the folder"
_NOT_OF_A_METHOD = {"cell", "seed", "fold", *LAST, ROWS}
Paths = str | os.PathLike[str]


class BadRun(SoleraError):
    """A folder that should hold a run and cannot be read."""


class SkippedRun(UserWarning):
    """A run folder was left out because it cannot be read."""


@dataclass(frozen=True)
class Run:
    """A run in the store. ``metrics`` are those of its ``best`` method, means over seeds and folds.

    The best is named with all that tells it apart from other methods of the run. Validation rows
    choose it, where there are some; metrics are of the test rows that no client has.
    """

    name: str
    folder: Path
    cells: int
    data: list[str]
    learners: list[str]
    best: str
    metrics: dict[str, Figure]
    began: str
    last: str
    environment: dict[str, str] = field(repr=False)
    spec: dict[str, Any] = field(repr=False)

    def _repr_html_(self) -> str:
        """What notebooks show: what was run, and the metrics of the best method."""
        about = {"data": ", ".join(self.data), "learners": ", ".join(self.learners)}
        about |= {"best": self.best, **{name: f.words for name, f in self.metrics.items()}}
        rows = [("cells", self.cells), *about.items(), ("state", self.last)]
        return html_table(rows, title=self.name)


def find(root: Paths = ROOT) -> Iterator[Run | BadRun]:
    """The runs below a folder, by name; one that cannot be read comes as what is wrong with it."""
    for folder in _folders(root):
        try:
            yield load(folder)
        except BadRun as problem:
            yield problem


def load(folder: Paths) -> Run:
    """What a run folder holds."""
    folder = Path(folder)
    table = rows(folder)
    try:
        environment = read_environment(folder)
        text = folder / "spec.toml"
        spec = tomllib.loads(text.read_text(encoding="utf-8")) if text.exists() else {}
    except (OSError, ValueError) as error:
        raise BadRun(f"{folder} cannot be read: {error}", hint=_HINT) from error
    events = Events(folder).read()
    best, metrics = _best(table)
    return Run(
        name=folder.name,
        folder=folder,
        cells=len({row["cell"] for row in table}),
        data=list(dict.fromkeys(row["data"] for row in table)),
        learners=list(dict.fromkeys(row["learner"] for row in table)),
        best=best,
        metrics=metrics,
        began=events[0]["at"] if events else "",
        last=events[-1]["event"] if events else "",
        environment=environment,
        spec=spec,
    )


def _best(table: Sequence[Mapping[str, str]]) -> tuple[str, dict[str, Figure]]:
    """The method that validation rows choose, and its metrics of test rows.

    Without validation rows it is the one with the best test rows. Of methods that halving gave more
    cells than others only these count.
    """
    shown, judged = _by_method(table, "test"), _by_method(table, "validation")
    deciding = headline_metric({metric for metrics in shown.values() for metric in metrics})
    if deciding is None:
        return "", {}
    by = {m: each[deciding] for m, each in (judged or shown).items() if deciding in each}
    by = {method: lines for method, lines in by.items() if deciding in shown.get(method, {})}
    most = max(map(len, by.values()), default=0) if judged else 0
    heights = {
        method: sign(deciding) * fmean(float(line["value"]) for line in lines)
        for method, lines in by.items()
        if len(lines) >= most
    }
    if not heights:
        return "", {}
    best = max(heights, key=lambda method: heights[method])
    return best, dict(map(_mean, shown[best].values()))


def _by_method(
    table: Sequence[Mapping[str, str]], part: str
) -> dict[str, dict[str, list[Mapping[str, str]]]]:
    methods: dict[str, dict[str, list[Mapping[str, str]]]] = {}
    for line in table:
        if line["part"] == part:
            metrics = methods.setdefault(_method(line), {})
            metrics.setdefault(line["metric"], []).append(line)
    return methods


def _method(line: Mapping[str, str]) -> str:
    """A learner, and what else a line of the table is of, apart from the seed."""
    others = [
        text
        for name, text in line.items()
        if text and name not in _NOT_OF_A_METHOD and name.partition(".")[0] != "learner"
    ]
    return f"{line['learner']} ({', '.join(others)})"


def _mean(lines: Sequence[Mapping[str, str]]) -> tuple[str, Figure]:
    metric, rows = lines[0]["metric"], lines[0].get(ROWS)
    about: dict[str, Any] = {"part": "rows", "rows": int(rows)} if rows else {}
    return metric, Figure(fmean(float(line["value"]) for line in lines), metric=metric, **about)


def rows(folder: Path) -> list[dict[str, str]]:
    """The table of all numbers of a run, as text."""
    path = folder / "metrics.csv"
    lines = []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            missing = {*FIRST, *LAST} - set(reader.fieldnames or ())
            for line in reader:
                if missing or None in line or not _is_number(line["value"]):
                    problem = f"line {reader.line_num} of {path.name} is no line of metrics"
                    raise BadRun(f"{folder} cannot be read: {problem}", hint=_HINT)
                lines.append(line)
    except FileNotFoundError:
        raise BadRun(f"there is no run in {folder}", hint="name the folder of a run") from None
    except (OSError, ValueError, csv.Error) as error:
        raise BadRun(f"{folder} cannot be read: {error}", hint=_HINT) from error
    return lines


def _is_number(text: str | None) -> bool:
    try:
        float(text or "")
    except ValueError:
        return False
    return True


def resolve(name: Paths, root: Paths = ROOT) -> Path:
    """The folder of a run, given as a path or by its name under ``root``."""
    for path in (Path(name), Path(root) / name):
        if (path / "environment.json").exists():
            return path
    known = [folder.name for folder in _folders(root)]
    hint = nearest(str(name), known) if known else f"there are no runs in {root} yet"
    raise UsageError(f"there is no run {str(name)!r}", hint=hint)


def _folders(root: Paths) -> list[Path]:
    return [path.parent for path in sorted(Path(root).glob("*/environment.json"))]


def read(*runs: Paths, root: Paths = ROOT) -> Any:
    """The tidy tables of some runs as one pandas frame; without names, of all runs in ``root``."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtra.of("runs.read", "pandas") from None
    folders = [resolve(run, root) for run in runs] or _folders(root)
    frames = []
    for folder in folders:
        try:
            load(folder)
        except BadRun as problem:
            if runs:
                raise
            warnings.warn(str(problem), SkippedRun, stacklevel=2)
            continue
        frame = pd.read_csv(folder / "metrics.csv")
        frame.insert(0, "run", folder.name)
        frames.append(frame)
    if not frames:
        return pd.DataFrame(columns=["run", *FIRST, *LAST])
    return pd.concat(frames, ignore_index=True)


@dataclass(frozen=True)
class Difference:
    """One thing in which two runs differ: an entry of the file, a version or a metric."""

    what: str
    name: str
    first: Any
    second: Any


def diff(first: Run, second: Run) -> list[Difference]:
    """In what two runs differ: their files, their environments, and what came out."""
    differences = []
    pairs: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = (
        ("spec", dict(_flat(first.spec)), dict(_flat(second.spec))),
        ("environment", first.environment, second.environment),
        ("best", {"method": first.best}, {"method": second.best}),
        ("metric", _plain(first.metrics), _plain(second.metrics)),
    )
    for what, a, b in pairs:
        for name in dict.fromkeys([*a, *b]):
            if a.get(name) != b.get(name):
                differences.append(Difference(what, name, a.get(name), b.get(name)))
    return differences


def _plain(metrics: Mapping[str, Figure]) -> dict[str, float]:
    return {name: float(figure) for name, figure in metrics.items()}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(v, dict) for v in value):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{path}.{i}")
    else:
        yield path, value


def export(folder: Path, exporter: Any) -> int:
    """Send every cell of a run through an exporter, made by ``exporter(cell)``; how many."""
    cells: dict[str, list[dict[str, str]]] = {}
    for row in rows(folder):
        cells.setdefault(row["cell"], []).append(row)
    for cell, lines in cells.items():
        sink: Exporter = exporter(cell)
        params = {key: v for key, v in lines[0].items() if key not in (*LAST, ROWS) and v}
        sink.open({"run": folder.name, **params})
        rounds = sum(row["metric"] == "rounds" and float(row["value"]) for row in lines)
        for row in lines:
            if row["part"] == "round":
                sink.send(row["metric"], float(row["value"]), int(row["round"]))
            elif row["part"] != "client":
                name = f"{row['part']}/{row['metric'].replace(' ', '_')}"
                sink.send(name, float(row["value"]), int(rounds))
        sink.close()
    return len(cells)


def headline(run: Run) -> str:
    """The metric that sums a run up, in words, and whose it is."""
    name = headline_metric(run.metrics)
    return "" if name is None else f"{name} {run.metrics[name]:.3f} by {run.best}"
