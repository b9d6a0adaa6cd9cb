"""``solera run``: carry out a run file or a study file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from solera.cli.data import AsJson
from solera.cli.output import complain, print_json, print_table, stdout
from solera.core.errors import UsageError

if TYPE_CHECKING:
    from solera.green.energy import EnergyOptions
    from solera.study.files.reader import Study
    from solera.study.files.tables import Spec
    from solera.study.run.results import Result
    from solera.study.run.runner import StudyRun


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The run or study file.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where results go; runs/NAME by default.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that run cells of a study side by side.")
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
    [bold]solera demo[/bold] writes a run file to start from, runs/demo/spec.toml.
    """
    from solera.study.files import reader as plans
    from solera.study.files.tables import Spec

    plan = plans.read(file)
    where = folder or Path("runs") / plan.name
    if resume and (fresh or not (where / "spec.toml").exists()):
        raise UsageError(
            f"there is nothing to go on with in {where}", hint="start without --resume and --fresh"
        )
    again = f"solera run {shlex.quote(str(file))}" + (
        f" --folder {shlex.quote(str(folder))}" if folder else ""
    )
    options = _energy(plan, energy, country)
    if isinstance(plan, Spec):
        if workers > 1:
            raise UsageError(
                f"{file} is one run; --workers runs the cells of a study side by side",
                hint='schemes = ["federated"] at its top makes it a study',
            )
        _run(plan, where, fresh, options, again, as_json)
    else:
        again += f" --workers {workers}" if workers > 1 else ""
        _study(plan, where, fresh, workers, options, again, as_json)


def _energy(plan: Spec | Study, wanted: bool, country: str | None) -> EnergyOptions | None:
    """How energy is measured: as the file says, for the country given here."""
    from dataclasses import replace

    from solera.green.energy import EnergyOptions

    declared: EnergyOptions | None = getattr(plan, "energy", None)
    if declared is None and not wanted and country is None:
        return None
    options = declared or EnergyOptions()
    return options if country is None else replace(options, country=country)


def _run(
    plan: Spec, where: Path, fresh: bool, energy: EnergyOptions | None, again: str, as_json: bool
) -> None:
    import msgspec

    from solera.cli.progress import Bars
    from solera.study.run import single as runner

    try:
        with Bars() as bars:
            results = runner.run(plan, where, bars, fresh=fresh, energy=energy)
    except KeyboardInterrupt:
        done = len(runner.finished(where).keys() & set(plan.seeds))
        _interrupted(f"{done} of {len(plan.seeds)} seeds", where, again)
    if as_json:
        content = msgspec.to_builtins(results, str_keys=True)
        print_json({"name": plan.name, "folder": str(where), "results": content})
        return
    print_results(results)
    stdout().print(f"\nreport: {where / 'report.html'}", markup=False, soft_wrap=True)


def _study(
    plan: Study,
    where: Path,
    fresh: bool,
    workers: int,
    energy: EnergyOptions | None,
    again: str,
    as_json: bool,
) -> None:
    from solera.cli.progress import Bars
    from solera.study.run.runner import run_study

    try:
        with Bars() as bars:
            outcome = run_study(plan, where, bars, workers=workers, fresh=fresh, energy=energy)
    except KeyboardInterrupt:
        done = len(list((where / "cells").glob("*.json")))
        _interrupted(f"{done} cells", where, again)
    for warning, times in outcome.warnings.items():
        complain(f"in {times} cells: {warning}", label="warning: ")
    rows = study_rows(outcome)
    if as_json:
        content = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
        print_json(
            {
                "name": plan.name,
                "folder": str(where),
                "cells": len(outcome.cells),
                "finished": len(outcome.finished),
                "stopped": outcome.stopped,
                "failures": outcome.failures,
                "table": content,
            }
        )
    else:
        first = rows[0]
        print_table([n if i < 4 else f">{n}" for i, n in enumerate(first)], rows[1:])
        stdout().print(f"\nreport: {where / 'report.html'}", markup=False, soft_wrap=True)
    if outcome.stopped:
        complain(
            f"stopped after {len(outcome.finished)} of {len(outcome.cells)} cells: "
            f"{outcome.stopped}",
            f"raise the budget and go on with: {again}",
        )
    if outcome.failures:
        key, error = next(iter(outcome.failures.items()))
        complain(
            f"{len(outcome.failures)} of {len(outcome.cells)} cells failed; cell {key}: {error}",
            f"they are tried again by: {again}",
        )
        raise typer.Exit(1)


def _interrupted(done: str, where: Path, again: str) -> None:
    complain(f"interrupted; {done} are finished, all is kept in {where}", f"go on with: {again}")
    raise typer.Exit(130) from None


def study_rows(outcome: StudyRun) -> list[list[str]]:
    """A header, and a line for every configuration of a study."""
    from solera.study.formatting import mean_and_spread, spelled
    from solera.study.report.groups import best, groups, metrics_of

    found = groups(outcome)
    names = metrics_of(outcome) if found else []
    energy = any(r.energy is not None for g in found for r in g.results)
    header = ["data", "partition", "method", "scheme", *map(spelled, names), "cells", "seconds"]
    rows = [[*header, "Wh"] if energy else header]
    for group in found:
        rivals = [g for g in found if g.place == group.place and g.scheme == group.scheme]
        leads = names and best(names[0], rivals) is group and len(rivals) > 1
        cells = [mean_and_spread(group.values(name)) for name in names]
        if leads:
            cells[0] += " *"
        line = [group.data, group.partition, group.method, group.scheme, *cells]
        line += [str(len(group.results)), f"{sum(r.seconds for r in group.results):.1f}"]
        if energy:
            wh = sum(r.energy.wh for r in group.results if r.energy is not None)
            line.append(f"{wh:.3g}")
        rows.append(line)
    return rows


def print_results(results: Sequence[Result]) -> None:
    """A line for every seed and one for all of them."""
    from solera.study.formatting import mean_and_spread, size, spelled
    from solera.study.run.results import headline

    names = headline(results)
    rows = [
        [
            str(r.seed),
            *(mean_and_spread([r.metrics.get(name)]) for name in names),
            str(r.rounds),
            size(r.bytes_up),
            size(r.bytes_down),
            f"{r.seconds:.1f} s",
        ]
        for r in results
    ]
    if len(results) > 1:
        spread = [mean_and_spread([r.metrics.get(name) for r in results]) for name in names]
        rows.append(["all", *spread, "", "", "", ""])
    header = ["seed", *(f">{spelled(name)}" for name in names), ">rounds", ">up", ">down", ">time"]
    uses = [r.energy for r in results]
    if any(use is not None for use in uses):
        header += [">Wh", ">g CO₂e"]
        for row, use in zip(rows, [*uses, None], strict=False):
            row += ["", ""] if use is None else [f"{use.wh:.3g}", f"{1000 * use.co2e:.3g}"]
    print_table(header, rows)
