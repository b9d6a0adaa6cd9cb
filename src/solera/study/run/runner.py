"""Carry out a study: run the cells that are not finished, within the budget, and sum up.

The run folder holds the study file (``spec.toml``), ``environment.json``, ``events.jsonl``, one
file per finished cell (``cells/``), fitted learners (``models/``), the tidy table of all cells
(``metrics.csv``) and the reports. The same command again repeats no finished cell.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from solera.core.errors import DatasetUnavailable, UsageError
from solera.data import datasets
from solera.green.energy import EnergyOptions, EnergyUse, track_energy
from solera.green.power import JOULES_PER_KWH, Sampler
from solera.study.files.reader import Study
from solera.study.formatting import number
from solera.study.run import workers as crew
from solera.study.run.cells import Cell, CellFiles
from solera.study.run.folder import Events, environment, write_json, write_text
from solera.study.run.metrics_table import write_table
from solera.study.run.results import Result
from solera.study.run.search import search
from solera.study.run.single import PLAIN_FILES, Progress, Silent

_FOLDERS = ("cells", "models", "checkpoints", "figures")


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
    handing_out: float = 0.0
    """kWh that this process took to hand cells out to several workers."""
    started: int = 0
    """Cells that this start had to run."""

    @property
    def finished(self) -> list[tuple[Cell, Result]]:
        """Cells that have a result, in the order of the study."""
        return [(c, self.results[c.key]) for c in self.cells if c.key in self.results]


def run_study(
    study: Study,
    folder: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    workers: int = 1,
    fresh: bool = False,
    energy: EnergyOptions | None = None,
) -> StudyRun:
    """Run every cell of a study that has no result in ``folder`` yet, ``workers`` at a time."""
    folder, progress = Path(folder), progress or Silent()
    if workers < 1:
        raise UsageError.of("run_study", "workers", workers, "must be at least 1")
    study = replace(study, energy=energy or study.energy)
    if study.energy is not None:
        study = replace(study, energy=_source_for(study.energy, workers))
    _check_data(study)
    _prepare(folder, study, fresh)
    events = Events(folder)
    run = StudyRun(study, folder)
    events.add("started", workers=workers)
    try:
        if study.energy is None:
            _carry_out(run, progress, workers, events)
        else:
            own = Sampler(study.energy.power(), children=False)
            with track_energy(options=replace(study.energy, source="model")) as meter, own:
                _carry_out(run, progress, workers, events)
            run.energy = meter.use
            run.handing_out = own.joules[-1] / JOULES_PER_KWH if workers > 1 else 0.0
    except BaseException as error:
        events.add("stopped", reason=type(error).__name__, message=str(error))
        raise
    finally:
        write_table(folder, [(cell.labels, result) for cell, result in run.finished])
    if run.finished:
        from solera.study.report.report import write_reports

        progress.stage("writing the report")
        write_reports(run)
    kwh = None if run.energy is None else run.energy.kwh
    events.add("finished", cells=len(run.finished), stopped=run.stopped, kwh=kwh)
    return run


def _carry_out(run: StudyRun, progress: Progress, workers: int, events: Events) -> None:
    files = CellFiles(run.folder)
    plan = search(run.study)
    batch = next(plan, None)
    while batch is not None:
        run.cells = list({cell.key: cell for cell in (*run.cells, *batch)}.values())
        missing = []
        for cell in batch:
            result = run.results.get(cell.key) or files.read(cell)
            if result is None:
                missing.append(cell)
            else:
                run.results[cell.key] = result
        progress.cells(len(run.results), len(run.cells), "")
        for outcome in _outcomes(run, missing, workers):
            _note(run, outcome, events)
            progress.cells(len(run.results), len(run.cells), _detail(outcome))
        if run.stopped:
            return
        try:
            batch = plan.send(run.results)
        except StopIteration:
            batch = None


def _outcomes(run: StudyRun, missing: list[Cell], workers: int) -> Iterator[crew.Outcome]:
    waiting = deque(missing)

    def take() -> Cell | None:
        if not waiting:
            return None
        if why := _spent(run):
            run.stopped = why
            return None
        run.started += 1
        return waiting.popleft()

    if workers == 1:
        return crew.here(take, run.folder, run.study.energy)
    return crew.in_processes(take, run.folder, run.study.energy, workers)


def _spent(run: StudyRun) -> str:
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


def _note(run: StudyRun, outcome: crew.Outcome, events: Events) -> None:
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


def _detail(outcome: crew.Outcome) -> str:
    result = outcome.result
    if result is None:
        return f"failed: {outcome.error[:60]}"
    name = result.score
    score = "" if name is None else f" {name} {number(result.metrics.get(name))}"
    return f"{outcome.cell.training.scheme}{score}"


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
    for name in dict.fromkeys(variant.content["data"]["name"] for variant in study.variants):
        if not known[name].at_hand:
            try:
                datasets.load(name)
            except DatasetUnavailable as error:
                raise DatasetUnavailable(
                    f"study {study.name}: {error.message}", hint=error.hint
                ) from error


def _prepare(folder: Path, study: Study, fresh: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        for pattern in (*PLAIN_FILES, "report.*"):
            for path in folder.glob(pattern):
                path.unlink()
        for name in _FOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
    elif (folder / "results.json").exists():
        raise UsageError(
            f"{folder} holds a run, not a study",
            hint="give another --folder, or --fresh to remove that run",
        )
    write_text(folder / "spec.toml", study.text)
    write_json(folder / "environment.json", environment())
