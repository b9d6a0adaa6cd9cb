"""Databases for the tests (SQLite always, PostgreSQL where it is installed) and a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import which

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def postgres():
    """URL of a private cluster that lives as long as the tests."""
    from databases import NoPostgres, cluster

    try:
        with cluster() as url:
            yield url
    except NoPostgres as missing:
        pytest.skip(str(missing))


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


@pytest.fixture(scope="module")
def browser():
    """A Chromium for the tests of one file.

    Not for longer: while it is there, an event loop of Playwright's runs in this thread, in which
    tests of other files start loops of their own.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = which("chromium") or which("chromium-browser") or which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is here")
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = started.chromium.launch(executable_path=chromium, args=options, timeout=300_000)
        yield browser
        browser.close()
