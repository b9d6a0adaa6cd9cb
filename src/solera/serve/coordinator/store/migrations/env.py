"""Runs the migrations on the connection of a store, inside its transaction."""

from __future__ import annotations

from alembic import context

from solera.serve.coordinator.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
