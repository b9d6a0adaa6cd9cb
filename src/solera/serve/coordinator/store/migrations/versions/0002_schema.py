"""The schema of the first release. Nothing was released before, so that it is in one piece."""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    Text,
    UniqueConstraint,
)

revision = "0002"
down_revision = None


def _required(*parts: Any) -> Column[Any]:
    return Column(*parts, nullable=False)


def upgrade() -> None:
    op.create_table(
        "federations",
        Column("name", Text, primary_key=True),
        _required("next_client", BigInteger),
        _required("created", Double),
    )
    op.create_table(
        "invites",
        Column("token_hash", LargeBinary, primary_key=True),
        _required("federation", Text, ForeignKey("federations.name")),
        _required("name", Text),
        _required("expires", Double),
        Column("used", Double),
    )
    op.create_index("ix_invites_federation", "invites", ["federation"])
    op.create_table(
        "clients",
        Column("federation", Text, ForeignKey("federations.name"), primary_key=True),
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
        Column("head", JSON),
        UniqueConstraint("federation", "name"),
    )
    op.create_table(
        "jobs",
        Column("id", Text, primary_key=True),
        _required("federation", Text, ForeignKey("federations.name")),
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
        Column("clients", JSON),
    )
    op.create_index("ix_jobs_federation", "jobs", ["federation"])
    op.create_table(
        "approvals",
        Column("job", Text, ForeignKey("jobs.id"), primary_key=True),
        Column("client", BigInteger, primary_key=True, autoincrement=False),
        _required("person", Text),
        _required("hash", Text),
        _required("time", Double),
    )
    op.create_table(
        "asks",
        Column("job", Text, ForeignKey("jobs.id"), primary_key=True),
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
    op.create_table(
        "deliveries",
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
    )
    op.create_index("ix_deliveries_client", "deliveries", ["client", "status"])
    op.create_table(
        "checkpoints",
        Column("job", Text, ForeignKey("jobs.id"), primary_key=True),
        Column("first", BigInteger, primary_key=True, autoincrement=False),
        _required("seq", BigInteger),
        _required("digest", Text),
        _required("time", Double),
    )
    op.create_table(
        "questions",
        Column("job", Text, ForeignKey("jobs.id"), primary_key=True),
        _required("first", BigInteger),
        _required("task", Text),
        _required("version", BigInteger),
        _required("payload", Text),
        Column("prepare", Text),
    )
    op.create_table(
        "models",
        Column("job", Text, ForeignKey("jobs.id"), primary_key=True),
        _required("version", BigInteger),
        _required("digest", Text),
        _required("contributions", JSON),
        _required("time", Double),
    )
    op.create_table(
        "events",
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        _required("federation", Text),
        Column("job", Text),
        Column("client", BigInteger),
        _required("event", Text),
        _required("reason", Text),
        _required("time", Double),
        Column("facts", JSON),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_federation", "events", ["federation"])
    op.create_index("ix_events_job", "events", ["job"])
