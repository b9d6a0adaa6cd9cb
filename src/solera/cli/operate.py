"""What keeps a coordinator going: ``solera backup``, ``restore`` and ``upgrade``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from solera.cli.account import FOLDER, Folder
from solera.cli.data import AsJson
from solera.cli.output import print_json
from solera.cli.serve import extra, moment
from solera.cli.settings import CoordinatorConfig, Database, DatabaseFile, database_url


def backup(
    into: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the backup goes.")] = Path(
        "backups"
    ),
    folder: Folder = FOLDER,
    database: Database = None,
    database_file: DatabaseFile = None,
    config: CoordinatorConfig = None,
    as_json: AsJson = False,
) -> None:
    """Write a coordinator into one file: database, blobs, keys and signed log. It may be running.

    The file holds everything that the coordinator keeps secret: encrypt it before it leaves the
    machine.
    """
    with extra("backups"):
        from solera.serve.coordinator.backup import back_up
    done = back_up(folder, database_url(database, database_file), into)
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{done.file}: {done.bytes:,} bytes, as of {moment(done.time)}")


def restore(
    archive: Annotated[Path, typer.Argument(metavar="FILE", help="What solera backup wrote.")],
    folder: Folder = FOLDER,
    database: Database = None,
    database_file: DatabaseFile = None,
    config: CoordinatorConfig = None,
    as_json: AsJson = False,
) -> None:
    """Make the coordinator of a backup, in a new folder and, if named, in an empty database.

    Nothing is written unless all of it is whole and the signed log is unbroken. Agents and jobs go
    on once it is started. A backup of SQLite may be restored into PostgreSQL, and the other way
    round.
    """
    with extra("backups"):
        from solera.serve.coordinator.backup import restore as restore_backup
    read = restore_backup(archive, folder, database_url(database, database_file))
    if as_json:
        print_json({"folder": folder, "time": read.time, "solera": read.solera})
        return
    typer.echo(f"{folder} is the coordinator as of {moment(read.time)}, by Solera {read.solera}")
    typer.echo(
        "What happened since is not in it: revoke again who was revoked, invite again who joined, "
        "and have those who left leave again."
    )
