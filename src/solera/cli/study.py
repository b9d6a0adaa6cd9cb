"""``solera study``: published tables, run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from solera.cli.data import AsJson
from solera.cli.output import print_json, print_table, stdout
from solera.core.errors import UsageError


def study(
    name: Annotated[
        str, typer.Argument(help="A study, 'all', or 'list' for the names of all of them.")
    ],
    full: Annotated[
        bool, typer.Option("--full", help="At the original size, which may take hours.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="At the size that takes minutes, the default.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Write the report and print only where it is.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Where the report goes; runs/study-NAME by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the experiment behind a published table and print thesis, measured and the difference.

    [bold]solera study list[/bold] names the studies; [bold]solera study all --report[/bold] writes
    one page with every table.
    """
    from solera.cli.progress import Bars
    from solera.study import named as published

    if full and quick:
        raise UsageError("--full and --quick are two sizes", hint="choose one of them")
    if name == "list":
        known = {name: module.TITLE for name, module in published.studies().items()}
        if as_json:
            print_json(known)
        else:
            print_table(["name", "shows"], list(known.items()))
        if not known:
            typer.secho(published.INSTALL, err=True)
        return
    names = list(published.studies()) if name == "all" else [name]
    modules = {name: published.find(name) for name in names}
    where = folder or Path("runs") / f"study-{name}"
    with Bars() as bars:
        if name == "all":
            found = published.run_all(where, full=full, progress=bars)
        else:
            found = {name: published.run_named(name, where, full=full, progress=bars)}
    if as_json:
        shown = {name: published.as_json(modules[name], rows, full) for name, rows in found.items()}
        print_json(shown if name == "all" else shown[name])
        return
    console = stdout()
    for each, rows in found.items() if not report else ():
        typer.secho(modules[each].TITLE, bold=True)
        header = [f">{n}" if n in published.NUMBERS else n for n in published.HEADER]
        print_table(header, [published.cells(row) for row in rows])
        for title, text in published.remarks(modules[each], full):
            console.print(f"\n{title}: {text}", markup=False)
    for each in modules.keys() - found.keys():
        typer.echo(f"not run: {each}, for the reason in the report")
    typer.echo(f"\nreport: {where / 'report.html'}")
