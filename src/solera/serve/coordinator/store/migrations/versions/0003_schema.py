"""The schema of the first release: the tables as they are declared.

Nothing was released before. The first change after a release begins by writing out here what the
tables were until then.
"""

from __future__ import annotations

from alembic import op

from solera.serve.coordinator.store.tables import metadata

revision = "0003"
down_revision = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
