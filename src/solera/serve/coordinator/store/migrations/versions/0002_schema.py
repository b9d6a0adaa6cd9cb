"""The schema of the first release. Nothing was released before, so that it is in one piece."""

from __future__ import annotations

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


def upgrade() -> None:
    op.create_table(
        "federations",
        Column("name", Text, primary_key=True),
        Column("next_client", BigInteger, nullable=False),
        Column("created", Double, nullable=False),
    )
    op.create_table(
        "invites",
        Column("token_hash", LargeBinary, primary_key=True),
        Column("federation", Text, ForeignKey("federations.name"), nullable=False),
        Column("name", Text, nullable=False),
        Column("expires", Double, nullable=False),
        Column("used", Double),
    )
    op.create_index("ix_invites_federation", "invites", ["federation"])
    op.create_table(
        "clients",
        Column("federation", Text, ForeignKey("federations.name"), primary_key=True),
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
        Column("head", JSON),
        UniqueConstraint("federation", "name"),
    )
    op.create_table(
        "jobs",
        Column("id", Text, primary_key=True),
        Column("federation", Text, ForeignKey("federations.name"), nullable=False),
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
        Column("clients", JSON),
    )
    op.create_index("ix_jobs_federation", "jobs", ["federation"])
    op.create_table(
        "approvals",
        Column("job", Text, ForeignKey("jobs.id"), primary_key=True),
        Column("client", BigInteger, primary_key=True, autoincrement=False),
        Column("person", Text, nullable=False),
        Column("hash", Text, nullable=False),
        Column("time", Double, nullable=False),
    )
    op.create_table(
        "asks",
        Column("job", Text, ForeignKey("jobs.id"), primary_key=True),
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
    op.create_table(
        "deliveries",
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
    )
    op.create_index("ix_deliveries_client", "deliveries", ["client", "status"])
    op.create_table(
        "checkpoints",
        Column("job", Text, ForeignKey("jobs.id"), primary_key=True),
        Column("first", BigInteger, primary_key=True, autoincrement=False),
        Column("seq", BigInteger, nullable=False),
        Column("digest", Text, nullable=False),
        Column("time", Double, nullable=False),
    )
    op.create_table(
        "questions",
        Column("job", Text, ForeignKey("jobs.id"), primary_key=True),
        Column("first", BigInteger, nullable=False),
        Column("task", Text, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("payload", Text, nullable=False),
        Column("prepare", Text),
    )
    op.create_table(
        "models",
        Column("job", Text, ForeignKey("jobs.id"), primary_key=True),
        Column("version", BigInteger, nullable=False),
        Column("digest", Text, nullable=False),
        Column("contributions", JSON, nullable=False),
        Column("time", Double, nullable=False),
    )
    op.create_table(
        "events",
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        Column("federation", Text, nullable=False),
        Column("job", Text),
        Column("client", BigInteger),
        Column("event", Text, nullable=False),
        Column("reason", Text, nullable=False),
        Column("time", Double, nullable=False),
        Column("facts", JSON),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_federation", "events", ["federation"])
    op.create_index("ix_events_job", "events", ["job"])
