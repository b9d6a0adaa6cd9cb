"""Published tables, run again: find a named study, run it, store its table and its report."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import solera.published as named
from solera.core.constraints import nearest
from solera.core.errors import UsageError
from solera.study.report.blocks import Paragraph, Section, Table
from solera.study.run.folder import Events, environment, write_json
from solera.study.run.metrics_table import write_table
from solera.study.run.progress import SILENT, Progress
from solera.study.run.results import Result

HEADER = ("cell", "thesis", "ours", "difference", "note")
Rows = Sequence[Mapping[str, Any]]


def studies() -> dict[str, ModuleType]:
    """The named studies."""
    modules = {
        info.name.replace("_", "-"): import_module(f"{named.__name__}.{info.name}")
        for info in pkgutil.iter_modules(named.__path__)
    }
    return {name: module for name, module in sorted(modules.items()) if hasattr(module, "run")}


def find(name: str) -> ModuleType:
    """A named study."""
    known = studies()
    if name not in known:
        raise UsageError(f"there is no study {name!r}", hint=nearest(name, known))
    return known[name]


def run_named(name: str, folder: Path, *, full: bool = False, progress: Progress = SILENT) -> Rows:
    """Run a named study and store its table and its report."""
    study = find(name)
    folder.mkdir(parents=True, exist_ok=True)
    events = Events(folder)
    events.add("started", study=name, full=full)
    rows: Rows = study.run(full=full, progress=progress)
    write_json(folder / "environment.json", environment())
    write_table(folder, [_labelled(name, row, who) for row in rows for who in ("ours", "thesis")])
    from solera.study.report.report import write_report

    write_report(folder, study.TITLE, sections_of(study, rows))
    events.add("finished")
    return rows


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row as text, in the order of the header."""
    form = row.get("form", ".4g")
    numbers = [
        "–" if row[key] is None else format(row[key], sign + form)
        for key, sign in (("thesis", ""), ("ours", ""), ("difference", "+"))
    ]
    return [row["cell"], *numbers, row.get("note", "")]


def _labelled(name: str, row: Mapping[str, Any], who: str) -> tuple[dict[str, Any], Result]:
    """A figure as a cell of the tidy table; the scheme says whose it is."""
    metrics = {} if row[who] is None else {"value": row[who]}
    labels = {"cell": row["cell"], "data": name, "learner": row["cell"], "scheme": who, "seed": 0}
    return labels, Result(0, 0, metrics)


def sections_of(study: ModuleType, rows: Rows) -> list[Section]:
    """The report of a named study."""
    sections = [
        Section("Thesis and ours", [Table([cells(row) for row in rows], HEADER)]),
        Section("Scale", [Paragraph(study.SCALE_DOWN)]),
        Section("Known errata", list(map(Paragraph, study.ERRATA))),
    ]
    return [section for section in sections if section.blocks]
