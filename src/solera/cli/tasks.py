"""``solera tasks``: all that can be asked of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from solera.cli.data import AsJson
from solera.cli.output import first_line, print_json, print_table
from solera.core.errors import UsageError

if TYPE_CHECKING:
    from solera.core.task import Task


def tasks(
    name: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="Tell all of this one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The tasks installed here: the only things that can run on a client's rows."""
    from solera.core.config import nearest
    from solera.core.task import installed_tasks

    installed = installed_tasks()
    if name is not None and name not in installed:
        raise UsageError(f"no task {name!r} is installed", hint=nearest(name, installed))
    chosen = sorted(installed) if name is None else [name]
    told = [_told(installed[task]) for task in chosen]
    if as_json:
        print_json(told)
    elif name is not None:
        for key, value in told[0].items():
            typer.echo(f"{key:9} {value}")
    else:
        rows = [[t["name"], t["version"], t["does"]] for t in told]
        print_table(["name", ">version", "does"], rows)


def _told(task: Task) -> dict[str, Any]:
    """A task in words."""
    return {
        "name": task.name,
        "version": task.version,
        "module": task.one.__module__,
        "does": first_line(task.one),
    }
