"""One database, SQLite or PostgreSQL: transactions, migrations and the errors of the store."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self, TypeVar

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, Row, Select, Table, create_engine, event, insert, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DataError, StatementError

from solera.core.errors import SoleraError, UsageError
from solera.serve.coordinator.store.tables import events
from solera.serve.wire import Job

T = TypeVar("T")

_MIGRATIONS = Path(__file__).parent / "migrations"
_LONGEST = 2000
_CONNECTIONS = 40
_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=30000")


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
        try:
            dialect = make_url(url).get_backend_name()
        except ArgumentError:
            dialect = ""
        if dialect not in ("sqlite", "postgresql"):
            raise UsageError(
                f"Store: no database is meant by {url.partition(':')[0]!r}:…",
                hint="use sqlite:///path or postgresql+psycopg://user@host/name",
            )
        self._sqlite = dialect == "sqlite"
        self._turn: AbstractContextManager[Any] = nullcontext()
        if self._sqlite:
            # As many connections as the service has threads: opening one costs more than a query.
            self._engine = create_engine(url, pool_size=_CONNECTIONS, hide_parameters=True)
            event.listen(self._engine, "connect", _set_up_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
            # SQLite has one writer at a time; a lock is fairer than its polling.
            self._turn = threading.Lock()
        else:
            durable = {"options": "-c synchronous_commit=on"}
            self._engine = create_engine(
                url, pool_pre_ping=True, connect_args=durable, hide_parameters=True
            )
        self._writer = self._engine.execution_options(solera_writes=True)
        self.migrate()

    def migrate(self) -> None:
        """Bring a new or older database up to date."""
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
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
        with self._turn, _usable_values(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with _usable_values(), self._engine.begin() as connection:
            yield connection

    def _rows(self, kind: type[T], query: Select[Any]) -> list[T]:
        with self._read() as connection:
            return [row_of(kind, row) for row in connection.execute(query)]

    def _add(self, connection: Connection, table: Table, **values: Any) -> bool:
        """Insert a row unless its key is taken; whether it was inserted."""
        insert = sqlite.insert if self._sqlite else postgresql.insert
        statement = insert(table).values(**values).on_conflict_do_nothing()
        return connection.execute(statement.returning(*table.primary_key)).first() is not None


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
    facts: Mapping[str, Any] | None = None,
) -> int:
    """Write down what happens, in the transaction in which it happens; the number of the event.

    ``of`` is the job that it is part of, instead of the names of federation and job.
    """
    if of is not None:
        federation, job = of.federation, of.id
    row = {
        "federation": plain(federation),
        "job": None if job is None else plain(job),
        "client": client,
        "event": plain(event),
        "reason": plain(reason),
        "time": now,
        "facts": None if facts is None else dict(facts),
    }
    return int(connection.execute(insert(events).values(row).returning(events.c.id)).scalar_one())


def row_of(kind: type[T], row: Row[Any]) -> T:
    """The row as its message, whose fields are named like the columns."""
    return kind(**row._asdict())


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


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin in _begin_sqlite, not in the driver
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes its lock at once: one that read first could not wait for it."""
    writes = connection.get_execution_options().get("solera_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
