"""``solera doctor`` at a coordinator: folder, disk, database, certificate, port, log, backups."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from solera.core.errors import SoleraError
from solera.serve import tls
from solera.serve.coordinator.backup import last_backup
from solera.serve.coordinator.run import database_of
from solera.serve.coordinator.sole import LOCK
from solera.serve.coordinator.store.base import newest_revision, open_engine, revision_of
from solera.serve.coordinator.store.tables import events
from solera.serve.findings import DAY, Finding, age, check_disk, check_log, look
from solera.serve.identity import Identity
from solera.serve.process_lock import is_held

_EXPIRES_SOON = 30 * DAY
_OLD_BACKUP = 7 * DAY
_PATIENCE = 5.0
_AHEAD = 60.0


@dataclass(frozen=True)
class Place:
    """Where a coordinator lives and listens."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8443
    database: str | None = None
    certificate: Path | None = None
    key: Path | None = None


def examine(place: Place) -> list[Finding]:
    """Everything that can be wrong with a coordinator, running or not."""
    found = look("folder", partial(_check_folder, place))
    if found[0].state == "wrong":
        return found
    found += look("disk", partial(check_disk, place.folder))
    found += look("database", partial(_check_database, place))
    if place.certificate is not None and place.key is not None:
        pair = partial(_check_certificate, place.certificate, place.key)
        found += look("certificate", pair)
    found += look("port", partial(_check_port, place))
    log = place.folder / "audit.log"
    if log.exists():
        identity = Identity.load(place.folder / "identity")
        found += look("signed log", partial(check_log, log, identity))
    return found + look("backup", partial(_check_backup, place.folder))


def _check_folder(place: Place) -> Iterator[Finding]:
    if not (place.folder / "identity").is_dir():
        mend = f"solera serve --folder {place.folder}"
        yield Finding("folder", "wrong", f"no coordinator was ever started in {place.folder}", mend)
        return
    Identity.load(place.folder / "identity")  # an error where others can read it
    yield Finding("folder", "ok", f"{place.folder}, for its owner alone")


def _check_database(place: Place) -> Iterator[Finding]:
    engine = open_engine(database_of(place.folder, place.database))
    try:
        with engine.connect() as connection:
            found, wanted = revision_of(connection), newest_revision()
            newest = select(events.c.time).order_by(events.c.id.desc()).limit(1)
            last = connection.scalar(newest) if found == wanted else None
    except SQLAlchemyError as error:
        says = str(getattr(error, "orig", error)).splitlines()[0]
        mend = "start the database, or mend database_file, SOLERA_DATABASE or --database"
        yield Finding("database", "wrong", says, mend)
        return
    finally:
        engine.dispose()
    name = engine.url.render_as_string(hide_password=True)
    if found == wanted:
        yield Finding("database", "ok", f"{name}, revision {found}")
    else:
        says = f"revision {found}, this version of Solera has {wanted}"
        yield Finding("database", "wrong", says, "solera upgrade --check")
    yield from _check_clock(last)


def _check_clock(last: float | None) -> Iterator[Finding]:
    """A clock that is behind what was already written was set back, or is wrong."""
    if last is not None and last > time.time() + _AHEAD:
        says = f"the clock is {age(last)} behind the last event in the database"
        yield Finding("clock", "wrong", says, "timedatectl set-ntp true")
    else:
        yield Finding("clock", "ok", "not behind the last event")


def _check_certificate(certificate: Path, key: Path) -> Iterator[Finding]:
    mend = f"solera tls renew --folder {certificate.parent} --name {certificate.stem}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError:
        says = f"{key} is not the key of {certificate}"
        yield Finding("certificate", "wrong", says, mend)
        return
    end = tls.expiry(certificate)
    if end < time.time():
        yield Finding("certificate", "wrong", f"it expired {age(end)} ago", mend)
    elif end < time.time() + _EXPIRES_SOON:
        yield Finding("certificate", "soon", f"it expires in {age(end)}", mend)
    else:
        yield Finding("certificate", "ok", f"good for {age(end)}")


def _check_port(place: Place) -> Iterator[Finding]:
    """Whether the coordinator can be reached where it should, or could be started there."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(place.host, place.host)
    address = f"port {place.port} of {place.host}"
    running = is_held(place.folder / LOCK)
    if not running:
        try:
            family = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][0]
            socket.create_server((place.host, place.port), family=family).close()
        except OSError as error:
            mend = f"ss -ltnp 'sport = :{place.port}' shows who has it; or choose another port"
            says = f"it cannot listen on {address}: {error.strerror}"
            yield Finding("port", "wrong", says, mend)
        else:
            says, mend = "the coordinator does not run", f"solera serve --folder {place.folder}"
            yield Finding("port", "wrong", says, mend)
        return
    try:
        socket.create_connection((reached, place.port), timeout=_PATIENCE).close()
    except OSError as error:
        says = f"the coordinator runs, but not on {address}: {error.strerror or error}"
        yield Finding("port", "wrong", says, "start it again with this configuration")
        return
    yield Finding("port", "ok", f"it listens on {address}")


def _check_backup(folder: Path) -> Iterator[Finding]:
    last = last_backup(folder)
    mend = f"solera backup --folder {folder} --into backups"
    if last is None:
        yield Finding("backup", "soon", "there never was one", mend)
    elif last.time < time.time() - _OLD_BACKUP:
        yield Finding("backup", "soon", f"the last one is {age(last.time)} old", mend)
    elif not Path(last.file).exists():
        yield Finding("backup", "ok", f"{age(last.time)} old, moved from {last.file}")
    else:
        yield Finding("backup", "ok", f"{age(last.time)} old, {last.file}")


def upgradable(place: Place) -> list[Finding]:
    """What stands between this version of Solera and a coordinator's folder."""
    found = look("folder", partial(_check_folder, place))
    if found[0].state == "wrong":
        return found
    found += look("database", partial(_check_upgrade, place))
    return found + look("backup", partial(_check_backup, place.folder))


def _check_upgrade(place: Place) -> Iterator[Finding]:
    from solera.core.task import installed_tasks
    from solera.serve.coordinator.store.store import Store

    engine = open_engine(database_of(place.folder, place.database))
    try:
        with engine.connect() as connection:
            found, wanted = revision_of(connection), newest_revision()
    finally:
        engine.dispose()
    if found is None:
        yield Finding("database", "ok", "it is empty and will be made at the first start")
        return
    if found > wanted:
        raise SoleraError(
            f"the database has revision {found}, which is newer than {wanted} of this version",
            hint="install the version of Solera that it ran with, or a newer one",
        )
    if found < wanted:
        says = f"revision {found} will become {wanted}, which an older version cannot read"
        mend = "solera backup with the version that runs now; then solera upgrade"
        yield Finding("database", "soon", says, mend)
        return
    yield Finding("database", "ok", f"revision {found}, as this version has it")
    here = {name: task.version for name, task in installed_tasks().items()}
    with Store(database_of(place.folder, place.database)) as store:
        for federation in store.federations():
            for client in store.clients(federation):
                other = [n for n, v in client.tasks.items() if here.get(n, v) != v]
                if client.revoked is None and other:
                    says = f"{client.name} of {federation} has other versions of {', '.join(other)}"
                    mend = f"install the same version of Solera at {client.name}"
                    yield Finding("clients", "wrong", says, mend)
