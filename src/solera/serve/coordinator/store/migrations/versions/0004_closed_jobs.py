"""Closed jobs: their tables, and which policy a client has. Tables that are there stay."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Text, inspect

from solera.serve.coordinator.store.tables import metadata

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    metadata.create_all(op.get_bind())
    if "policy" not in {column["name"] for column in inspect(op.get_bind()).get_columns("clients")}:
        op.add_column("clients", Column("policy", Text))
