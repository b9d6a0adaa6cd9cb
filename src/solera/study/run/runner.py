"""Carry out a study: run the cells that are not finished, within the budget, and sum up.

The run folder holds the study file (``spec.toml``), ``environment.json``, ``events.jsonl``, one
file per finished cell (``cells/``), fitted learners (``models/``), the table of all numbers
(``metrics.csv``) and the reports. Every round of a cell is checkpointed and every finished cell is
written at once: the same command again repeats nothing and ends with the same numbers.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from solera.core.errors import DatasetUnavailable, UsageError
from solera.core.html import html_table
from solera.data import datasets
from solera.green.energy import EnergyOptions, EnergyUse, track_energy
from solera.green.power import JOULES_PER_KWH, Sampler
from solera.study.files.reader import Study
from solera.study.formatting import number
from solera.study.run.cells import Cell, CellStore
from solera.study.run.folder import Events, environment, write_json, write_text
from solera.study.run.metrics_table import write_table
from solera.study.run.progress import SILENT, Progress
from solera.study.run.results import Result
from solera.study.run.schemes import load
from solera.study.run.search import Search, search
from solera.study.run.workers import Outcome, in_processes, in_this_process

_FILES = ("report.*", "metrics.csv", "events.jsonl")
_FOLDERS = (*CellStore.FOLDERS, "figures")


@dataclass
class StudyRun:
    """What a study came to: its cells in order with their results, and what is missing.

    ``failures`` are cells that raised an error; ``stopped`` says why the study ended early.
    """

    study: Study
    folder: Path
    cells: list[Cell] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    stopped: str = ""
    warnings: dict[str, int] = field(default_factory=dict)
    """What this start warned of, and of how many cells."""
    energy: EnergyUse | None = None
    """What one meter around all cells of this start read, where energy is measured."""
    coordination_kwh: float = 0.0
    """What this process took to hand cells out to several workers."""
    started: int = 0
    """Cells that this start had to run."""
    threads: int | None = None
    """Threads of one cell, where that was said."""
    ray: str | None = None
    """The Ray cluster that cells run on."""

    def _repr_html_(self) -> str:
        """What notebooks show: the score of every finished cell, and where the report is."""
        rows = []
        for cell, result in self.finished:
            score = result.score
            value = {**result.client_metrics, **result.validation, **result.metrics}.get(
                score or ""
            )
            shown = "–" if value is None else value
            rows.append(
                [cell.variant.method, cell.variant.data.name, cell.title, score or "", shown]
            )
        title = (
            f"{self.study.name}: {len(rows)} of {len(self.cells)} cells, {self.folder}/report.html"
        )
        return html_table(rows, ["learner", "data", "cell", "score", ""], title)

    @property
    def finished(self) -> list[tuple[Cell, Result]]:
        """Cells that have a result, in the order of the study."""
        return [(c, self.results[c.key]) for c in self.cells if c.key in self.results]


def run_study(
    study: Study,
    folder: str | os.PathLike[str],
    progress: Progress = SILENT,
    *,
    workers: int = 1,
    threads: int | None = None,
    ray: str | None = None,
    fresh: bool = False,
    energy: EnergyOptions | None = None,
) -> StudyRun:
    """Run every cell of a study that has no result in ``folder`` yet, ``workers`` at a time.

    ``threads`` are those of one cell: by default one, or all cores for a run on its own. ``ray`` is
    the address of a Ray cluster to run cells on, or ``"local"``; every node must see ``folder``.
    ``fresh`` removes what an earlier run left there. Results of another file are an error
    otherwise; more or fewer seeds and values of the same one are not.
    """
    folder = Path(folder)
    if threads is not None and threads < 1:
        raise UsageError.of("run_study", "threads", threads, "must be at least 1")
    if workers < 1:
        raise UsageError.of("run_study", "workers", workers, "must be at least 1")
    study = replace(study, energy=energy or study.energy)
    if study.energy is not None:
        study = replace(study, energy=_source_for(study.energy, workers))
    _check_data(study)
    run = StudyRun(study, folder, threads=threads, ray=ray)
    plan = search(study)
    batch = next(plan)
    _read_own_tables(batch)
    _prepare(folder, study, batch, fresh)
    events = Events(folder)
    events.add("started", workers=workers)
    try:
        if study.energy is None:
            _run_batches(run, plan, batch, progress, workers, events)
        else:
            own = Sampler(study.energy.power(), children=False)
            with track_energy(options=replace(study.energy, source="model")) as meter, own:
                _run_batches(run, plan, batch, progress, workers, events)
            run.energy = meter.use
            run.coordination_kwh = own.joules[-1] / JOULES_PER_KWH if workers > 1 else 0.0
        kwh = None if run.energy is None else run.energy.kwh
        events.add("finished", cells=len(run.finished), stopped=run.stopped, kwh=kwh)
    except BaseException as error:
        events.add("stopped", reason=type(error).__name__, message=str(error))
        raise
    finally:
        write_table(folder, [(cell.labels, result) for cell, result in run.finished])
        if run.finished:
            from solera.study.report.report import write_study_report

            progress.stage("writing the report")
            write_study_report(run)
    return run


def _run_batches(
    run: StudyRun,
    plan: Search,
    batch: list[Cell] | None,
    progress: Progress,
    workers: int,
    events: Events,
) -> None:
    """Run what the search asks for, batch by batch, and let it know the results."""
    store = CellStore(run.folder)
    show_rounds = workers == 1 and run.study.one_variant
    while batch is not None:
        run.cells = list({cell.key: cell for cell in (*run.cells, *batch)}.values())
        missing = []
        for cell in batch:
            result = run.results.get(cell.key) or store.read(cell)
            if result is None:
                missing.append(cell)
            else:
                run.results[cell.key] = result
        if not show_rounds:
            progress.cells(len(run.results), len(run.cells), "")
        for outcome in _outcomes(run, missing, workers, progress if show_rounds else SILENT):
            _record(run, outcome, events)
            if not show_rounds:
                progress.cells(len(run.results), len(run.cells), _detail(outcome))
        if run.stopped:
            return
        try:
            batch = plan.send(run.results)
        except StopIteration:
            batch = None


def _outcomes(
    run: StudyRun, missing: list[Cell], workers: int, progress: Progress
) -> Iterator[Outcome]:
    waiting = deque(missing)

    def take() -> Cell | None:
        if not waiting:
            return None
        if why := _budget_spent(run):
            run.stopped = why
            return None
        run.started += 1
        return waiting.popleft()

    energy = run.study.energy
    if run.ray is not None:
        from solera.study.run.ray_cells import on_ray

        most = workers if workers > 1 else None
        each = run.threads or 1
        return on_ray(take, run.folder, energy, address=run.ray, workers=most, threads=each)
    if workers > 1:
        return in_processes(take, run.folder, energy, workers, run.threads or 1)
    threads = run.threads or (None if run.study.is_run else 1)
    return in_this_process(take, run.folder, energy, progress=progress, threads=threads)


def _budget_spent(run: StudyRun) -> str:
    """Why no more cells may be started, if so."""
    budget = run.study.budget
    seconds = sum(r.seconds for r in run.results.values())
    wh = sum(r.energy.wh for r in run.results.values() if r.energy is not None)
    if budget.cells is not None and run.started >= budget.cells:
        return f"the budget of {budget.cells} cells for one start is spent"
    if budget.seconds is not None and seconds >= budget.seconds:
        return f"the budget of {budget.seconds:g} s is spent: cells trained for {seconds:.1f} s"
    if budget.wh is not None and wh >= budget.wh:
        return f"the budget of {budget.wh:g} Wh is spent: cells took {wh:.3g} Wh"
    return ""


def _record(run: StudyRun, outcome: Outcome, events: Events) -> None:
    key = outcome.cell.key
    for warning in outcome.warnings:
        run.warnings[warning] = run.warnings.get(warning, 0) + 1
        events.add("warning", cell=key, warning=warning)
    if outcome.result is None:
        run.failures[key] = outcome.error
        events.add("cell failed", cell=key, what=str(outcome.cell), error=outcome.error)
    else:
        run.results[key] = outcome.result
        events.add("cell finished", cell=key, seconds=outcome.result.seconds)


def _detail(outcome: Outcome) -> str:
    result = outcome.result
    if result is None:
        return f"failed: {outcome.error[:60]}"
    name = result.score
    score = "" if name is None else f" {name} {number(result.metrics.get(name))}"
    return f"{outcome.cell.scheme}{score}"


def _source_for(energy: EnergyOptions, workers: int) -> EnergyOptions:
    """Counters count the whole machine, so side by side each cell would count all the others."""
    if workers > 1 and energy.resolved() == "codecarbon":
        if energy.source == "codecarbon":
            raise UsageError(
                "CodeCarbon measures the whole machine, not one of several workers",
                hint='use --workers 1, or [energy] source = "model"',
            )
        return replace(energy, source="model")
    return energy


def _check_data(study: Study) -> None:
    """A data file that is missing shows, or is fetched, before the first cell runs."""
    known = {info.name: info for info in datasets.available()}
    for table in (grid.tables["data"] for grid in study.grids):
        name = table.get("name")
        if "file" not in table and not known[name].at_hand:
            try:
                datasets.load(name)
            except DatasetUnavailable as error:
                raise DatasetUnavailable(
                    f"study {study.name}: {error.message}", hint=error.hint
                ) from error


def _read_own_tables(batch: Sequence[Cell]) -> None:
    """What cannot be read of tables of one's own shows before the first cell runs."""
    tables = [cell.variant.data for cell in batch if "file" in cell.variant.data.options]
    for data in {msgspec.json.encode(data.options): data for data in tables}.values():
        load(data)


def _prepare(folder: Path, study: Study, batch: Sequence[Cell], fresh: bool) -> None:
    """Make the folder ready for this study, or refuse it when it holds another one."""
    folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        for pattern in _FILES:
            for path in folder.glob(pattern):
                path.unlink()
        for name in _FOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
    there = CellStore(folder).variants()
    if there and there.isdisjoint(cell.variant.key for cell in batch):
        raise UsageError(
            f"{folder} holds a run of another file than this one",
            hint="give another --folder, or --fresh to remove that run",
        )
    write_text(folder / "spec.toml", study.text)
    write_json(folder / "environment.json", environment())
