"""Empty databases of a PostgreSQL server."""

from __future__ import annotations

import uuid

from sqlalchemy import create_engine, text


def new_database(server: str) -> str:
    """URL of an empty database of a PostgreSQL server."""
    name = f"t{uuid.uuid4().hex}"
    admin = create_engine(server + "postgres", isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    return server + name
