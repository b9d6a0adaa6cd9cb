"""``solera study``: published tables, run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from solera.cli.data import AsJson
from solera.cli.output import print_json, print_table, stdout


def study(
    name: Annotated[str, typer.Argument(help="A study, or 'list' for all of them.")],
    full: Annotated[
        bool, typer.Option("--full", help="At the original size, which may take hours.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Where the report goes; runs/study-NAME by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the experiment behind a published table and print thesis, ours and the difference.

    [bold]solera study list[/bold] names the studies.
    """
    from solera.cli.progress import Bars
    from solera.published import tables as published

    if name == "list":
        known = {name: module.TITLE for name, module in published.studies().items()}
        if as_json:
            print_json(known)
        else:
            print_table(["name", "shows"], list(known.items()))
        return
    where = folder or Path("runs") / f"study-{name}"
    module = published.find(name)
    with Bars() as bars:
        rows = published.run_named(name, where, full=full, progress=bars)
    if as_json:
        about = {"title": module.TITLE, "scale": module.SCALE_DOWN, "errata": list(module.ERRATA)}
        print_json({**about, "rows": [dict(row) for row in rows]})
        return
    typer.secho(module.TITLE, bold=True)
    header = [name if name in ("cell", "note") else f">{name}" for name in published.HEADER]
    print_table(header, [published.cells(row) for row in rows])
    console = stdout()
    console.print(f"\nScale: {module.SCALE_DOWN}", markup=False)
    for erratum in module.ERRATA:
        console.print(f"Erratum: {erratum}", markup=False)
    typer.echo(f"\nreport: {where / 'report.html'}")
