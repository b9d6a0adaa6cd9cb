"""``solera budget``: what a client's rows have spent of their privacy budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from solera.cli.client import FOLDER, Folder
from solera.cli.data import AsJson
from solera.cli.output import print_json, print_table
from solera.cli.serve import extra
from solera.core.errors import UsageError


def budget(
    folder: Folder = FOLDER,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The ledger, where the policy names another one."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Another δ than that of the budget.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What has left with noise, and what it is worth: by job and task, and all together.

    The ε of a task is what it alone would be worth. All together are composed by an accountant and
    are worth less than the sum. The limit is [bold]\\[privacy][/bold] of the policy.
    """
    with extra("keeping a privacy budget"):
        from solera.serve.agent import home
        from solera.serve.agent.ledger import Ledger
    path = folder / home.LEDGER if ledger is None else ledger
    if not path.exists():
        raise UsageError(f"nothing was spent yet: there is no {path}")
    statement = Ledger(path).statement(delta)
    if as_json:
        print_json(statement)
        return
    rows = [
        [s.job, s.task, f"{s.replies:,}", f"{s.epsilon:.4g}", s.first, s.last]
        for s in statement.jobs
    ]
    print_table(["job", "task", ">replies", ">ε alone", "first", "last"], rows)
    most = "" if statement.budget is None else f" of {statement.budget:g}"
    typer.echo(f"spent: ε = {statement.epsilon:.4g}{most} at δ = {statement.delta:g}")
