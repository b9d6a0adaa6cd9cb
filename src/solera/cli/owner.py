"""``solera owner``: the page of a data owner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from solera.cli.client import FOLDER, Folder, check_folder
from solera.cli.serve import extra


def owner(
    folder: Folder = FOLDER,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The policy; by default the one of the last join."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An approver's own key, to decide about jobs."),
    ] = None,
    copies_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key that opens copies of what left.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
) -> None:
    """Look after this client in a browser on this machine: today, waiting, what left, leaving.

    Prints a link that works once, in one browser. Nothing is reachable from other machines, and
    nothing is served once this command is interrupted. The agent may run meanwhile, or not.
    """
    with extra("the owner's page"):
        from solera.serve.agent.approvals import Approver
        from solera.serve.owner.run import serve
        from solera.serve.owner.site import OwnerSite

    check_folder(folder)
    person = None if key is None else Approver.load(key)
    site = OwnerSite(folder, policy, person, copies_key)
    serve(site, port, lambda link: typer.echo(f"open {link}\nCtrl-C ends it"))
