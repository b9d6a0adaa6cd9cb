"""A PostgreSQL server for tests and benchmarks, and empty databases of it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text


class NoPostgres(Exception):
    """PostgreSQL is not installed, or cannot run here."""


def binaries() -> Path | None:
    """The newest PostgreSQL server installed."""
    found = [p.parent for p in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).parent)
    return max(found, default=None, key=lambda p: [int(s) for s in p.parts if s.isdigit()])


@contextmanager
def cluster() -> Iterator[str]:
    """URL of a PostgreSQL server of one's own, in the block."""
    bin = binaries()
    if bin is None:
        raise NoPostgres("PostgreSQL is not installed")
    as_root = os.geteuid() == 0
    if as_root and not shutil.which("runuser"):
        raise NoPostgres("PostgreSQL does not run as root, and runuser is not installed")
    user = ["runuser", "-u", "postgres", "--"] if as_root else []
    folder = Path(tempfile.mkdtemp(prefix="solera-pg-"))
    if as_root:
        shutil.chown(folder, "postgres")

    def call(*arguments: object) -> None:
        subprocess.run(
            [*user, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, cwd="/"
        )

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c fsync=off -k {folder}"
    try:
        call(bin / "initdb", "-D", data, "-U", "solera", "-A", "trust", "-E", "UTF8", "-N")
        control = (bin / "pg_ctl", "-D", data, "-w", "-l", folder / "log")
        call(*control, "-o", options, "start")
        try:
            yield f"postgresql+psycopg://solera@127.0.0.1:{port}/"
        finally:
            call(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_database(server: str) -> str:
    """URL of an empty database of a PostgreSQL server."""
    name = f"t{uuid.uuid4().hex}"
    admin = create_engine(server + "postgres", isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    return server + name
