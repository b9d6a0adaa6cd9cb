"""Databases for the tests: SQLite always, PostgreSQL where it is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def binaries() -> Path | None:
    """The newest PostgreSQL server installed."""
    found = [p.parent for p in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).parent)
    return max(found, default=None, key=lambda p: [int(s) for s in p.parts if s.isdigit()])


@pytest.fixture(scope="session")
def postgres():
    """URL of a private cluster that lives as long as the tests."""
    bin = binaries()
    if bin is None:
        pytest.skip("PostgreSQL is not installed")
    as_root = os.geteuid() == 0
    if as_root and not shutil.which("runuser"):
        pytest.skip("PostgreSQL does not run as root, and runuser is not installed")
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
    options = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder}"
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


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    from databases import new_database

    return new_database(request.getfixturevalue("postgres"))


@pytest.fixture
def store(url):
    from solera.serve.coordinator.store.store import Store

    with Store(url) as store:
        store.add_federation("cardio")
        yield store


@pytest.fixture
def job(store):
    """A running job of a federation of four clients."""
    from store_rows import NOW, add_job, enrol

    enrol(store, 4)
    add_job(store)
    store.set_job_state("j", "running", "", NOW)
    return "j"
