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


class FederationRow(Message):
    name: str
    next_client: int
    created: float


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

federations = Table(
    "federations",
    metadata,
    Column("name", Text, primary_key=True),
    Column("next_client", BigInteger, nullable=False),
    Column("created", Double, nullable=False),
)

invites = Table(
    "invites",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    Column("federation", ForeignKey("federations.name"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("expires", Double, nullable=False),
    Column("used", Double),
)

clients = Table(
    "clients",
    metadata,
    Column("federation", ForeignKey("federations.name"), primary_key=True),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("sign_key", LargeBinary, nullable=False, unique=True),
    Column("seal_key", LargeBinary, nullable=False),
    Column("tasks", JSON, nullable=False),
    Column("enrolled", Double, nullable=False),
    Column("seen", Double),
    Column("revoked", Double),
    Column("reason", Text, nullable=False),
    Column("doing", Text),
    Column("head", JSON(none_as_null=True)),
    UniqueConstraint("federation", "name"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("federation", ForeignKey("federations.name"), nullable=False, index=True),
    Column("kind", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("deadline", Double),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("changed", Double, nullable=False),
    Column("clients", JSON(none_as_null=True)),
)

approvals = Table(
    "approvals",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("client", BigInteger, primary_key=True, autoincrement=False),
    Column("person", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("time", Double, nullable=False),
)

asks = Table(
    "asks",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("task", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("payload", Text),
    Column("prepare", Text),
    Column("round", BigInteger, nullable=False),
    Column("deadline", Double),
    Column("clients", JSON, nullable=False),
    Column("created", Double, nullable=False),
    Column("pruned", Boolean, nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("job", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("client", BigInteger, primary_key=True, autoincrement=False),
    Column("payload", Text),
    Column("status", Text, nullable=False),
    Column("digest", Text),
    Column("size", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("signature", LargeBinary),
    Column("time", Double),
    Column("pruned", Boolean, nullable=False),
    ForeignKeyConstraint(["job", "seq"], ["asks.job", "asks.seq"]),
    Index("ix_deliveries_client", "client", "status"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("first", BigInteger, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("digest", Text, nullable=False),
    Column("time", Double, nullable=False),
)

questions = Table(
    "questions",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("first", BigInteger, nullable=False),
    Column("task", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("payload", Text, nullable=False),
    Column("prepare", Text),
)

models = Table(
    "models",
    metadata,
    Column("job", ForeignKey("jobs.id"), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("digest", Text, nullable=False),
    Column("contributions", JSON, nullable=False),
    Column("time", Double, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("federation", Text, nullable=False, index=True),
    Column("job", Text, index=True),
    Column("client", BigInteger),
    Column("event", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("time", Double, nullable=False),
    Column("facts", JSON(none_as_null=True)),
    sqlite_autoincrement=True,
)
