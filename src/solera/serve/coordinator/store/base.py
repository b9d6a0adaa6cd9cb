"""One database, SQLite or PostgreSQL: transactions, migrations and the errors of the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Executable,
    FromClause,
    Select,
    Table,
    UpdateBase,
    create_engine,
    event,
    func,
    insert,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DataError, DisconnectionError, StatementError

from solera.core.errors import SoleraError, UsageError
from solera.serve.coordinator.news import NOTIFY, News, message
from solera.serve.coordinator.store.tables import asks, deliveries, events, jobs
from solera.serve.wire import Job
from solera.serve.write_ahead import write_ahead

T = TypeVar("T")

_MIGRATIONS = Path(__file__).parent / "migrations"
_LONGEST = 2000
_CONNECTIONS = 40
_POSTGRES_CONNECTIONS = 15
"""Of each process; a server allows 100 in all unless it is told otherwise."""
_WATCHED = (asks, deliveries, jobs)
_CHANGES = "solera_changes"
_USED = "solera_used"
_IDLE_SECONDS = 1.0
_PRAGMAS = ("busy_timeout=30000", "synchronous=FULL", "foreign_keys=ON")


class Denied(SoleraError):
    """Whoever asks has no right to what they ask for."""


class Conflict(SoleraError):
    """Something else is stored under the same name, or a state cannot change like that."""


class NotFound(SoleraError):
    """Nothing of that name is stored."""


class Base:
    """Connections to the database, brought up to date when opened.

    Every method of a store is one transaction; when it returns, what it wrote is on stable storage.
    Any number of threads may share a store.
    """

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url)
        self.dialect = self._engine.dialect.name
        self._sqlite = self.dialect == "sqlite"
        # SQLite has one writer at a time; a lock is fairer than its polling.
        self._turn: AbstractContextManager[Any] = (
            threading.Lock() if self._sqlite else nullcontext()
        )
        self._counting = threading.Lock()
        self._writer = self._engine.execution_options(solera_writes=True)
        # There each statement sees what is stored when it begins, in a transaction or not.
        self._reader = (
            self._engine
            if self._sqlite
            else self._engine.execution_options(isolation_level="AUTOCOMMIT")
        )
        event.listen(self._engine, "after_execute", _watch)
        self.changes = 0
        """How often asks, replies or jobs may have changed.

        It is counted when the change is stored and before anybody is told of it; another process
        that works on the same database tells of its own.
        """
        self.worker: str | None = None
        """By what other processes that work on the same database know this one, if there are."""
        self.migrate()

    def migrate(self) -> None:
        """Bring a new or older database up to date."""
        config = _migrations()
        try:
            with self._write() as connection:
                if not self._sqlite:
                    # Several processes may start at once; the lock ends with the transaction.
                    connection.execute(text("SELECT pg_advisory_xact_lock(736574657)"))
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError as error:
            raise UsageError(
                f"the database cannot be brought up to date: {error}",
                hint="it was probably written by a newer Solera; update this one",
            ) from error

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with (
            self._turn,
            _usable_values(),
            self._counted() as changes,
            self._writer.begin() as connection,
        ):
            connection.info[_CHANGES] = changes
            yield connection
            if changes and self.worker is not None:
                connection.execute(NOTIFY, message(self.worker, changed=sorted(set(changes))))

    @contextmanager
    def _counted(self) -> Iterator[list[str]]:
        """Around a transaction: count it if it names a table that is watched, stored or not."""
        changes: list[str] = []
        try:
            yield changes
        finally:
            if changes:
                self.count_change()

    def count_change(self) -> None:
        """Asks, replies or jobs may have changed."""
        with self._counting:
            self.changes += 1

    def news(self, worker: str, hear: Callable[[dict[str, Any] | None], None]) -> News:
        """News of other processes on this database; ``worker`` is how they know this one."""
        if self._sqlite:
            raise UsageError(
                "several workers need PostgreSQL", hint="--database postgresql://user@host/name"
            )
        self.worker = worker
        return News(self._engine, worker, hear)

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with _usable_values(), self._reader.begin() as connection:
            yield connection

    def _rows(
        self, kind: type[T], query: Select[Any], values: dict[str, Any] | None = None
    ) -> list[T]:
        with self._read() as connection:
            return [kind(**row) for row in connection.execute(query, values).mappings()]

    def _scalars(self, query: Executable) -> list[Any]:
        with self._read() as connection:
            return list(connection.scalars(query))

    def _put(self, connection: Connection, table: Table, **values: Any) -> None:
        """Insert a row, or replace the one of the same key."""
        statement = self._insert(table).values(**values)
        connection.execute(statement.on_conflict_do_update(table.primary_key, set_=values))

    def _add(self, connection: Connection, table: Table, **values: Any) -> bool:
        """Insert a row unless its key is taken; whether it was inserted."""
        statement = self._insert(table).values(**values).on_conflict_do_nothing()
        return connection.execute(statement.returning(*table.primary_key)).first() is not None

    def _insert(self, table: Table) -> sqlite.Insert | postgresql.Insert:
        return sqlite.insert(table) if self._sqlite else postgresql.insert(table)


def open_engine(url: str) -> Engine:
    """The database as it is: nothing is created or brought up to date."""
    try:
        dialect = make_url(url).get_backend_name()
    except ArgumentError:
        dialect = ""
    if dialect not in ("sqlite", "postgresql"):
        raise UsageError(
            f"Store: no database is meant by {url.partition(':')[0]!r}:…",
            hint="use sqlite:///path or postgresql+psycopg://user@host/name",
        )
    if dialect == "sqlite":
        # As many connections as the service has threads: opening one costs more than a query.
        engine = create_engine(url, pool_size=_CONNECTIONS, hide_parameters=True)
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    durable = {"options": "-c synchronous_commit=on"}
    engine = create_engine(
        url,
        pool_size=_POSTGRES_CONNECTIONS,
        max_overflow=0,  # a connection that is opened for one query costs more than the query
        connect_args=durable,
        hide_parameters=True,
    )
    event.listen(engine, "checkin", _note_use)
    event.listen(engine, "checkout", partial(_check_alive, engine))
    return engine


def revision_of(connection: Connection) -> str | None:
    """The revision of the tables that a database holds, None without any."""
    return MigrationContext.configure(connection).get_current_revision()


def newest_revision() -> str:
    """The revision of the tables that this version of Solera works with."""
    return str(ScriptDirectory.from_config(_migrations()).get_current_head())


def _migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def note(
    connection: Connection,
    event: str,
    now: float,
    *,
    of: Job | None = None,
    federation: str = "",
    job: str | None = None,
    client: int | None = None,
    reason: str = "",
    facts: dict[str, Any] | None = None,
) -> int:
    """Write down what happens, in the transaction in which it happens; the number of the event.

    ``of`` is the job that it is part of, instead of the names of federation and job.
    """
    if of is not None:
        federation, job = of.federation, of.id
    row = {
        "federation": federation,
        "job": job,
        "client": client,
        "event": event,
        "reason": plain(reason),
        "time": now,
        "facts": facts,
    }
    return int(connection.scalar(_NOTE, row))


_NOTE = insert(events).returning(events.c.id)


def changed(connection: Connection, what: str) -> None:
    """What others remember of these rows is old when this transaction is stored."""
    connection.info[_CHANGES].append(what)


def first_row(
    connection: Connection, kind: type[T], query: Executable, values: dict[str, Any] | None = None
) -> T | None:
    """The first row, if there is one, as its message, whose fields are named like the columns.

    ``values`` are those of a query that is put together once for all.
    """
    row = connection.execute(query, values).mappings().first()
    return None if row is None else kind(**row)


def count_rows(connection: Connection, table: FromClause, *where: ColumnElement[bool]) -> int:
    """How many rows of a table, or of a query, are like this."""
    return int(connection.scalar(select(func.count()).select_from(table).where(*where)) or 0)


def find_row(connection: Connection, kind: type[T], query: Select[Any], missing: str) -> T:
    """The row as its message; an error that says what is ``missing`` if there is none."""
    row = first_row(connection, kind, query)
    if row is None:
        raise NotFound(missing)
    return row


def plain(reason: str) -> str:
    """Text from anywhere, made fit for a row: valid, without NUL, not too long."""
    fit = reason[:_LONGEST].encode("utf-8", "replace").decode().replace("\0", "�")
    return fit if len(reason) <= _LONGEST else fit[:-1] + "…"


@contextmanager
def _usable_values() -> Iterator[None]:
    """Numbers and text that no column can hold are the caller's mistake, not a crash."""
    try:
        yield
    except (OverflowError, UnicodeEncodeError, DataError) as error:
        raise UsageError(f"a value does not fit the database: {error}") from error
    except StatementError as error:
        if isinstance(error.orig, OverflowError | ValueError | TypeError):
            raise UsageError(f"a value does not fit the database: {error.orig}") from error
        raise


def _watch(connection: Connection, statement: Any, *_: Any) -> None:
    """Remember whether a transaction changes what clients are asked."""
    if isinstance(statement, UpdateBase) and statement.table in _WATCHED:
        connection.info[_CHANGES].append(statement.table.name)


def _note_use(_connection: Any, record: Any) -> None:
    record.info[_USED] = time.monotonic()


def _check_alive(engine: Engine, connection: Any, record: Any, _proxy: Any) -> None:
    """A connection that was idle may be one of a database that has gone: another is made then.

    One in use is not asked before each query, which would cost as much as the query.
    """
    if time.monotonic() - record.info.get(_USED, 0.0) > _IDLE_SECONDS:
        try:
            engine.dialect.do_ping(connection)
        except Exception as error:
            raise DisconnectionError(str(error)) from error


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin in _begin_sqlite, not in the driver
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    write_ahead(connection)


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes its lock at once: one that read first could not wait for it."""
    writes = connection.get_execution_options().get("solera_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
