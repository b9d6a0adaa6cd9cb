"""Managed and standing jobs: who takes part, a checkpoint per loop, questions, models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("clients", sa.JSON(), nullable=True))
    op.add_column("clients", sa.Column("doing", sa.Text(), nullable=True))
    op.add_column("clients", sa.Column("head", sa.JSON(), nullable=True))
    op.add_column("events", sa.Column("facts", sa.JSON(), nullable=True))
    op.drop_table("checkpoints")  # earlier versions never wrote one
    op.create_table(
        "checkpoints",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("first", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_checkpoints_job")),
        sa.PrimaryKeyConstraint("job", "first", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "questions",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("prepare", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_questions_job")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_questions")),
    )
    op.create_table(
        "models",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("contributions", sa.JSON(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_models_job")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_models")),
    )


def downgrade() -> None:
    op.drop_table("models")
    op.drop_table("questions")
    op.drop_table("checkpoints")
    op.create_table(
        "checkpoints",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_checkpoints_job")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_checkpoints")),
    )
    for table, column in (
        ("events", "facts"),
        ("clients", "head"),
        ("clients", "doing"),
        ("jobs", "clients"),
    ):
        with op.batch_alter_table(table) as change:
            change.drop_column(column)
