"""What keeps a federation going: ``solera backup``, ``restore``, ``upgrade`` and ``doctor``."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from solera.cli.data import AsJson
from solera.cli.output import print_json
from solera.cli.serve import Authority, check_ca, extra, moment
from solera.cli.settings import FOLDER, BlobStore, Home, database_url, with_home
from solera.core.errors import UsageError
from solera.serve.settings import AgentSettings, CoordinatorSettings, Settings, read_settings

if TYPE_CHECKING:
    from solera.serve.findings import Finding


@with_home
def backup(
    home: Home,
    into: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the backup goes.")] = Path(
        "backups"
    ),
    blobs: BlobStore = None,
    as_json: AsJson = False,
) -> None:
    """Write a coordinator into one file: database, blobs, keys and signed log. It may be running.

    The file holds everything that the coordinator keeps secret: encrypt it before it leaves the
    machine.
    """
    with extra("backups"):
        from solera.serve.coordinator.backup import back_up
    done = back_up(home.folder, home.database, into, blobs)
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{done.file}: {done.bytes:,} bytes, as of {moment(done.time)}")


@with_home
def restore(
    home: Home,
    archive: Annotated[Path, typer.Argument(metavar="FILE", help="What solera backup wrote.")],
    blobs: BlobStore = None,
    as_json: AsJson = False,
) -> None:
    """Make the coordinator of a backup, in a new folder and, if named, in an empty database.

    Nothing is written unless all of it is whole and the signed log is unbroken. Agents and jobs go
    on once it is started. A backup of SQLite may be restored into PostgreSQL, and the other way
    round.
    """
    with extra("backups"):
        from solera.serve.coordinator.backup import restore as restore_backup
    read = restore_backup(archive, home.folder, home.database, blobs)
    if as_json:
        print_json({"folder": home.folder, "time": read.time, "solera": read.solera})
        return
    typer.echo(
        f"{home.folder} is the coordinator as of {moment(read.time)}, by Solera {read.solera}"
    )
    typer.echo(
        "What happened since is not in it: revoke again who was revoked, invite again who joined, "
        "and have those who left leave again."
    )


@with_home
def upgrade(
    home: Home,
    check: Annotated[
        bool, typer.Option("--check", help="Say what would happen, and change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a coordinator's database up to date with this version of Solera.

    Checked are the configuration, the database's revision, the clients' versions of tasks and the
    age of the last backup. [bold]solera serve[/bold] upgrades by itself when it starts; an older
    version cannot read the database afterwards.
    """
    with extra("a coordinator"):
        from solera.serve.coordinator.doctor import Place, upgradable
        from solera.serve.coordinator.run import database_of
        from solera.serve.coordinator.sole import Sole
        from solera.serve.coordinator.store.store import Store
    place = Place(home.folder, database=home.database)
    found = upgradable(place)
    _print_findings(found, as_json)
    if check:
        return
    database = database_of(home.folder, home.database)
    with closing(Sole(home.folder, database)), Store(database):
        typer.echo("the database is up to date")


def doctor(
    folder: Annotated[
        Path | None, typer.Option(help="The folder of a coordinator or of a client.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Before joining: the coordinator's address.")
    ] = None,
    ca: Authority = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The configuration of a coordinator, an agent or both."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find out what is wrong with a coordinator or an agent, and name the command that mends it.

    Looked at are the folder, the disk, the database, the certificate, the port, the host name, the
    authority, the clocks, the signed log and the backups. The exit code is 1 if anything is wrong.
    """
    with extra("solera doctor"):
        from solera.serve.agent.doctor import examine as examine_agent
        from solera.serve.coordinator import doctor as at_coordinator
    settings = Settings() if config is None else read_settings(config)
    served, joined = settings.coordinator, settings.agent
    found: list[Finding] = []
    if served != CoordinatorSettings() or (folder and (folder / "driver.token").exists()):
        file = None if served.database_file is None else Path(served.database_file)
        place = at_coordinator.Place(
            folder or Path(served.folder or FOLDER),
            host=served.host or "127.0.0.1",
            port=served.port or 8443,
            database=database_url(served.database or os.environ.get("SOLERA_DATABASE"), file),
            certificate=None if served.certificate is None else Path(served.certificate),
            key=None if served.key is None else Path(served.key),
        )
        found += at_coordinator.examine(place)
    if joined != AgentSettings() or url or (folder and (folder / "place.json").exists()):
        authority = check_ca(ca or (None if joined.ca is None else Path(joined.ca)))
        home = folder or Path(joined.folder or "agent")
        found += examine_agent(home, url or joined.url, authority)
    if not found:
        raise UsageError(
            "there is neither a coordinator nor a client to look at",
            hint="name it with --folder or --config, or a coordinator to join with --url",
        )
    _print_findings(found, as_json)


def _print_findings(found: list[Finding], as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        for finding in found:
            typer.echo(f"{finding.state:6}{finding.what}: {finding.says}")
            if finding.state != "ok" and finding.mend:
                typer.echo(f"      → {finding.mend}")
    if any(finding.state == "wrong" for finding in found):
        raise typer.Exit(1)
