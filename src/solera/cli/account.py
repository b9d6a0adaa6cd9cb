"""``solera account``: who may look at a coordinator's pages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from solera.cli.data import AsJson
from solera.cli.output import print_json, print_table
from solera.cli.serve import extra, moment
from solera.cli.settings import Home, with_home

if TYPE_CHECKING:
    from solera.serve.coordinator.store.store import Store

app = typer.Typer(no_args_is_help=True, help="People who may look at a coordinator's pages.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The person's name.")]
Password = Annotated[
    str,
    typer.Option(
        prompt=True,
        hide_input=True,
        confirmation_prompt=True,
        envvar="SOLERA_PASSWORD",
        help="Asked for unless it is given; others see what a command line says.",
    ),
]
_ACTOR = "command line"


@app.command("add", epilog="Example: solera account add vega --role researcher --federation cardio")
@with_home
def add(
    home: Home,
    name: Name,
    password: Password,
    role: Annotated[
        Literal["viewer", "researcher", "administrator"],
        typer.Option(
            help="viewer: look; researcher: start and cancel jobs, too; administrator: all."
        ),
    ] = "viewer",
    federation: Annotated[
        str | None, typer.Option(help="Only this federation; all by default.")
    ] = None,
) -> None:
    """Make an account. The password is asked for, or read from $SOLERA_PASSWORD."""
    with extra("accounts"):
        from solera.serve.coordinator.web.visitors import new_account
    account = new_account(name, password, role, federation)
    with _store(home) as store:
        store.add_account(account, _ACTOR)
    typer.echo(f"{name} is {role} of {federation or 'all federations'}")


@app.command("list", epilog="Example: solera account list --folder coordinator")
@with_home
def list_accounts(
    home: Home,
    as_json: AsJson = False,
) -> None:
    """All accounts and tokens of programs."""
    with _store(home) as store:
        people, programs = store.accounts(), store.tokens()
    known = [("person", person) for person in people]
    known += [("program", program) for program in programs]  # type: ignore[misc]
    rows = [[kind, e.name, e.role, e.federation or "all", moment(e.created)] for kind, e in known]
    names = ["kind", "name", "role", "federation", "made"]
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(names, rows)


@app.command("password", epilog="Example: solera account password vega")
@with_home
def password(
    home: Home,
    name: Name,
    password: Password,
) -> None:
    """Set another password; whoever is signed in with the old one is signed out."""
    with extra("accounts"):
        from solera.serve.coordinator.web.visitors import hashed
    with _store(home) as store:
        store.set_password(name, hashed(password), _ACTOR, time.time())
    typer.echo(f"{name} has another password")


@app.command("remove", epilog="Example: solera account remove vega")
@with_home
def remove(
    home: Home,
    name: Name,
) -> None:
    """Remove an account, and sign it out."""
    with _store(home) as store:
        store.remove_account(name, _ACTOR, time.time())
    typer.echo(f"{name} has no account any more")


def _store(home: Home) -> Store:
    with extra("accounts"):
        from solera.serve.coordinator.run import database_of, make_private
        from solera.serve.coordinator.store.store import Store
    make_private(home.folder)
    return Store(database_of(home.folder, home.database))
