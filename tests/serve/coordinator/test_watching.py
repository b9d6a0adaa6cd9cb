"""What those who run a coordinator see of it: numbers for Prometheus, and the log."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time

import pytest

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "prometheus_client"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

import httpx  # noqa: E402
from network import free_port  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402
from store_rows import NOW, add_ask, reply  # noqa: E402

from solera.serve.coordinator import logs  # noqa: E402
from solera.serve.coordinator.app import create_app  # noqa: E402
from solera.serve.coordinator.store.blobs import Blobs  # noqa: E402
from solera.serve.identity import token_hash  # noqa: E402

TOKEN = "a-secret-token"
DRIVER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def app(store, tmp_path):
    return create_app(store, Blobs(tmp_path / "blobs"), token_hash(TOKEN))


def talk(app, *requests):
    """The answers to some requests, as (method, path, options), one after the other."""

    async def send():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as client:
            return [await client.request(m, path, **options) for m, path, options in requests]

    return asyncio.run(send())


def numbers(app):
    """Every sample of /metrics, by name and labels."""
    (answer,) = talk(app, ("GET", "/metrics", {}))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (s.name, *sorted(s.labels.values())): s.value
        for family in text_string_to_metric_families(answer.text)
        for s in family.samples
    }


def test_metrics_count_what_happens(app, store, job):
    add_ask(store)
    reply(store, 0)
    reply(store, 1, status="refused", digest=None, size=0, reason="policy")
    store.seen_all({("cardio", 0): time.time()})
    store.revoke("cardio", 3, "gone")
    body = b"x" * 1000
    talk(
        app,
        ("POST", "/v1/blobs", {"content": body, "headers": DRIVER}),
        ("GET", "/v1/jobs/j", {"headers": DRIVER}),
        ("GET", "/v1/jobs/j", {}),
        ("GET", "/v1/jobs/none", {"headers": DRIVER}),
    )
    found = numbers(app)
    of_job = "/v1/jobs/{job}"
    assert found["solera_requests_total", "/v1/blobs", "200", "POST"] == 1
    assert {s: found["solera_requests_total", of_job, s, "GET"] for s in ("200", "401", "404")} == {
        "200": 1, "401": 1, "404": 1,
    }  # fmt: skip
    assert found["solera_request_seconds_count", of_job, "GET"] == 3
    assert found["solera_received_bytes_total",] == len(body)
    assert found["solera_sent_bytes_total",] > 100
    assert (found["solera_clients",], found["solera_clients_seen",]) == (3, 1)
    assert found["solera_jobs", "running"] == 1
    assert found["solera_asks_open",] == 1
    assert (found["solera_replies", "ok"], found["solera_replies", "refused"]) == (1, 1)
    assert found["solera_blob_bytes",] == len(body)
    assert found["solera_long_polls",] == 0
    assert found["process_resident_memory_bytes",] > 1 << 20
    store.fail_open(job, 0, "late", "", NOW)
    assert numbers(app)["solera_asks_open",] == 1, "the database is not asked every time"


def test_a_long_poll_is_counted_while_it_waits(app, store, job):
    add_ask(store)

    async def poll():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as client:
            path = f"/v1/jobs/{job}/asks/0/replies?wait=20"
            waiting = asyncio.create_task(client.get(path, headers=DRIVER))
            open_polls = 0.0
            while not open_polls:
                text = (await client.get("/metrics")).text
                open_polls = float(re.search(r"^solera_long_polls (.*)$", text, re.M)[1])
            reply(store, 0, status="refused", digest=None, size=0)
            app.state.coordinator.notifier.notify()
            return open_polls, (await waiting).json()

    open_polls, answer = asyncio.run(asyncio.wait_for(poll(), 300))
    assert open_polls == 1
    assert [row["client"] for row in answer["replies"]] == [0]


def test_strangers_cannot_make_labels(app):
    before = len(numbers(app))
    odd = [("GET", f"/no/{i}", {}) for i in range(30)]
    odd += [("GET", f"/v1/jobs/j{i}", {}) for i in range(30)]
    odd += [(f"ODD{i}", "/v1/join", {"content": b""}) for i in range(30)]
    odd += [("POST", "/v1/join", {"content": bytes(9 << 20)})]
    talk(app, *odd)
    assert len(numbers(app)) < before + 80
    assert not [key for key in numbers(app) if "ODD" in str(key) or "/no" in str(key)]


# --- the log -------------------------------------------------------------------------------------


@pytest.fixture
def lines():
    """What is logged, as JSON."""
    found = []

    class Keep(logging.Handler):
        def emit(self, record):
            found.append(json.loads(logs.JsonLines().format(record)))

    handler = Keep()
    logs.requests.addHandler(handler)
    level = logs.requests.level
    logs._lines.clear()  # requests of other tests count, too
    logs.requests.setLevel(logging.INFO)
    yield found
    logs.requests.removeHandler(handler)
    logs.requests.setLevel(level)


def test_an_error_is_logged_with_its_traceback_and_answered(app, store, lines, monkeypatch):
    def broken():
        raise RuntimeError("the disk is gone")

    monkeypatch.setattr(store, "federations", broken)
    (answer,) = talk(app, ("GET", "/readyz", {}))
    assert answer.status_code == 500
    assert "disk" not in answer.text
    (line,) = lines
    assert (line["level"], line["route"], line["status"]) == ("error", "/readyz", 500)
    assert "RuntimeError: the disk is gone" in line["traceback"]
    assert "in broken" in line["traceback"]


def test_the_database_does_not_tell_values(store):
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    with pytest.raises(SQLAlchemyError) as error, store._write() as connection:
        connection.execute(text("INSERT INTO nothing VALUES (:value)"), {"value": "secret"})
    assert "secret" not in str(error.value)


def test_a_line_cannot_be_forged():
    record = logging.LogRecord("solera", logging.INFO, "", 1, "a\n2026 info solera b", None, None)
    assert len(logs.TextLines().format(record).splitlines()) == 1
    assert len(logs.JsonLines().format(record).splitlines()) == 1


@pytest.mark.parametrize("style", ["json", "text"])
def test_the_log_of_a_running_coordinator(tmp_path, style):
    port, folder = free_port(), tmp_path / "coordinator"
    command = [sys.executable, "-c", "from solera.cli.app import main; main()", "serve"]
    command += ["--folder", str(folder), "--port", str(port), "--log-format", style]
    path = tmp_path / "log"
    with path.open("wb") as file:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
            for _ in range(3000):
                try:
                    client.get("/healthz?password=hidden-in-a-query")
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            token = (folder / "driver.token").read_text()
            driver = {"Authorization": f"Bearer {token}"}
            new = {"json": {"name": "north"}, "headers": driver}
            invite = client.post("/v1/federations/cardio/invites", **new).json()["token"]
            client.get("/v1/federations/cardio", headers={"Authorization": "Bearer guessed-token"})
            join = {"token": invite, "sign_key": "0" * 64, "seal_key": "0" * 64, "tasks": {}}
            assert 400 <= client.post("/v1/join", json=join).status_code < 500
            client.get("/secret-path-of-a-stranger", headers={"Solera-Key": "a-secret-header"})
    finally:
        os.kill(process.pid, signal.SIGINT)
        process.wait(600)
    text = path.read_text()
    secrets = [token, invite, invite.rpartition("/")[2], "guessed-token", "a-secret-header"]
    for secret in (*secrets, "hidden-in-a-query", "secret-path-of-a-stranger", "0" * 64):
        assert secret not in text
    if style == "text":
        assert re.search(r"method=GET route=/healthz status=200 ms=[\d.]+ who=-", text)
        assert "route=none status=404" in text
        return
    said = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    requests = [{k: line[k] for k in logs.FIELDS} for line in said if "route" in line]
    made = [(r["method"], r["route"], r["status"], r["who"]) for r in requests]
    assert ("POST", "/v1/federations/{federation}/invites", 200, "driver") in made
    assert ("GET", "/v1/federations/{federation}", 401, "-") in made
    assert ("GET", "none", 404, "-") in made
    assert all(r["bytes_out"] > 0 for r in requests)
    assert all(r["ms"] >= 0 for r in requests)
