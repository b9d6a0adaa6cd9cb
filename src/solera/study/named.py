"""Named studies: published tables that are run again, from any distribution that is installed.

A distribution names its studies by entry points of the group ``solera.studies``; each is a module:

.. code-block:: toml

    [project.entry-points."solera.studies"]
    my-table = "my_studies.table"

The theses' are in the distribution ``solera-studies``. Such a module has

- a ``TITLE``, and the ``TABLES`` of printed numbers that it answers for;
- ``SCALE_DOWN``, how it differs in size from the original, and ``SIZES``, the same in a few words
  for each row by default (False) and with ``full`` (True), where a row does not say its own;
- ``DIFFERS``, in one line what our protocol does otherwise than the published one, and ``ERRATA``,
  what is known to be wrong with the source;
- ``LEFT_OUT``: the cells of its tables that it does not print even at full size, and why;
- ``planned(full)``: the cells that it prints at that size;
- ``run(full, progress)``, which returns a list of :func:`row`;
- where it has pictures, ``figures(rows)``: captions and matplotlib figures for the report.

By default a study takes minutes on two cores; ``full`` is the original size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from solera.core.constraints import nearest
from solera.core.errors import UsageError
from solera.study.report.blocks import Block, Paragraph, Section, Table
from solera.study.report.figures import drawn
from solera.study.run.folder import Events, environment, write_json, write_text
from solera.study.run.metrics_table import Line, lines_text
from solera.study.run.progress import SILENT, Progress

HEADER = ("cell", "source", "protocol", "thesis", "measured", "difference", "size", "note")
NUMBERS = HEADER[3:6]
Rows = Sequence[Mapping[str, Any]]


INSTALL = "the studies of the theses are a distribution of their own: pip install ./studies"


class Cell(Protocol):
    """A printed number: in which table, row and column it stands."""

    @property
    def table(self) -> str: ...
    @property
    def row(self) -> str: ...
    @property
    def column(self) -> str: ...
    @property
    def source(self) -> str:
        """The table for a reader: ``001 Table 6.1``."""

    @property
    def value(self) -> float | None:
        """The number; None where the source leaves the cell empty."""


def studies() -> dict[str, ModuleType]:
    """The named studies of all distributions that are installed."""
    entries = sorted(entry_points(group="solera.studies"), key=lambda entry: entry.name)
    return {entry.name: entry.load() for entry in entries}


def find(name: str) -> ModuleType:
    """A named study."""
    known = studies()
    if name not in known:
        hint = nearest(name, known) if known else INSTALL
        raise UsageError(f"there is no study {name!r}", hint=hint)
    return known[name]


def row(
    label: str,
    cell: Cell | None,
    measured: float | None,
    *,
    protocol: str = "as published",
    form: str = ".4g",
    note: str = "",
    size: str = "",
    compare: bool = True,
) -> dict[str, Any]:
    """A number measured here beside the one that was printed.

    ``cell`` is None where the source has no such number, ``measured`` where it was left out.
    ``form`` is how its numbers are written, ``note`` what a reader should know, ``size`` how the
    run differs in size from the original where that is not what the study's ``SIZES`` say.
    ``compare`` is False where a difference would say nothing: seconds and energies of two machines.
    """
    printed = None if cell is None else cell.value
    known = printed is not None and measured is not None and compare
    difference = measured - printed if known else None  # type: ignore[operator]
    return {
        "label": label,
        "cell": cell,
        "source": "" if cell is None else cell.source,
        "protocol": protocol,
        "thesis": printed,
        "measured": measured,
        "difference": difference,
        "form": form,
        "size": size,
        "note": note,
    }


def run_named(name: str, folder: Path, *, full: bool = False, progress: Progress = SILENT) -> Rows:
    """Run a named study and store its table and its report."""
    study = find(name)
    folder.mkdir(parents=True, exist_ok=True)
    events = Events(folder)
    events.add("started", study=name, full=full)
    rows: Rows = sized(study, study.run(full=full, progress=progress), full)
    check_printed(study, rows, full)
    write_json(folder / "environment.json", environment())
    numbers = [line for row in rows for line in _numbers(name, row)]
    write_text(folder / "metrics.csv", lines_text(numbers))
    from solera.study.report.report import write_report

    write_report(folder, study.TITLE, sections_of(study, rows, full))
    events.add("finished")
    return rows


def run_all(folder: Path, *, full: bool = False, progress: Progress = SILENT) -> dict[str, Rows]:
    """Run every study into a folder of its own below ``folder``, and write one page of them all.

    A study that cannot run here, for want of an extra or a data set, is named with the reason.
    """
    from solera.core.errors import SoleraError
    from solera.study.report.report import write_report

    found: dict[str, Rows] = {}
    sections: list[Section] = []
    for name, study in studies().items():
        progress.stage(name)
        try:
            found[name] = run_named(name, folder / name, full=full, progress=progress)
        except SoleraError as problem:
            sections.append(Section(f"{name}: {study.TITLE}", [Paragraph(f"Not run: {problem}")]))
            continue
        parts = sections_of(study, found[name], full)
        blocks = [block for part in parts for block in part.blocks]
        sections.append(Section(f"{name}: {study.TITLE}", blocks))
        write_report(folder, "The published tables", sections)  # what is finished is not lost
    write_report(folder, "The published tables", sections)
    return found


def sized(study: ModuleType, rows: Rows, full: bool) -> Rows:
    """Rows that all say at which size they were run."""
    return [{**row, "size": row["size"] or study.SIZES[full]} for row in rows]


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row as text, in the order of the header."""
    form = row["form"]
    numbers = [
        "–" if row[key] is None else format(row[key], sign + form)
        for key, sign in zip(NUMBERS, ("", "", "+"), strict=True)
    ]
    return [row["label"], row["source"] or "–", row["protocol"], *numbers, row["size"], row["note"]]


# --- what a study owes its tables ---


def owed(study: ModuleType) -> list[Cell]:
    """The cells of a study's tables in which the thesis prints a number."""
    return [cell for table in study.TABLES for cell in table.cells()]


def reason(study: ModuleType, cell: Cell) -> str | None:
    """Why a study leaves a cell out at any size; None where it has given no reason."""
    for pattern, why in study.LEFT_OUT.items():
        if fnmatchcase(f"{cell.table}; {cell.row}; {cell.column}", pattern):
            return str(why)
    return None


def unexplained(study: ModuleType) -> list[Cell]:
    """The cells of a study's tables that it neither prints at full size nor excuses."""
    printed = study.planned(full=True)
    return [cell for cell in owed(study) if cell not in printed and reason(study, cell) is None]


def check_printed(study: ModuleType, rows: Rows, full: bool) -> None:
    """Raise unless the rows hold exactly the cells that the study planned at this size."""
    printed = {row["cell"] for row in rows if row["cell"] is not None}
    planned = set(study.planned(full=full))
    wrong = [*(planned - printed), *(printed - planned)]
    if wrong:
        raise AssertionError(f"{study.__name__} planned other cells than it printed: {wrong[:3]}")


def left_out(study: ModuleType, full: bool) -> list[str]:
    """What a run of this size leaves out of its tables: how many cells of which, and why."""
    planned = set(study.planned(full=full))
    missing = Counter(
        (cell.source, reason(study, cell) or "with --full only")
        for cell in owed(study)
        if cell not in planned
    )
    return [f"{count} of {source}: {why}" for (source, why), count in missing.items()]


def remarks(study: ModuleType, full: bool) -> Iterable[tuple[str, str]]:
    """What stands below a study's table, each with its heading."""
    yield "Scale", study.SCALE_DOWN
    yield "As published and ours differ", study.DIFFERS
    for line in left_out(study, full):
        yield "Left out", line
    for erratum in study.ERRATA:
        yield "Erratum", erratum


def as_json(study: ModuleType, rows: Rows, full: bool) -> dict[str, Any]:
    """A study's table and what stands below it, as JSON has it."""
    lines = [
        {**row, "cell": None if row["cell"] is None else row["cell"]._asdict()} for row in rows
    ]
    below = [{"title": title, "text": text} for title, text in remarks(study, full)]
    return {"title": study.TITLE, "remarks": below, "rows": lines}


def _numbers(name: str, row: Mapping[str, Any]) -> list[tuple[dict[str, Any], Line]]:
    """The figures of a row for the tidy table; the scheme says whose they are."""
    both = {row["protocol"] or "measured": row["measured"], "thesis": row["thesis"]}
    label = f"{row['label']}, {row['protocol']}" if row["protocol"] else row["label"]
    labels = {"cell": label, "data": name, "learner": row["label"]}
    return [
        ({**labels, "scheme": who, "source": row["source"]}, ("test", None, None, "value", value))
        for who, value in both.items()
        if value is not None
    ]


def sections_of(study: ModuleType, rows: Rows, full: bool) -> list[Section]:
    """The report of a named study."""
    below: dict[str, list[Any]] = {}
    for title, text in remarks(study, full):
        below.setdefault(title, []).append(Paragraph(f"{title}: {text}"))
    blocks: list[Block] = [Table([cells(row) for row in rows], HEADER)]
    if hasattr(study, "figures"):
        blocks += [drawn(figure, caption) for caption, figure in study.figures(rows)]
    table = Section("Thesis and measured", blocks)
    return [table, *(Section(title, blocks) for title, blocks in below.items())]
