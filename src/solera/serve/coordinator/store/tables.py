"""The tables of the coordinator's database, and the rows it hands out.

Times are seconds since 1970, UTC. A digest names a blob; a row never holds a payload itself.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from solera.serve.wire import Answer, Call, Message

NEXT: dict[str, tuple[str, ...]] = {
    "created": ("waiting", "running", "failed", "cancelled", "expired"),
    "waiting": ("running", "failed", "cancelled", "expired"),
    "running": ("finished", "failed", "cancelled", "expired"),
    "finished": (),
    "failed": (),
    "cancelled": (),
    "expired": (),
}
"""The states a job may go to from each state; those without a way out are final."""

OPEN = "open"
"""Status of a delivery that has no reply yet."""


# --- rows ----------------------------------------------------------------------------------------
# Jobs, models and events are handed out as they are stored: their rows are messages.


class InviteRow(Message):
    token_hash: bytes
    federation: str
    name: str
    expires: float
    used: float | None


class ClientRow(Message):
    """A data owner; ``tasks`` are the names and versions it has installed.

    ``doing`` is the task it works on, ``head`` the line number and hash at the end of its audit
    log, as it said last.
    """

    federation: str
    id: int
    name: str
    sign_key: bytes
    seal_key: bytes
    tasks: dict[str, int]
    enrolled: float
    seen: float | None = None
    revoked: float | None = None
    reason: str = ""
    doing: str | None = None
    head: list[Any] | None = None


class QuestionRow(Call, kw_only=True):
    """What a standing job asks every client that contributes, in asks from ``first`` on."""

    job: str
    first: int


class AskRow(Call, kw_only=True):
    """``payload`` is None where each client has one of its own."""

    payload: str | None  # type: ignore[assignment]
    job: str
    seq: int
    round: int
    deadline: float | None
    clients: list[int]
    created: float
    pruned: bool = False


class ReplyRow(Answer, kw_only=True):
    """The closed delivery of an ask; ``digest`` is None without a payload and once pruned."""

    job: str
    seq: int
    client: int
    signature: bytes | None
    time: float
    pruned: bool


# --- tables --------------------------------------------------------------------------------------

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)


def _required(*parts: Any, **options: Any) -> Column[Any]:
    return Column(*parts, nullable=False, **options)


federations = Table(
    "federations",
    metadata,
    Column("name", Text, primary_key=True),
    _required("next_client", BigInteger),
    _required("created", Double),
)

invites = Table(
    "invites",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    _required("federation", ForeignKey("federations.name"), index=True),
    _required("name", Text),
    _required("expires", Double),
    Column("used", Double),
)

clients = Table(
    "clients",
    metadata,
    Column("federation", ForeignKey("federations.name"), primary_key=True),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    _required("name", Text),
    Column("sign_key", LargeBinary, nullable=False, unique=True),
    _required("seal_key", LargeBinary),
    _required("tasks", JSON),
    _required("enrolled", Double),
    Column("seen", Double),
    Column("revoked", Double),
    _required("reason", Text),
    Column("doing", Text),
    Column("head", JSON(none_as_null=True)),
    UniqueConstraint("federation", "name"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    _required("federation", ForeignKey("federations.name"), index=True),
    _required("kind", Text),
    _required("spec", Text),
    _required("hash", Text),
    _required("seed", BigInteger),
    _required("owner", Text),
    Column("deadline", Double),
    _required("state", Text),
    _required("reason", Text),
    _required("created", Double),
    _required("changed", Double),
    Column("clients", JSON(none_as_null=True)),
)

approvals = Table(
    "approvals",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("client", BigInteger, primary_key=True, autoincrement=False),
    _required("person", Text),
    _required("hash", Text),
    _required("time", Double),
)

asks = Table(
    "asks",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    _required("task", Text),
    _required("version", BigInteger),
    Column("payload", Text),
    Column("prepare", Text),
    _required("round", BigInteger),
    Column("deadline", Double),
    _required("clients", JSON),
    _required("created", Double),
    _required("pruned", Boolean),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("job", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("client", BigInteger, primary_key=True, autoincrement=False),
    Column("payload", Text),
    _required("status", Text),
    Column("digest", Text),
    _required("size", BigInteger),
    _required("reason", Text),
    Column("signature", LargeBinary),
    Column("time", Double),
    _required("pruned", Boolean),
    ForeignKeyConstraint(["job", "seq"], ["asks.job", "asks.seq"]),
    Index("ix_deliveries_client", "client", "status"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("first", BigInteger, primary_key=True, autoincrement=False),
    _required("seq", BigInteger),
    _required("digest", Text),
    _required("time", Double),
)

questions = Table(
    "questions",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    _required("first", BigInteger),
    _required("task", Text),
    _required("version", BigInteger),
    _required("payload", Text),
    Column("prepare", Text),
)

models = Table(
    "models",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    _required("version", BigInteger),
    _required("digest", Text),
    _required("contributions", JSON),
    _required("time", Double),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    _required("federation", Text, index=True),
    Column("job", Text, index=True),
    Column("client", BigInteger),
    _required("event", Text),
    _required("reason", Text),
    _required("time", Double),
    Column("facts", JSON(none_as_null=True)),
    sqlite_autoincrement=True,
)

REPLY_COLUMNS = [column for column in deliveries.c if column.name != "payload"]
"""Those of a :class:`ReplyRow`."""
