"""``solera run``: carry out a study file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from solera.cli.data import AsJson
from solera.cli.output import complain, interrupted, print_blocks, print_json
from solera.core.errors import UsageError
from solera.evaluation.figure import plain

if TYPE_CHECKING:
    from solera.green.energy import EnergyOptions
    from solera.study.files.reader import Study
    from solera.study.run.runner import StudyRun


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The run or study file.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where results go; runs/NAME by default.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that run seeds and cells side by side.")
    ] = 1,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of each; all cores for a run alone, one otherwise."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run cells on this Ray cluster, or on 'local'."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Only go on with an earlier start; start none.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove what an earlier run left in the folder.")
    ] = False,
    energy: Annotated[bool, typer.Option("--energy", help="Measure energy and emissions.")] = False,
    country: Annotated[
        str | None, typer.Option(help="Whose electricity: an ISO code such as ESP.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train as a file says, once for every seed or for every cell of a study; write a report.

    What is finished is kept: the same command again goes on where the last one was interrupted.
    [bold]solera demo[/bold] writes a study file to start from, runs/demo/spec.toml.
    """
    from solera.cli.progress import Bars
    from solera.study.files.reader import read
    from solera.study.report.groups import StudyResults
    from solera.study.report.outcomes import results
    from solera.study.run.runner import run_study

    study = read(file)
    where = folder or Path("runs") / study.name
    if resume and (fresh or not (where / "spec.toml").exists()):
        raise UsageError(
            f"there is nothing to go on with in {where}", hint="start without --resume and --fresh"
        )
    again = f"solera run {shlex.quote(str(file))}"
    again += f" --folder {shlex.quote(str(folder))}" if folder else ""
    again += f" --workers {workers}" if workers > 1 else ""
    again += f" --threads {threads}" if threads else ""
    again += f" --ray {shlex.quote(ray)}" if ray else ""
    options = _energy(study, energy, country)
    try:
        with Bars() as bars:
            outcome = run_study(
                study,
                where,
                bars,
                workers=workers,
                threads=threads,
                ray=ray,
                fresh=fresh,
                energy=options,
            )
    except KeyboardInterrupt:
        done = len(list((where / "cells").glob("*.json")))
        raise interrupted(
            f"interrupted; {done} cells are finished, all is kept in {where}",
            f"go on with: {again}",
        ) from None
    for warning, times in outcome.warnings.items():
        complain(f"in {times} cells: {warning}", label="warning: ")
    if as_json:
        print_json(_content(outcome))
    elif outcome.finished:
        print_blocks(results(StudyResults(outcome)))
        typer.echo(f"\nreport: {where / 'report.html'}")
    _complain_of_missing(outcome, again)


def _energy(study: Study, wanted: bool, country: str | None) -> EnergyOptions | None:
    """How energy is measured: as the file says, for the country given here."""
    from dataclasses import replace

    from solera.green.energy import EnergyOptions

    if study.energy is None and not wanted and country is None:
        return None
    options = study.energy or EnergyOptions()
    return options if country is None else replace(options, country=country)


def _content(outcome: StudyRun) -> dict[str, object]:
    from msgspec import to_builtins

    from solera.study.report.groups import StudyResults
    from solera.study.report.outcomes import result_columns

    study = StudyResults(outcome)
    columns = result_columns(study) if study.groups else {}
    return {
        "name": outcome.study.name,
        "folder": str(outcome.folder),
        "cells": len(outcome.cells),
        "finished": len(outcome.finished),
        "stopped": outcome.stopped,
        "failures": outcome.failures,
        "table": [
            {
                "data": group.data,
                "partition": group.partition,
                "method": group.method,
                "scheme": group.scheme,
                **{name: column(group.results) for name, column in columns.items()},
            }
            for group in study.groups
        ],
        "results": [
            {**cell.labels, **to_builtins(result, str_keys=True, enc_hook=plain)}
            for cell, result in outcome.finished
        ],
    }


def _complain_of_missing(outcome: StudyRun, again: str) -> None:
    """Say which cells are not finished, and why."""
    total = len(outcome.cells)
    if outcome.stopped:
        complain(
            f"stopped after {len(outcome.finished)} of {total} cells: {outcome.stopped}",
            f"raise the budget and go on with: {again}",
        )
    if outcome.failures:
        key, error = next(iter(outcome.failures.items()))
        complain(
            f"{len(outcome.failures)} of {total} cells failed; cell {key}: {error}",
            f"they are tried again by: {again}; SOLERA_TRACEBACK=1 shows where",
        )
        raise typer.Exit(1)
