"""Carry out a run file: for every seed simulate, fit, score; keep what is finished.

The run folder holds the run file (``spec.toml``), the results so far (``results.json``), the fitted
learners (``model-seed<k>.sol``), the versions of what was used (``environment.json``) and
``report.html``, the same numbers as one tidy table (``metrics.csv``) and what happened when
(``events.jsonl``). Every round is checkpointed and every finished seed is written at once, so an
interrupted run that is started again repeats nothing and ends with the same numbers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from solera.core.errors import SoleraError, UsageError
from solera.core.rounds import Callback
from solera.data import datasets
from solera.data.dataset import Dataset
from solera.data.federated import FederatedData
from solera.green.energy import EnergyOptions
from solera.study.files.tables import Spec, read
from solera.study.run import schemes
from solera.study.run.folder import Events, environment, write_json, write_text
from solera.study.run.metrics_table import labels_of, write_table
from solera.study.run.results import Result
from solera.study.run.schemes import Training

if TYPE_CHECKING:
    from solera.study.report.html import Section

PLAIN_FILES = (
    "results.json", "report.html", "metrics.csv", "events.jsonl", "model-seed*.sol",
    "checkpoint-seed*.sol",
)  # fmt: skip


class Progress(Protocol):
    """Something that shows how far a run is."""

    def stage(self, text: str) -> None:
        """What happens now, until the next stage or the next rounds."""

    def watch(self, title: str) -> Callback:
        """A callback that shows the rounds of the next fit."""

    def cells(self, finished: int, total: int, detail: str) -> None:
        """How many cells of a study are finished, and what the last one came to."""


def run(
    spec: Spec,
    folder: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    fresh: bool = False,
    energy: EnergyOptions | None = None,
) -> list[Result]:
    """Run every seed that has no result in ``folder`` yet; the results of all of them.

    ``fresh`` removes what an earlier run left in the folder. Results of another run file are an
    error otherwise; more or fewer seeds of the same one are not. ``energy`` measures every seed.
    """
    folder, progress = Path(folder), progress or Silent()
    _prepare(folder, spec, fresh)
    progress.stage(f"reading {spec.data.name}")
    dataset = datasets.load(spec.data.name, **spec.data.options)
    results = finished(folder)
    events = Events(folder)
    events.add("started", seeds=list(spec.seeds), finished=sorted(results))
    try:
        for seed in spec.seeds:
            if seed not in results:
                results[seed] = _run_seed(spec, dataset, seed, folder, progress, energy)
                write_json(folder / "results.json", list(results.values()))
                _checkpoint(folder, seed).unlink(missing_ok=True)
                events.add("seed finished", seed=seed, seconds=results[seed].seconds)
        events.add("finished")
    except BaseException as error:
        events.add("stopped", reason=type(error).__name__, message=str(error))
        raise
    finally:
        ours = [results[seed] for seed in spec.seeds if seed in results]
        if ours:
            progress.stage("writing the report")
            write_table(folder, [(labels_of(spec, r.seed), r) for r in ours])
            write_report(folder, spec, ours, dataset)
    return ours


def finished(folder: str | os.PathLike[str]) -> dict[int, Result]:
    """Results that a run folder holds, by seed."""
    path = Path(folder) / "results.json"
    if not path.exists():
        return {}
    try:
        results = msgspec.json.decode(path.read_bytes(), type=list[Result])
    except msgspec.DecodeError as error:
        raise SoleraError(
            f"{path} is damaged: {error}", hint="delete it, or start again with --fresh"
        ) from error
    return {result.seed: result for result in results}


def write_report(
    folder: Path,
    spec: Spec,
    results: Sequence[Result],
    dataset: Dataset,
    extra: Sequence[Section] = (),
) -> None:
    """Write ``report.html``, with ``extra`` sections after the results."""
    from solera.study.report.sections import of_learner
    from solera.study.report.single import report

    data = divided(spec, dataset, results[0].seed)
    learned = of_learner(spec.learner, folder / f"model-seed{results[0].seed}.sol")
    page = report(spec, results, dataset, data, extra, learned)
    write_text(folder / "report.html", page)


def divided(spec: Spec, dataset: Dataset, seed: int) -> FederatedData:
    """Who holds which rows in the run of that seed."""
    return schemes.divided(Training(spec, seed), dataset)


def _run_seed(
    spec: Spec,
    dataset: Dataset,
    seed: int,
    folder: Path,
    progress: Progress,
    energy: EnergyOptions | None,
) -> Result:
    return schemes.train(
        Training(spec, seed),
        lambda: dataset,
        checkpoint=_checkpoint(folder, seed),
        callbacks=[progress.watch(f"seed {seed}")],
        energy=energy,
        stage=lambda text: progress.stage(f"seed {seed}: {text}"),
        save=folder / f"model-seed{seed}.sol",
    )


class Silent:
    """Shows nothing."""

    def stage(self, text: str) -> None: ...

    def watch(self, title: str) -> Callback:
        return Callback()

    def cells(self, finished: int, total: int, detail: str) -> None: ...


# --- the run folder ---


def _prepare(folder: Path, spec: Spec, fresh: bool) -> None:
    """Make the folder ready for this run, or refuse it when it holds another one."""
    folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        for pattern in PLAIN_FILES:
            for path in folder.glob(pattern):
                path.unlink()
    elif (folder / "spec.toml").exists() and not _same_run(folder / "spec.toml", spec):
        raise UsageError(
            f"{folder} holds a run of another file than this one",
            hint="give another --folder, or --fresh to remove that run",
        )
    (folder / "spec.toml").write_text(spec.text, encoding="utf-8")
    write_json(folder / "environment.json", environment())


def _same_run(path: Path, spec: Spec) -> bool:
    try:
        return replace(read(path), name=spec.name, seeds=spec.seeds) == spec
    except UsageError:
        return False


def _checkpoint(folder: Path, seed: int) -> Path:
    return folder / f"checkpoint-seed{seed}.sol"
