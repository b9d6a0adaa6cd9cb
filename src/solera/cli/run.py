"""``solera run``: carry out a run file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from solera.cli.data import AsJson
from solera.cli.output import complain, print_json, print_table, stdout

if TYPE_CHECKING:
    from solera.study.results import Result


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The run file.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where results go; runs/NAME by default.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove what an earlier run left in the folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train one learner on one data set, once for every seed, and write a report.

    What is finished is kept: the same command again goes on where the last one was interrupted.
    [bold]solera demo[/bold] writes a run file to start from, runs/demo/spec.toml.
    """
    import msgspec

    from solera.cli.progress import Bars
    from solera.study import runner, spec

    plan = spec.read(file)
    where = folder or Path("runs") / plan.name
    try:
        with Bars() as bars:
            results = runner.run(plan, where, bars, fresh=fresh)
    except KeyboardInterrupt:
        done = len(runner.finished(where).keys() & set(plan.seeds))
        option = f" --folder {shlex.quote(str(folder))}" if folder else ""
        complain(
            f"interrupted; {done} of {len(plan.seeds)} seeds are finished, all is kept in {where}",
            f"go on with: solera run {shlex.quote(str(file))}{option}",
        )
        raise typer.Exit(130) from None
    if as_json:
        content = msgspec.to_builtins(results, str_keys=True)
        print_json({"name": plan.name, "folder": str(where), "results": content})
        return
    print_results(results)
    stdout().print(f"\nreport: {where / 'report.html'}", markup=False, soft_wrap=True)


def print_results(results: Sequence[Result]) -> None:
    """A line for every seed and one for all of them."""
    from solera.study.results import headline
    from solera.study.wording import mean_and_spread, size, spelled

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
    print_table(header, rows)
