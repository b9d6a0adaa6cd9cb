"""Published figures beside ours: what a named study returns, prints and stores."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from solera.core.errors import UsageError
from solera.study import named
from solera.study.entries import nearest
from solera.study.folder import Events, environment, write_json, write_text
from solera.study.results import Result
from solera.study.runner import Progress
from solera.study.tidy import write_table

if TYPE_CHECKING:
    from solera.study.pages import Section


@dataclass(frozen=True)
class Row:
    """One cell of a published table: what was printed, and what came out here.

    ``form`` is how numbers are written (``".2f"``); ``note`` says what a reader should know.
    """

    case: str
    quantity: str
    thesis: float | None
    ours: float
    form: str = ".2f"
    note: str = ""

    @property
    def difference(self) -> float | None:
        return None if self.thesis is None else self.ours - self.thesis

    def cells(self) -> list[str]:
        """The row as text: case, quantity, thesis, ours, difference, note."""
        thesis = "–" if self.thesis is None else format(self.thesis, self.form)
        gap = "–" if self.difference is None else format(self.difference, f"+{self.form}")
        return [self.case, self.quantity, thesis, format(self.ours, self.form), gap, self.note]


HEADER = ("case", "quantity", "thesis", "ours", "difference", "note")


@dataclass(frozen=True)
class Comparison:
    """The table of a named study, how it was scaled down, and the known errata of the source."""

    title: str
    rows: Sequence[Row]
    scale: str
    errata: Sequence[str] = ()
    sections: Sequence[Section] = field(default=(), repr=False)


def names() -> dict[str, str]:
    """The named studies, and what each shows in a line."""
    found = {}
    for info in pkgutil.iter_modules(named.__path__):
        if not info.name.startswith("_"):
            module = import_module(f"{named.__name__}.{info.name}")
            found[info.name.replace("_", "-")] = (module.__doc__ or "").strip().split("\n")[0]
    return dict(sorted(found.items()))


def module(name: str) -> ModuleType:
    """The module of a named study."""
    known = names()
    if name not in known:
        raise UsageError(f"there is no study {name!r}", hint=nearest(name, known))
    return import_module(f"{named.__name__}.{name.replace('-', '_')}")


def run_named(
    name: str, folder: Path, *, full: bool = False, progress: Progress | None = None
) -> Comparison:
    """Run a named study and store its table and its report."""
    study = module(name)
    folder.mkdir(parents=True, exist_ok=True)
    events = Events(folder)
    events.add("started", study=name, full=full)
    comparison: Comparison = study.run(full=full, progress=progress)
    write_json(folder / "environment.json", environment())
    write_table(folder, [_labelled(name, row, part) for row in comparison.rows for part in _PARTS])
    write_text(folder / "report.html", page_of(comparison))
    events.add("finished")
    return comparison


_PARTS = ("ours", "thesis")


def _labelled(name: str, row: Row, part: str) -> tuple[dict[str, object], Result]:
    """A row as a cell of the tidy table: the scheme says whose figure it is."""
    value = row.ours if part == "ours" else row.thesis
    metrics = {} if value is None else {row.quantity: value}
    labels: dict[str, object] = {
        "cell": f"{row.case}: {row.quantity}, {row.note}",
        "data": name,
        "learner": row.case,
        "scheme": part,
        "seed": 0,
    }
    return labels, Result(0, 0, metrics, 0, 0, 0.0)


def page_of(comparison: Comparison) -> str:
    """The report of a named study."""
    from solera.study.pages import Section, page, paragraph, table

    errata = [Section("Known errata", "".join(map(paragraph, comparison.errata)))]
    sections = [
        Section("Thesis and ours", table([row.cells() for row in comparison.rows], HEADER)),
        Section("Scale", paragraph(comparison.scale)),
        *(errata if comparison.errata else []),
        *comparison.sections,
    ]
    return page(comparison.title, sections)
