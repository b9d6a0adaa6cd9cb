"""``solera policy``: what an owner's policy allows, and what a job needs of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Read, check and write the policies of owners.")

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The policy.")]


@app.command(epilog="Example: solera policy show policy.toml")
def show(file: File) -> None:
    """Check a policy and say in sentences what it allows."""
    from solera.serve.agent.policy import Policy

    typer.echo(Policy.read(file).describe())
