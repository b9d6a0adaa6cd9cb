"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("federation", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=True),
        sa.Column("client", sa.BigInteger(), nullable=True),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_events_federation"), "events", ["federation"], unique=False)
    op.create_index(op.f("ix_events_job"), "events", ["job"], unique=False)
    op.create_table(
        "federations",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("next_client", sa.BigInteger(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_federations")),
    )
    op.create_table(
        "clients",
        sa.Column("federation", sa.Text(), nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sign_key", sa.LargeBinary(), nullable=False),
        sa.Column("seal_key", sa.LargeBinary(), nullable=False),
        sa.Column("tasks", sa.JSON(), nullable=False),
        sa.Column("enrolled", sa.Double(), nullable=False),
        sa.Column("seen", sa.Double(), nullable=True),
        sa.Column("revoked", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation"], ["federations.name"], name=op.f("fk_clients_federation")
        ),
        sa.PrimaryKeyConstraint("federation", "id", name=op.f("pk_clients")),
        sa.UniqueConstraint("federation", "name", name=op.f("uq_clients_federation")),
        sa.UniqueConstraint("sign_key", name=op.f("uq_clients_sign_key")),
    )
    op.create_table(
        "invites",
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("federation", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.Column("used", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["federation"], ["federations.name"], name=op.f("fk_invites_federation")
        ),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_invites")),
    )
    op.create_index(op.f("ix_invites_federation"), "invites", ["federation"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("federation", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("changed", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["federation"], ["federations.name"], name=op.f("fk_jobs_federation")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_federation"), "jobs", ["federation"], unique=False)
    op.create_table(
        "approvals",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("client", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_approvals_job")),
        sa.PrimaryKeyConstraint("job", "client", name=op.f("pk_approvals")),
    )
    op.create_table(
        "asks",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("prepare", sa.Text(), nullable=True),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.Column("clients", sa.JSON(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("pruned", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_asks_job")),
        sa.PrimaryKeyConstraint("job", "seq", name=op.f("pk_asks")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_checkpoints_job")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "deliveries",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("client", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=True),
        sa.Column("time", sa.Double(), nullable=True),
        sa.Column("pruned", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job", "seq"], ["asks.job", "asks.seq"], name=op.f("fk_deliveries_job")
        ),
        sa.PrimaryKeyConstraint("job", "seq", "client", name=op.f("pk_deliveries")),
    )
    op.create_index("ix_deliveries_client", "deliveries", ["client", "status"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_deliveries_client", table_name="deliveries")
    op.drop_table("deliveries")
    op.drop_table("checkpoints")
    op.drop_table("asks")
    op.drop_table("approvals")
    op.drop_index(op.f("ix_jobs_federation"), table_name="jobs")
    op.drop_table("jobs")
    op.drop_index(op.f("ix_invites_federation"), table_name="invites")
    op.drop_table("invites")
    op.drop_table("clients")
    op.drop_table("federations")
    op.drop_index(op.f("ix_events_job"), table_name="events")
    op.drop_index(op.f("ix_events_federation"), table_name="events")
    op.drop_table("events")
