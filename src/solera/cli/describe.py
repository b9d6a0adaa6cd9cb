"""``solera describe``: what the rows of clients are like, as their owners would let it out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from solera.cli.data import AsJson, Table, Target, save_picture, table_of
from solera.cli.output import print_json, print_table, stderr


def describe(
    name: Table,
    target: Target = None,
    group: Annotated[
        str | None, typer.Option(help="The column that says whose row it is: one client each.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Deal the rows out to so many, without a group.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the dealing.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Save the picture, for example as out.png or out.svg.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rows, missing values, quantiles, categories, classes, correlations and drift of clients."""
    from solera.learn.describe import Description
    from solera.learn.describe import describe as look
    from solera.simulate.simulation import simulate

    dataset = table_of(name, target, group)
    options: dict[str, Any] = {"seed": seed}
    if group is not None:
        options["group"] = group
    elif clients is not None:
        options["clients"] = clients
    with stderr().status("asking the clients"):
        found = look(simulate(dataset, **options))
    assert isinstance(found, Description)  # there is no policy
    if plot is not None:
        save_picture(found.plot(), plot)
    if as_json:
        print_json(found.to_dict())
        return
    for line in found.head():
        typer.echo(line)
    columns = ["column", "kind", ">missing", "5 · 25 · 50 · 75 · 95 %, or rows", ">drift"]
    print_table(columns, found.lines())
    if plot is not None:
        typer.echo(f"\npicture: {plot}")
