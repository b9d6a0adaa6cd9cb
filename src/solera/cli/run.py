"""``solera run``: carry out a study file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from solera.cli.data import AsJson
from solera.cli.output import complain, print_json, print_table, stdout
from solera.core.errors import UsageError

if TYPE_CHECKING:
    from solera.green.energy import EnergyOptions
    from solera.study.files.reader import Study
    from solera.study.report.groups import Group
    from solera.study.run.runner import StudyRun


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The run or study file.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where results go; runs/NAME by default.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that run seeds and cells side by side.")
    ] = 1,
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
    options = _energy(study, energy, country)
    try:
        with Bars() as bars:
            outcome = run_study(study, where, bars, workers=workers, fresh=fresh, energy=options)
    except KeyboardInterrupt:
        done = len(list((where / "cells").glob("*.json")))
        complain(
            f"interrupted; {done} cells are finished, all is kept in {where}",
            f"go on with: {again}",
        )
        raise typer.Exit(130) from None
    for warning, times in outcome.warnings.items():
        complain(f"in {times} cells: {warning}", label="warning: ")
    if as_json:
        print_json(_content(outcome))
    else:
        header, *rows = outcome_rows(outcome)
        print_table(header, rows)
        stdout().print(f"\nreport: {where / 'report.html'}", markup=False, soft_wrap=True)
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
    import msgspec

    header, *rows = outcome_rows(outcome)
    names = [name.lstrip(">") for name in header]
    return {
        "name": outcome.study.name,
        "folder": str(outcome.folder),
        "cells": len(outcome.cells),
        "finished": len(outcome.finished),
        "stopped": outcome.stopped,
        "failures": outcome.failures,
        "table": [dict(zip(names, row, strict=True)) for row in rows],
        "results": [
            {**cell.labels, **msgspec.to_builtins(result, str_keys=True)}
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


def outcome_rows(outcome: StudyRun) -> list[list[str]]:
    """A header, and a line for every configuration, or for every seed of the only one."""
    from solera.study.formatting import mean_and_spread, metric_label
    from solera.study.report.groups import best, groups, metrics_of

    configurations = groups(outcome)
    if len(configurations) == 1:
        return _seed_rows(configurations[0], metrics_of(outcome))
    names = metrics_of(outcome) if configurations else []
    energy = any(r.energy is not None for g in configurations for r in g.results)
    header = ["data", "partition", "method", "scheme"]
    header += [f">{metric_label(name)}" for name in names]
    header += [">cells", ">seconds", *([">Wh"] if energy else [])]
    rows = [header]
    for group in configurations:
        rivals = [
            g for g in configurations if (g.division, g.scheme) == (group.division, group.scheme)
        ]
        cells = [mean_and_spread(group.values(name)) for name in names]
        if len(rivals) > 1 and best(names[0], rivals) is group:
            cells[0] += " *"
        line = [group.data, group.partition, group.method, group.scheme, *cells]
        line += [str(len(group.results)), f"{sum(r.seconds for r in group.results):.1f}"]
        if energy:
            wh = sum(r.energy.wh for r in group.results if r.energy is not None)
            line.append(f"{wh:.3g}")
        rows.append(line)
    return rows


def _seed_rows(group: Group, names: list[str]) -> list[list[str]]:
    """A header, a line for every seed and one for all of them."""
    from solera.study.formatting import mean_and_spread, metric_label, number, size
    from solera.study.report.groups import value_of

    uses = [result.energy for result in group.results]
    energy = any(use is not None for use in uses)
    header = ["", *(f">{metric_label(name)}" for name in names), ">rounds", ">up", ">down", ">time"]
    rows = [[*header, ">Wh", ">g CO₂e"] if energy else header]
    for cell, result, use in zip(group.cells, group.results, uses, strict=True):
        scores = [number(value_of(result, name)) for name in names]
        traffic = [str(result.rounds), size(result.bytes_up), size(result.bytes_down)]
        line = [cell.title, *scores, *traffic, f"{result.seconds:.1f} s"]
        if energy:
            line += ["", ""] if use is None else [f"{use.wh:.3g}", f"{1000 * use.co2e:.3g}"]
        rows.append(line)
    if len(group.results) > 1:
        means = [mean_and_spread(group.values(name)) for name in names]
        rows.append(["all", *means, *[""] * (len(rows[0]) - 1 - len(means))])
    return rows
