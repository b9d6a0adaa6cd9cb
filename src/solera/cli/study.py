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
    from solera.study import comparison

    if name == "list":
        known = comparison.names()
        if as_json:
            print_json(known)
        else:
            print_table(["name", "shows"], list(known.items()))
        return
    where = folder or Path("runs") / f"study-{name}"
    comparison.module(name)  # a name that does not exist leaves no folder behind
    with Bars() as bars:
        found = comparison.run_named(name, where, full=full, progress=bars)
    if as_json:
        rows = [
            {
                "case": row.case,
                "quantity": row.quantity,
                "thesis": row.thesis,
                "ours": row.ours,
                "difference": row.difference,
                "note": row.note,
            }
            for row in found.rows
        ]
        print_json(
            {"title": found.title, "scale": found.scale, "errata": list(found.errata), "rows": rows}
        )
        return
    console = stdout()
    console.print(found.title, style="bold", markup=False)
    header = [n if n in ("case", "quantity", "note") else f">{n}" for n in comparison.HEADER]
    print_table(header, [row.cells() for row in found.rows])
    console.print(f"\nScale: {found.scale}", markup=False)
    for erratum in found.errata:
        console.print(f"Erratum: {erratum}", markup=False)
    console.print(f"\nreport: {where / 'report.html'}", markup=False, soft_wrap=True)
