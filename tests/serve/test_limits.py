"""Nobody stops the others: strangers, clients and drivers that ask for more than their share."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from solera.core.errors import UsageError
from solera.core.payload import encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from databases import new_database  # noqa: E402
from network import Network, Program, free_port, kill  # noqa: E402
from test_security import Hand, http  # noqa: E402

from solera.serve import audit, wire  # noqa: E402
from solera.serve.connection import CoordinatorError  # noqa: E402
from solera.serve.coordinator import clock as clocks  # noqa: E402
from solera.serve.coordinator.clock import Clock  # noqa: E402
from solera.serve.coordinator.quotas import Rates, TooMany, TooMuch, Uploads  # noqa: E402
from solera.serve.coordinator.refusals import MOST_KINDS, SECONDS, Refusals  # noqa: E402
from solera.serve.coordinator.sole import Sole  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.coordinator.supervisor import _facts  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402
from solera.serve.job_spec import parse_job  # noqa: E402

IMPATIENT = """
import sys
from solera.serve.coordinator import connections, middleware
from solera.serve.coordinator.run import serve
connections.HEAD_SECONDS, middleware._BODY_SECONDS, middleware._SLOWEST = 4.0, 4.0, 1e9
connections.MOST_STRANGERS = 60
folder, host, port, certificate, key = sys.argv[1:]
serve(folder, host=host, port=int(port), certificate=certificate, key=key, uploads=3 << 20)
"""


class Impatient(Network):
    """A coordinator that waits four seconds where others wait longer, and stores 3 MB unused."""

    def start(self):
        self.coordinator = Program(IMPATIENT, *self.place)
        self.wait()


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    here = Impatient(tmp_path_factory.mktemp("limits"))
    try:
        here.start()
        here.enrol("north")
        here.enrol("south")
        here.connect("always").engine.open_job()
        driver = here.driver()
        ask = {"task": "t", "version": 1, "payload": driver.upload(encode(1)), "round": 0}
        driver.request("PUT", "/v1/jobs/always/asks/0", json=ask | {"clients": [0, 1]})
        driver.close()
        yield here
    finally:
        here.close()


def plain(network):
    """A bare TLS connection."""
    context = ssl.create_default_context(cafile=network.ca)
    raw = socket.create_connection((network.host, network.port), 120)
    return context.wrap_socket(raw, server_hostname=network.host)


def head(method, path, size, **headers):
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {size}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def until_closed(connection, seconds=600):
    """What is said on a connection until the other side closes it."""
    connection.settimeout(seconds)
    said = b""
    try:
        while piece := connection.recv(1 << 16):
            said += piece
    except (ConnectionError, ssl.SSLError):
        pass
    return said


# --- bodies and connections ----------------------------------------------------------------------


def test_a_strangers_large_body_is_not_read(network):
    with closing(plain(network)) as stranger:
        stranger.sendall(head("POST", "/v1/blobs", 1 << 20, Authorization="Bearer no"))
        said = stranger.recv(1 << 16)
        assert b"401" in said.splitlines()[0], "before a byte of the body was sent"
    key = Identity.load(network.folder / "north").sign_key.hex()
    zeros = {"Solera-Time": f"{time.time():.3f}", "Solera-Nonce": "0" * 32,
             "Solera-Start": "0" * 32, "Solera-Digest": "0" * 64,
             "Solera-Signature": "0" * 128}  # fmt: skip
    with closing(plain(network)) as pretender:
        pretender.sendall(head("POST", "/v1/blobs", 1 << 20, **{"Solera-Key": key}, **zeros))
        assert b"401" in pretender.recv(1 << 16).splitlines()[0]


def test_a_body_that_does_not_come_ends_its_request(network):
    hand = Hand(network, "north")
    with closing(plain(network)) as small, closing(plain(network)) as large:
        for slow, size in ((small, 60_000), (large, 1 << 20)):
            signed = hand.headers("POST", "/v1/blobs", bytes(size))
            slow.sendall(head("POST", "/v1/blobs", size, **signed) + bytes(size // 2))
        for slow in (small, large):
            assert b"408" in until_closed(slow).splitlines()[0]


def test_a_connection_on_which_nothing_is_asked_is_closed(network):
    with (
        closing(plain(network)) as again,
        closing(plain(network)) as half,
        closing(plain(network)) as idle,
    ):
        again.sendall(head("GET", "/healthz", 0))
        half.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
        assert b"200" in again.recv(1 << 16).splitlines()[0]
        again.sendall(b"GET /he")
        for connection in (idle, half, again):
            until_closed(connection)


def test_many_connections_of_strangers_leave_room_for_others(network):
    crowd = []
    try:
        for _ in range(150):
            crowd.append(plain(network))
        assert Hand(network, "south").orders(wait=0)
    finally:
        for connection in crowd:
            connection.close()


# --- asking and storing too much -----------------------------------------------------------------


def test_a_client_that_asks_too_often_is_slowed_down_alone(network):
    hand, other = Hand(network, "south"), Hand(network, "north")
    stop, statuses = threading.Event(), []

    def flood():
        with http(network) as client:
            while not stop.is_set():
                path = "/v1/heartbeat"
                body = json.dumps({"head": [1, "ab" * 32]}).encode()
                signed = hand.headers("POST", path, body) | {"Content-Type": "application/json"}
                statuses.append(client.post(path, content=body, headers=signed).status_code)

    threads = [threading.Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        while statuses.count(429) < 5 and len(statuses) < 2000:
            time.sleep(0.05)
        assert other.orders(wait=0), "the others are served"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert 429 in statuses
    assert set(statuses) == {200, 429}


def test_refusals_are_counted_and_not_written_one_by_one(network):
    before = events(network)
    with http(network) as client:
        for _ in range(300):
            wrong = {"Authorization": "Bearer wrong"}
            assert client.get("/v1/federations/cardio", headers=wrong).status_code == 401
    wait_for(lambda: any("wrong token" in event.reason for event in events(network)))
    time.sleep(1.2)  # some looks of the supervisor
    assert len(events(network)) - len(before) <= 2
    assert all(event.facts["count"] >= 1 for event in events(network))


def events(network):
    path = network.folder / "coordinator" / "coordinator.sqlite"
    with Store(f"sqlite:///{path}") as store:
        return [e for e in store.events() if e.event == "refused"]


def test_uploads_that_nothing_uses_are_bounded(network):
    hand = Hand(network, "north")
    chance = np.random.default_rng(1)
    for _ in range(2):
        hand.connection.upload(chance.bytes(1 << 20))
    with pytest.raises(CoordinatorError, match="are not used"):
        hand.connection.upload(chance.bytes(2 << 20))
    other = Hand(network, "south")
    other.connection.upload(chance.bytes(1 << 20))
    driver = network.driver()
    with pytest.raises(CoordinatorError, match="are not used"):
        driver.upload(chance.bytes(4 << 20))


def test_a_client_that_is_asked_nothing_has_nothing_to_upload(network):
    network.enrol("idle")
    hand = Hand(network, "idle")
    with pytest.raises(CoordinatorError, match=r"is asked nothing.*403"):
        hand.connection.upload(b"something")


@pytest.mark.parametrize(
    "facts", [{"k" * 600_000: 1.0}, {"k" * 101: 1.0}, {str(i): 1.0 for i in range(101)}]
)
def test_notes_are_small(network, facts):
    with pytest.raises(CoordinatorError, match="422"):
        network.driver().request(
            "POST", "/v1/jobs/always/notes", json={"event": "round", "facts": facts}
        )


def test_an_event_with_too_many_facts_is_signed_by_its_hash(tmp_path):
    facts = {"payload": ["ab" * 32] * 20_000}
    event = wire.Event(7, "cardio", "j", None, "asked", "", 1.0, facts)
    log = audit.AuditLog(tmp_path / "log", Identity.create(tmp_path / "keys"))
    log.append("asked", **_facts(event))
    kept = log.last()
    assert (kept["event"], kept["job"]) == (7, "j")
    assert len(kept["sha256"]) == 64
    small = wire.Event(8, "cardio", "j", None, "asked", "", 1.0, {"seq": 3})
    assert _facts(small)["seq"] == 3


# --- the counters themselves ---------------------------------------------------------------------


def test_rates():
    now = [0.0]
    rates = Rates(10, 20, most=3, clock=lambda: now[0])
    for _ in range(20):
        rates.spend("a")
    with pytest.raises(TooMany):
        rates.spend("a")
    rates.spend("b", 20)
    now[0] = 1.0
    for _ in range(10):
        rates.spend("a")
    with pytest.raises(TooMany):
        rates.spend("a")
    for who in range(100):
        rates.spend(who)
    assert len(rates._left) == 3


def test_uploads():
    uploads = Uploads(100, blobs=3)
    uploads.add("a", "x", 60)
    uploads.add("a", "x", 90)
    with pytest.raises(TooMuch):
        uploads.add("a", "y", 20)
    uploads.add("b", "y", 20)
    assert ("a", "x") not in uploads
    uploads.finish("a", "x")
    uploads.finish("a", "never begun")
    assert ("a", "x") in uploads
    assert ("b", "x") not in uploads
    assert ("a", "never begun") not in uploads
    uploads.settle("a", "x", None)
    assert ("a", "x") not in uploads
    for name in "pqr":
        uploads.add("a", name, 1)
    with pytest.raises(TooMuch):
        uploads.add("a", "s", 1)


def test_refusals_are_bounded_in_kinds_and_time():
    now = [0.0]
    refusals = Refusals(clock=lambda: now[0])
    for i in range(10_000):
        refusals.count(f"kind {i % 500}")
    due = refusals.due()
    assert len(due) == MOST_KINDS + 1
    assert sum(count for _, count in due) == 10_000
    for _ in range(1000):
        refusals.count("kind 0")
        assert refusals.due() == []
    now[0] = SECONDS + 1
    assert refusals.due() == [("kind 0", 1000)]
    now[0] = 3 * SECONDS
    assert refusals.due() == []
    assert not refusals._kinds


# --- one coordinator, private, with a whole log --------------------------------------------------


def test_a_second_coordinator_does_not_start(network):
    second = subprocess.run(
        [sys.executable, "-c", IMPATIENT, *network.place[:2], str(free_port()), *network.place[3:]],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert second.returncode != 0
    assert f"already, process {network.coordinator.pid}" in second.stderr
    with http(network) as client:
        assert client.get("/readyz").status_code == 200, "the first one goes on"


HOLD = """
import sys
from pathlib import Path
from solera.serve.coordinator.sole import Sole
sole = Sole(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_folders_do_not_share_a_database(kind, tmp_path, request):
    if kind == "sqlite":
        database = f"sqlite:///{tmp_path / 'shared.sqlite'}"
    else:
        database = new_database(request.getfixturevalue("postgres"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "one"), database],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert first.stdout.readline() == "held\n"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("solera.serve.coordinator.sole._WAIT_SECONDS", 0.3)
            with pytest.raises(UsageError, match="already"):
                Sole(tmp_path / "two", database)
    finally:
        first.kill()
        first.wait()
        first.stdin.close()
        first.stdout.close()
    Sole(tmp_path / "two", database).close()


def test_the_coordinators_files_are_private(tmp_path):
    here = Network(tmp_path)
    folder = tmp_path / "coordinator"
    folder.mkdir(mode=0o755)
    (folder / "left.open").write_text("from an earlier version")
    (folder / "left.open").chmod(0o644)
    try:
        here.start()
        here.enrol("north")
        here.driver().upload(b"x" * 3_000_000)
        found = [folder, *folder.rglob("*")]
        assert len(found) > 8
        assert not [path for path in found if path.lstat().st_mode & 0o077]
    finally:
        here.close()


def new_job(network, name):
    driver = network.driver()
    spec = driver.upload(encode(name))
    new = wire.NewJob(name, "driven", spec, 0, "ana")
    try:
        return driver.call("POST", "/v1/federations/cardio/jobs", wire.StartedJob, new)
    finally:
        driver.close()


def test_a_cut_log_stops_new_jobs_and_says_why(tmp_path):
    here = Network(tmp_path)
    log = tmp_path / "coordinator" / "audit.log"
    try:
        here.start()
        here.enrol("north")
        new_job(here, "before")
        wait_for(lambda: b'"running"' in log.read_bytes())
        time.sleep(1.2)
        whole = log.read_bytes()
        log.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
        wait_for(lambda: refused(here, "cut"))
        assert here.driver().request("GET", "/v1/jobs/before").json()["state"] == "running"
        kill(here.coordinator)
        here.start()
        wait_for(lambda: refused(here, "cut-2"))
        kill(here.coordinator)
        for path in (log, log.with_name("audit.log.head")):
            path.rename(path.with_name(f"{path.name}.away"))
        here.start()
        wait_for(lambda: refused(here, "gone"), "both files are gone, the store remembers")
        kill(here.coordinator)
        log.write_bytes(whole)
        log.with_name("audit.log.head.away").rename(log.with_name("audit.log.head"))
        here.start()
        wait_for(lambda: not refused(here, "after"))
    finally:
        here.close()


def refused(network, name):
    try:
        new_job(network, name)
    except CoordinatorError as error:
        said = str(error)
    else:
        return False
    assert "no job can begin: nothing can be added to the signed log: " in said
    assert "status 409" in said
    return True


def wait_for(condition, why="", seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, why
        time.sleep(0.1)


# --- learners and time ---------------------------------------------------------------------------

WAITING = """
federation = "cardio"
clients = 5
[learner]
kind = "FedLinear"
"""


def learners(network):
    """Processes that run a learner for this coordinator."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"solera.serve.driver.managed" in words and network.url.encode() in words:
            found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc")
@pytest.mark.parametrize("when", ["at once", "later"])
def test_no_learner_survives_its_coordinator(tmp_path, when):
    here = Network(tmp_path)
    try:
        here.start()
        here.enrol("north")
        driver = here.driver()
        described = parse_job(WAITING, name="managed").describe(WAITING)
        new = wire.NewJob.of(described, id="managed", spec=driver.upload(described.to_bytes()))
        driver.request("POST", "/v1/federations/cardio/jobs", json=new)
        wait_for(lambda: learners(here))
        if when == "later":
            wait_for(lambda: driver.request("GET", "/v1/jobs/managed").json()["state"] == "waiting")
        kill(here.coordinator)
        wait_for(lambda: not learners(here), "a learner was left behind")
    finally:
        here.close()
        for pid in learners(here):
            os.kill(pid, signal.SIGKILL)


def test_a_job_has_a_deadline(network):
    job = network.driver().call("GET", "/v1/jobs/always", wire.Job)
    assert 6 * 86400 < job.deadline - time.time() < 8 * 86400


def test_a_clock_that_leaps_forward_is_not_believed_at_once():
    wall, steady = [1e9], [0.0]
    clock = Clock(1e9 - 60, wall=lambda: wall[0], steady=lambda: steady[0])

    def passed(seconds, leap=0.0):
        steady[0] += seconds
        wall[0] += seconds + leap
        return clock.believed()

    assert clock.believed()
    assert passed(10)
    assert passed(86400), "time that really passes is believed"
    assert passed(10, 5), "an adjustment is"
    assert not passed(1, 10 * 365 * 86400.0)
    assert not passed(clocks.DOUBT / 2)
    assert passed(1, -10 * 365 * 86400.0), "set right again"
    assert not passed(1, 3600.0)
    assert passed(clocks.DOUBT + 1), "an hour that stays is the time"
    late = Clock(1e9, wall=lambda: 2e9, steady=lambda: steady[0])
    assert not late.believed(), "nor what happened while it was away"
    steady[0] += clocks.DOUBT + 1


def test_a_leap_ends_no_job_and_no_ask(tmp_path, monkeypatch):
    from fastapi.testclient import TestClient

    from solera.serve.coordinator.run import coordinator_app, driver_token

    app = coordinator_app(tmp_path / "coordinator")
    token = {"Authorization": f"Bearer {driver_token(tmp_path / 'coordinator')}"}
    real = time.time
    with TestClient(app, headers=token) as client:
        coordinator = app.state.coordinator
        coordinator.store.add_federation("cardio")
        coordinator.store.enrol("cardio", "north", b"k", b"s", {})
        spec = client.post("/v1/blobs", content=encode(1)).json()["digest"]
        new = {"id": "j", "kind": "driven", "spec": spec, "seed": 0, "owner": "ana", "seconds": 60}
        assert client.post("/v1/federations/cardio/jobs", json=new).status_code == 200
        ask = {"task": "t", "version": 1, "payload": spec, "round": 0, "clients": [0]}
        client.put("/v1/jobs/j/asks/0", json=ask | {"seconds": 30})
        leap = [86400.0 * 400]
        monkeypatch.setattr(time, "time", lambda: real() + leap[0])
        monkeypatch.setattr(coordinator.clock, "_wall", time.time)
        told = client.get("/v1/jobs/j/asks/0/replies").json()
        assert told == {"complete": False, "replies": []}
        assert client.get("/v1/jobs/j").json()["state"] == "running"
        leap[0] = 0.0
        assert client.get("/v1/jobs/j").json()["state"] == "running"
        leap[0] = 120.0
        monkeypatch.setattr(clocks, "LEAP", 1000.0)
        assert client.get("/v1/jobs/j").json()["state"] == "expired", "what is over is over"
