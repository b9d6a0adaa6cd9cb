"""Backups of a coordinator: taken while it runs, each of one moment, checked when restored.

A backup is one file, a tar archive: ``database.sqlite`` with the rows of the database, whichever
that is; the blobs that those rows name; the keys, the driver's token and the signed log. The log's
end and the database's snapshot are taken while nothing can be added to the log, so that they fit.
Sessions of people are left out.

The archive holds all that the coordinator keeps secret.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from sqlalchemy import Connection, Table, delete, func, insert, inspect, select, text

from solera.core.errors import SoleraError, UsageError
from solera.core.private_files import sync_folder, write_file
from solera.core.version import __version__
from solera.serve.audit import AuditLog, head_path, verify
from solera.serve.coordinator.run import database_of, make_private, open_blobs
from solera.serve.coordinator.store.base import newest_revision, open_engine, revision_of
from solera.serve.coordinator.store.blobs import Blobs, NoBlob
from solera.serve.coordinator.store.s3 import Bucket, BucketBlobs
from solera.serve.coordinator.store.store import Store
from solera.serve.coordinator.store.tables import events, metadata, sessions
from solera.serve.identity import Identity

LAST = "backup.json"
"""The file in a coordinator's folder that says when it was last backed up."""
_FORMAT = 1
_MANIFEST, _DATABASE, _LOG = "manifest.json", "database.sqlite", "audit.log"
_LOCK = "backup.lock"
_OWN = ("identity", "driver.token")
_AT_ONCE = 1000
_TRIES = 3
_CHUNK = 1 << 20


class LastBackup(msgspec.Struct, frozen=True):
    """When a coordinator was last backed up, and where to."""

    time: float
    file: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True):
    """What an archive holds; ``files`` are digests of all but the blobs, whose names say them."""

    format: int
    solera: str
    revision: str
    time: float
    files: dict[str, str]


class Damaged(SoleraError):
    """A backup that is not what was written."""


class _Moved(Exception):
    """A blob was collected after the snapshot that names it."""


def last_backup(folder: Path) -> LastBackup | None:
    """The last backup of the coordinator in a folder, None if there never was one."""
    try:
        return msgspec.json.decode((folder / LAST).read_bytes(), type=LastBackup)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


# --- backing up ---


def back_up(
    folder: Path, database: str | None, into: Path, bucket: str | None = None
) -> LastBackup:
    """Write a backup of the coordinator in ``folder`` into another folder; it may be running.

    ``bucket`` is where its blobs lie, if not in the folder.
    """
    if not (folder / "identity").is_dir():
        raise UsageError(f"there is no coordinator in {folder}", hint="--folder names its folder")
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    for _ in range(_TRIES):
        with _one_at_a_time(folder), _staging(folder / ".backup") as staging:
            try:
                moment = _gather(folder, database_of(folder, database), bucket, staging)
            except _Moved:
                continue
            return _archive(folder, staging, into, moment)
    raise UsageError(f"blobs go from {folder} as fast as they are copied", hint="try again later")


def _gather(folder: Path, database: str, bucket: str | None, staging: Path) -> float:
    """Everything of one moment, in a folder of its own; that moment."""
    identity = Identity.load(folder / "identity")
    audit = AuditLog(folder / _LOG, identity)
    audit.head()  # an error where the log is not what was written
    engine = open_engine(database)
    if engine.dialect.name == "postgresql":  # SQLite's transactions see one moment anyway
        engine = engine.execution_options(isolation_level="REPEATABLE READ")
    try:
        with engine.connect() as connection:
            with audit.locked() as log:
                _check_revision(connection)  # the first query takes the snapshot
                size, moment = os.fstat(log).st_size, time.time()
                head = head_path(audit.path).read_bytes()
            write_file(staging / head_path(Path(_LOG)).name, head, 0o600, overwrite=False)
            _copy_start(audit.path, staging / _LOG, size)
            signed = int((AuditLog(staging / _LOG, identity).last() or {}).get("event", 0))
            with Store(f"sqlite:///{staging / _DATABASE}") as copy, copy._write() as rows:
                _copy_rows(connection, rows)
                _set_next_event(rows, signed)
    finally:
        engine.dispose()
    with Store(f"sqlite:///{staging / _DATABASE}") as copy:
        _hold_blobs(open_blobs(folder, bucket), copy.digests(), staging / "blobs")
    for name in _OWN:
        source = folder / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, staging / name)
    return moment


def _check_revision(connection: Connection) -> None:
    found, wanted = revision_of(connection), newest_revision()
    if found != wanted:
        raise UsageError(
            f"the database has revision {found}, this version of Solera {wanted}",
            hint="back it up with the version that it runs with",
        )


def _copy_start(source: Path, target: Path, size: int) -> None:
    """The first bytes of a file that only grows."""
    with open(source, "rb") as old, open(target, "xb") as new:
        while size > 0:
            chunk = old.read(min(size, _CHUNK))
            new.write(chunk)
            size -= len(chunk)


def _copy_rows(source: Connection, target: Connection) -> None:
    for table in metadata.sorted_tables:
        if table is not sessions:
            _copy_table(source, target, table)


def _copy_table(source: Connection, target: Connection, table: Table) -> None:
    found = source.execution_options(yield_per=_AT_ONCE).execute(select(table))
    for part in found.mappings().partitions():
        target.execute(insert(table), [dict(row) for row in part])


def _set_next_event(connection: Connection, signed: int) -> None:
    """The next event has a number that none had, also none that was deleted when it was signed."""
    last = max(signed, connection.scalar(select(func.max(events.c.id))) or 0)
    if connection.dialect.name == "postgresql":
        sequence = "SELECT setval(pg_get_serial_sequence('events', 'id'), :last)"
        connection.execute(text(sequence), {"last": max(last, 1)})
        return
    row = {"id": last + 1, "federation": "", "event": "", "reason": "", "time": 0.0}
    connection.execute(insert(events).values(**row))  # SQLite remembers the largest it ever had
    connection.execute(delete(events).filter_by(id=last + 1))


def _hold_blobs(blobs: Blobs, digests: set[str], folder: Path) -> None:
    """Hold the blobs ourselves: they stay when the coordinator collects them."""
    for digest in digests:
        path = folder / digest[:2] / digest[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if isinstance(blobs, BucketBlobs):
                _, pieces = blobs.stream(digest, 0, blobs.max_size)
                with open(path, "xb") as file:
                    file.writelines(pieces)
            else:
                os.link(blobs.path(digest), path)
        except (FileNotFoundError, NoBlob):
            raise _Moved from None


def _archive(folder: Path, staging: Path, into: Path, moment: float) -> LastBackup:
    """One file, whole and on the disk under its name, or none."""
    known = [p for p in (*staging.glob("*"), *staging.glob("identity/*")) if p.is_file()]
    files = {str(p.relative_to(staging)): _digest(p) for p in known if _is_kept(p)}
    manifest = Manifest(_FORMAT, __version__, newest_revision(), moment, files)
    write_file(staging / _MANIFEST, msgspec.json.encode(manifest), 0o600, overwrite=False)
    blobs = sorted(p.relative_to(staging) for p in staging.glob("blobs/*/*"))
    stamp = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H%M%SZ")
    path = into / f"solera-{stamp}-{secrets.token_hex(2)}.tar"
    partial = path.with_suffix(".partial")
    try:
        with open(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                for name in (_MANIFEST, *sorted(files), *map(str, blobs)):
                    archive.add(staging / name, name)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(into)
    last = LastBackup(moment, str(path.absolute()), path.stat().st_size)
    write_file(folder / LAST, msgspec.json.encode(last), 0o600, overwrite=True)
    return last


def _is_kept(path: Path) -> bool:
    """Not what SQLite keeps beside its file while it is open."""
    return not path.name.startswith(f"{_DATABASE}-")


# --- restoring ---


def restore(
    archive: Path, folder: Path, database: str | None = None, bucket: str | None = None
) -> Manifest:
    """Make the coordinator of a backup, in a new folder and in an empty database.

    Everything is checked before anything is there: digests, the chain of the signed log, that
    log and database fit, and that no blob is missing.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", hint="restore into a new folder")
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with _staging(folder.absolute().with_name(f".{folder.name}.restoring")) as staging:
        _extract(archive, staging)
        manifest = _check_files(archive, staging)
        with Store(f"sqlite:///{staging / _DATABASE}") as rows:  # brings older ones up to date
            _check_blobs(rows, staging)
            signed = _check_log(rows, staging)
            if bucket is not None:
                _put_blobs(Bucket(bucket), rows.digests(), staging / "blobs")
        (staging / _MANIFEST).unlink()
        if database is None:
            (staging / _DATABASE).rename(database_file(staging))
            _place(staging, folder)
        else:
            _load(staging, folder, database, signed)
    return manifest


def database_file(folder: Path) -> Path:
    """The database of a coordinator that keeps it in its folder."""
    return Path(database_of(folder, None).removeprefix("sqlite:///"))


def _extract(archive: Path, staging: Path) -> None:
    try:
        with tarfile.open(archive, "r:") as packed:
            packed.extractall(staging, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise Damaged(f"{archive} is no whole backup: {error}") from None
    make_private(staging)


def _check_files(archive: Path, staging: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode((staging / _MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        raise Damaged(f"{archive} is no backup of a coordinator") from None
    if manifest.format != _FORMAT:
        raise UsageError(
            f"{archive} has format {manifest.format}", hint=f"restore with Solera {manifest.solera}"
        )
    for name, digest in manifest.files.items():
        path = staging / name
        if not path.is_file() or _digest(path) != digest:
            raise Damaged(f"{archive}: {name} is not what was backed up")
    return manifest


def _check_blobs(rows: Store, staging: Path) -> None:
    blobs = Blobs(staging / "blobs")
    for digest in rows.digests():
        path = blobs.path(digest)
        if not path.is_file() or _digest(path) != digest:
            raise Damaged(f"blob {digest[:12]}… is missing or damaged in the backup")


def _put_blobs(bucket: Bucket, digests: set[str], folder: Path) -> None:
    for digest in digests:
        bucket.put(digest, folder / digest[:2] / digest[2:])
    shutil.rmtree(folder)


def _check_log(rows: Store, staging: Path) -> int:
    """The number of the last event in the signed log, which must fit the database."""
    identity = Identity.load(staging / "identity")
    report = verify(staging / _LOG, identity.sign_key, rows.signed_head())
    if not report.ok:
        raise Damaged(f"the signed log in the backup: {report.problems[0]}")
    return int((AuditLog(staging / _LOG, identity).last() or {}).get("event", 0))


def _load(staging: Path, folder: Path, database: str, signed: int) -> None:
    engine = open_engine(database)
    try:
        if inspect(engine).get_table_names():
            raise UsageError("the database is not empty", hint="restore into a new one")
    finally:
        engine.dispose()
    source = open_engine(f"sqlite:///{staging / _DATABASE}")
    try:
        with Store(database) as store, store._write() as rows, source.connect() as connection:
            _copy_rows(connection, rows)
            _set_next_event(rows, signed)
            source.dispose()
            for left in staging.glob(f"{_DATABASE}*"):
                left.unlink()
            _place(staging, folder)
    finally:
        source.dispose()


def _place(staging: Path, folder: Path) -> None:
    make_private(staging)
    if folder.exists():
        folder.rmdir()
    os.rename(staging, folder)
    sync_folder(folder.absolute().parent)


# --- files ---


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with open(os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _staging(beside: Path) -> Iterator[Path]:
    """A folder for what is not complete yet; one that a crash left is removed."""
    for left in beside.parent.glob(f"{beside.name}-*"):
        shutil.rmtree(left)
    folder = beside.with_name(f"{beside.name}-{secrets.token_hex(4)}")
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
