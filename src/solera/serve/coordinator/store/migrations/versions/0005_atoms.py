"""Atoms of epochs. Those of before have none: their owners sign anew."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, LargeBinary, inspect

from solera.serve.coordinator.store.epoch_tables import drafts

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    known = {column["name"] for column in inspect(op.get_bind()).get_columns("epoch_drafts")}
    if "atoms" not in known:
        op.add_column("epoch_drafts", Column("atoms", LargeBinary))
    op.execute(drafts.update().values(complete=None))
