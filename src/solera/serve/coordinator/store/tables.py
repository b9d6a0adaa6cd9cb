"""The tables of the coordinator's database, and the rows it hands out.

Times are seconds since 1970, UTC. A digest names a blob; a row never holds a payload itself.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

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

from solera.serve.wire import Answer, Call, Event, Job, Message, Model

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

Role = Literal["viewer", "researcher", "administrator"]
"""What a person or a program may do: look; start and cancel jobs; invite, revoke, make accounts."""

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

    ``seal_signature`` is its own, over the federation's name and ``seal_key``.

    ``doing`` is the task it works on, ``head`` the line number and hash at the end of its audit
    log, ``version`` that of the Solera it runs, ``policy`` the name of its policy, as it said last.
    """

    federation: str
    id: int
    name: str
    sign_key: bytes
    seal_key: bytes
    seal_signature: bytes
    tasks: dict[str, int]
    enrolled: float
    seen: float | None = None
    revoked: float | None = None
    reason: str = ""
    doing: str | None = None
    head: list[Any] | None = None
    version: str | None = None
    policy: str | None = None


class AccountRow(Message):
    """A person who may look at the coordinator's pages; ``federation`` None means all of them."""

    name: str
    password: str
    role: Role
    federation: str | None
    created: float


class SessionRow(Message):
    """A person who is signed in; ``csrf`` is what their forms must show."""

    token_hash: bytes
    account: str
    csrf: str
    expires: float


class TokenRow(Message):
    """What a program shows instead of a person's password."""

    token_hash: bytes
    name: str
    role: Role
    federation: str | None
    created: float
    expires: float


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
# A table has the columns of its rows; what a row does not say, a key or a reference, is added.

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)


_TYPES: dict[Any, Any] = {
    str: Text,
    Literal: Text,
    int: BigInteger,
    float: Double,
    bool: Boolean,
    bytes: LargeBinary,
    list: JSON(none_as_null=True),
    dict: JSON(none_as_null=True),
}


def columns_of(row: type[Message], *but: str) -> list[Column[Any]]:
    """The columns of a table of such rows, ``but`` those that the table declares itself."""
    columns = []
    for name, hint in get_type_hints(row).items():
        nullable = NoneType in get_args(hint)
        kind = get_args(hint)[0] if nullable else hint
        if name not in but:
            columns.append(Column(name, _TYPES[get_origin(kind) or kind], nullable=nullable))
    return columns


def required(*parts: Any, **options: Any) -> Column[Any]:
    return Column(*parts, nullable=False, **options)


def key(name: str, kind: Any = BigInteger) -> Column[Any]:
    """A part of the primary key, which the store gives itself."""
    return Column(name, kind, primary_key=True, autoincrement=False)


federations = Table(
    "federations",
    metadata,
    key("name", Text),
    required("next_client", BigInteger),
    required("created", Double),
)

invites = Table(
    "invites",
    metadata,
    key("token_hash", LargeBinary),
    required("federation", ForeignKey("federations.name"), index=True),
    *columns_of(InviteRow, "token_hash", "federation"),
)

clients = Table(
    "clients",
    metadata,
    key("federation", ForeignKey("federations.name")),
    key("id"),
    *columns_of(ClientRow, "federation", "id"),
    UniqueConstraint("sign_key"),
    UniqueConstraint("federation", "name"),
)

jobs = Table(
    "jobs",
    metadata,
    key("id", Text),
    required("federation", ForeignKey("federations.name"), index=True),
    *columns_of(Job, "id", "federation"),
)

approvals = Table(
    "approvals",
    metadata,
    key("job", ForeignKey("jobs.id")),
    key("client"),
    required("person", Text),
    required("hash", Text),
    required("time", Double),
)

asks = Table(
    "asks",
    metadata,
    key("job", ForeignKey("jobs.id")),
    key("seq"),
    *columns_of(AskRow, "job", "seq"),
)

deliveries = Table(
    "deliveries",
    metadata,
    key("job", Text),
    key("seq"),
    key("client"),
    Column("payload", Text),
    *columns_of(Answer),
    Column("signature", LargeBinary),
    Column("time", Double),
    required("pruned", Boolean),
    ForeignKeyConstraint(["job", "seq"], ["asks.job", "asks.seq"]),
    Index("ix_deliveries_client", "client", "status"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    key("job", ForeignKey("jobs.id")),
    key("first"),
    required("seq", BigInteger),
    required("digest", Text),
    required("time", Double),
)

questions = Table(
    "questions",
    metadata,
    key("job", ForeignKey("jobs.id")),
    required("first", BigInteger),
    *columns_of(Call),
)

models = Table(
    "models",
    metadata,
    key("job", ForeignKey("jobs.id")),
    *columns_of(Model, "job"),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    *columns_of(Event, "id"),
    Index(None, "federation", "client"),
    Index(None, "job"),
    sqlite_autoincrement=True,
)

signed_log = Table(
    "signed_log",
    metadata,
    key("name", Text),
    required("line", BigInteger),
    required("hash", Text),
)

accounts = Table(
    "accounts",
    metadata,
    key("name", Text),
    *columns_of(AccountRow, "name"),
)

sessions = Table(
    "sessions",
    metadata,
    key("token_hash", LargeBinary),
    required("account", ForeignKey("accounts.name"), index=True),
    *columns_of(SessionRow, "token_hash", "account"),
)

tokens = Table(
    "tokens",
    metadata,
    key("token_hash", LargeBinary),
    *columns_of(TokenRow, "token_hash"),
    UniqueConstraint("name"),
)

REPLY_COLUMNS = [column for column in deliveries.c if column.name != "payload"]
"""Those of a :class:`ReplyRow`."""
