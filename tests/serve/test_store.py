"""The store keeps what it acknowledged, once, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from solera.core.errors import SoleraError, UsageError
from solera.serve.blobs import Blobs
from solera.serve.store import Conflict, Denied, NotFound, Store
from solera.serve.tables import NEXT, metadata

NOW = 1_800_000_000.0


def digest(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


# --- databases -----------------------------------------------------------------------------------


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
    server = request.getfixturevalue("postgres")
    name = f"t{uuid.uuid4().hex}"
    admin = create_engine(server + "postgres", isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    return server + name


@pytest.fixture
def store(url):
    with Store(url) as store:
        store.add_federation("cardio")
        yield store


@pytest.fixture
def job(store):
    """A running job of a federation of four clients."""
    enrol(store, 4)
    add_job(store)
    store.set_job_state("j", "running", "", NOW)
    return "j"


def enrol(store, count, federation="cardio"):
    for i in range(count):
        key = f"{federation} {i}".encode()
        store.enrol(federation, f"site {i}", key, key + b" seal", {"data.describe": 1})


def add_job(store, id="j", federation="cardio", **other):
    values = {"kind": "driven", "spec": digest("spec"), "hash": "h", "seed": 7, "owner": "ana"}
    return store.add_job(id, federation, **(values | {"deadline": None, "now": NOW} | other))


def add_ask(store, seq=0, **other):
    values = {"task": "heonn.fit", "version": 1, "payload": digest("model"), "prepare": None}
    values |= {"round": 0, "deadline": NOW + 60, "clients": [0, 1, 2], "now": NOW + seq}
    return store.add_ask("j", seq, **(values | other))


def reply(store, client, seq=0, **other):
    values = {"status": "ok", "digest": digest((seq, client)), "size": 10, "reason": ""}
    return store.add_reply(
        "j", seq, client, **(values | {"signature": b"s", "now": NOW + 9} | other)
    )


# --- schema --------------------------------------------------------------------------------------


def test_the_migrated_schema_is_the_declared_one(store, url):
    store.migrate()
    engine = create_engine(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert set(inspect(connection).get_table_names()) == {*metadata.tables, "alembic_version"}
    engine.dispose()


def test_a_newer_database_is_left_alone(store, url):
    with store._write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(UsageError, match="newer Solera"):
        Store(url)


def test_several_processes_may_open_a_new_database(url):
    with ThreadPoolExecutor(4) as pool:
        for opened in pool.map(Store, [url] * 4):
            opened.add_federation("cardio")
            opened.close()


def test_sqlite_is_durable(tmp_path):
    with Store(f"sqlite:///{tmp_path / 's.db'}") as store, store._read() as connection:
        wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30000}
        for name, value in wanted.items():
            assert connection.execute(text(f"PRAGMA {name}")).scalar() == value


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://u:secret@h/d"])
def test_other_databases_are_refused(url):
    with pytest.raises(UsageError, match="sqlite:///path") as error:
        Store(url)
    assert "secret" not in str(error.value)


# --- members -------------------------------------------------------------------------------------


def test_an_invite_works_once(store):
    store.add_invite("cardio", "north", b"t", NOW + 10)
    store.add_invite("cardio", "south", b"u", NOW + 10)
    assert store.use_invite(b"t", NOW).name == "north"
    for token, now, why in [(b"t", NOW, "used"), (b"u", NOW + 10, "expired"), (b"?", NOW, "no su")]:
        with pytest.raises(Denied, match=why):
            store.use_invite(token, now)
    with pytest.raises(Conflict):
        store.add_invite("cardio", "west", b"t", NOW)
    with pytest.raises(NotFound, match="'cardoi'"):
        store.add_invite("cardoi", "west", b"v", NOW)


def test_only_one_of_many_uses_an_invite(store):
    store.add_invite("cardio", "north", b"t", NOW)

    def use(_: int) -> bool:
        try:
            return bool(store.use_invite(b"t", NOW - 1))
        except Denied:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(use, range(16))) == 1


def test_client_numbers_count_up_and_are_never_reused(store):
    with ThreadPoolExecutor(8) as pool:
        keys = [f"key {i}".encode() for i in range(20)]
        made = list(pool.map(lambda k: store.enrol("cardio", k.decode(), k, k, {"t": 1}), keys))
    assert sorted(c.id for c in made) == list(range(20))
    assert store.clients("cardio") == sorted(made, key=lambda c: c.id)
    store.forget_client("cardio", 19)
    assert store.enrol("cardio", "new", b"new", b"new", {}).id == 20
    with pytest.raises(NotFound):
        store.client("cardio", 19)


def test_enrolling_again_is_harmless_and_stealing_a_name_is_not(store):
    store.add_invite("cardio", "north", b"t", 4e9)
    first = store.enrol("cardio", "north", b"k", b"s", {"t": 1}, token_hash=b"t")
    assert store.enrol("cardio", "north", b"k", b"s", {"t": 1}, token_hash=b"t") == first
    assert store.client_by_key(b"k") == first
    assert store.client_by_key(b"other") is None
    for name, sign, seal in [("north", b"x", b"s"), ("north", b"k", b"x"), ("south", b"k", b"s")]:
        with pytest.raises(Conflict):
            store.enrol("cardio", name, sign, seal, {})
    store.add_invite("cardio", "south", b"u", 4e9)
    with pytest.raises(Denied, match="'south'"):
        store.enrol("cardio", "west", b"w", b"w", {}, token_hash=b"u")
    assert store.use_invite(b"u", NOW).used == NOW
    store.revoke("cardio", first.id, "lost laptop")
    with pytest.raises(Denied, match="lost laptop"):
        store.enrol("cardio", "north", b"k", b"s", {})
    assert len(store.clients("cardio")) == 1


def test_a_client_is_seen_with_its_tasks(store):
    enrol(store, 1)
    store.seen("cardio", 0, NOW)
    store.seen("cardio", 0, NOW + 1, {"t": 2})
    assert (store.client("cardio", 0).seen, store.client("cardio", 0).tasks) == (NOW + 1, {"t": 2})
    with pytest.raises(NotFound):
        store.seen("cardio", 1, NOW)


def test_revoking_takes_effect_at_once(store, job):
    add_ask(store)
    reply(store, 0)
    assert store.revoke("cardio", 1, "stolen key").revoked
    assert store.pending("cardio", 1, 10) == []
    assert store.open_deliveries(job, 0) == [2]
    with pytest.raises(Denied, match="stolen key"):
        reply(store, 1)
    add_ask(store, 1)
    assert [(r.client, r.status) for r in store.replies(job, 1)] == [(1, "failed")]


# --- jobs ----------------------------------------------------------------------------------------


def test_a_job_is_added_once(store):
    first = add_job(store)
    assert (first.state, first.created) == ("created", NOW)
    assert add_job(store, now=NOW + 5) == first == store.job("j")
    for change in ({"seed": 8}, {"hash": "x"}, {"spec": digest("x")}, {"owner": "eve"}):
        with pytest.raises(Conflict, match=next(iter(change))):
            add_job(store, **change)
    with pytest.raises(UsageError, match="kind"):
        add_job(store, "k", kind="odd")
    with pytest.raises(UsageError, match="64 hexadecimal"):
        add_job(store, "k", spec="../x")
    with pytest.raises(UsageError, match="does not fit"):
        add_job(store, "k", seed=1 << 80)
    with pytest.raises(NotFound):
        add_job(store, "k", federation="other")
    assert store.jobs() == store.jobs("cardio") == [first]
    assert store.jobs("other") == []


def test_the_state_machine_has_no_other_ways(store):
    ways = {"created": [], "waiting": ["waiting"], "running": ["running"]}
    for number, state in enumerate(NEXT):
        path = ways.get(state, ["running", state])
        for target in NEXT:
            id = f"{number} {target}"
            add_job(store, id)
            for step in path:
                store.set_job_state(id, step, "", NOW)
            if target == state or target in NEXT[state]:
                assert store.set_job_state(id, target, "why", NOW + 1).state == target
            else:
                with pytest.raises(Conflict, match=f"is {state} and cannot become {target}"):
                    store.set_job_state(id, target, "why", NOW + 1)
                assert store.job(id).state == state
    with pytest.raises(NotFound):
        store.set_job_state("none", "running", "", NOW)


def test_an_approval_is_bound_to_the_hash(store, job):
    with pytest.raises(Denied, match="its hash is h"):
        store.approve(job, 0, "dr. b", "H")
    first = store.approve(job, 0, "dr. b", "h")
    assert store.approve(job, 0, "dr. c", "h") == first
    store.revoke("cardio", 1, "gone")
    with pytest.raises(Denied):
        store.approve(job, 1, "dr. d", "h")
    assert store.approvals(job) == [first]


# --- asks and replies ----------------------------------------------------------------------------


def test_a_replayed_ask_is_the_stored_one(store, job):
    first = add_ask(store)
    assert add_ask(store, now=NOW + 99, deadline=NOW + 999, clients=[2, 1, 0]) == first
    assert store.ask(job, 0) == first
    changes = [{"task": "x"}, {"version": 2}, {"payload": digest("x")}, {"round": 1}]
    changes += [{"clients": [0, 1]}, {"prepare": digest("p")}]
    changes += [{"payload": dict.fromkeys(range(3), digest("model"))}]
    for change in changes:
        with pytest.raises(Conflict, match="the replayed driver asked something else"):
            add_ask(store, **change)
    for clients in ([4], [-1, 0]):
        with pytest.raises(NotFound, match="ids are 0 to 3"):
            add_ask(store, 1, clients=clients)
    with pytest.raises(NotFound):
        store.ask(job, 1)
    store.set_job_state(job, "cancelled", "", NOW)
    assert add_ask(store) == first
    with pytest.raises(Conflict, match="cancelled"):
        add_ask(store, 1)


def test_pending_asks_come_oldest_first_from_running_jobs(store, job):
    for seq in range(3):
        add_ask(store, seq)
    assert [a.seq for a in store.pending("cardio", 1, 10)] == [0, 1, 2]
    assert [a.seq for a in store.pending("cardio", 1, 2)] == [0, 1]
    reply(store, 1)
    assert [a.seq for a in store.pending("cardio", 1, 10)] == [1, 2]
    assert store.pending("cardio", 3, 10) == store.pending("other", 1, 10) == []
    store.set_job_state(job, "failed", "", NOW)
    assert store.pending("cardio", 1, 10) == []


def test_each_client_may_have_its_own_payload(store, job):
    own = {i: digest(i) for i in range(3)}
    first = add_ask(store, payload=own)
    assert first.payload is None
    assert add_ask(store, payload=own) == first
    assert [store.pending("cardio", i, 1)[0].payload for i in range(3)] == list(own.values())
    assert set(own.values()) <= store.digests()
    with pytest.raises(Conflict):
        add_ask(store, payload=own | {1: digest("x")})
    with pytest.raises(UsageError, match="client 2"):
        add_ask(store, 1, payload={0: digest(0), 1: digest(1)})


def test_a_reply_counts_once(store, job):
    add_ask(store)
    assert reply(store, 1) is True
    assert reply(store, 1, now=NOW + 50) is False
    for change in ({"digest": digest("x")}, {"size": 11}, {"status": "failed", "digest": None}):
        with pytest.raises(Conflict, match="another reply"):
            reply(store, 1, **change)
    assert reply(
        store, 0, status="refused", digest=None, size=0, reason="policy\0\ud800" + "x" * 9999
    )
    first, second = store.replies(job, 0)
    assert (first.client, first.status, len(first.reason)) == (0, "refused", 2000)
    assert (second.client, second.digest, second.time) == (1, digest((0, 1)), NOW + 9)
    assert store.replies(job, 0, skip=[0]) == [second]
    assert store.open_deliveries(job, 0) == [2]


def test_replies_out_of_place_are_refused(store, job):
    add_ask(store)
    with pytest.raises(Denied, match="was not asked"):
        reply(store, 3)
    with pytest.raises(Denied, match="was not asked"):
        reply(store, 0, seq=5)
    for change in ({"digest": None}, {"status": "odd"}, {"status": "failed"}, {"digest": "../x"}):
        with pytest.raises(UsageError):
            reply(store, 0, **change)
    with pytest.raises(SoleraError):
        reply(store, 1 << 90)
    with pytest.raises(UsageError, match="does not fit"):
        reply(store, 0, size=1 << 70)
    store.set_job_state(job, "expired", "", NOW)
    with pytest.raises(Conflict, match="expired"):
        reply(store, 0)
    assert store.replies(job, 0) == []


def test_after_the_deadline_nobody_is_waited_for(store, job):
    add_ask(store)
    reply(store, 1)
    assert store.fail_open(job, 0, "late", "the deadline has passed", NOW) == [0, 2]
    assert store.fail_open(job, 0, "late", "again", NOW) == []
    assert [r.status for r in store.replies(job, 0)] == ["late", "ok", "late"]
    with pytest.raises(Conflict, match="deadline has passed"):
        reply(store, 0)
    assert reply(store, 1) is False
    with pytest.raises(UsageError, match="status"):
        store.fail_open(job, 0, "ok", "", NOW)


def test_sixteen_threads_lose_no_reply_and_count_none_twice(store):
    enrol(store, 64)
    add_job(store)
    store.set_job_state("j", "running", "", NOW)
    add_ask(store, clients=range(64))
    start = threading.Barrier(16)

    def answer(thread: int) -> list[int]:
        start.wait()
        mine = [(thread * 8 + i) % 64 for i in range(8)]
        return [client for client in mine if reply(store, client)]

    with ThreadPoolExecutor(16) as pool:
        new = Counter(client for found in pool.map(answer, range(16)) for client in found)
    assert new == Counter(range(64))
    assert [r.client for r in store.replies("j", 0)] == list(range(64))
    assert store.open_deliveries("j", 0) == []


# --- pruning and leaving -------------------------------------------------------------------------


def test_a_checkpoint_lets_go_of_earlier_blobs(store, job, tmp_path):
    blobs = Blobs(tmp_path / "blobs")
    names = ["spec", "model 0", "model 1", (0, 0), (0, 1), (1, 0), "state", "final"]
    for name in names:
        blobs.put(str(name).encode())
    for seq in (0, 1):
        add_ask(store, seq, payload=digest(f"model {seq}"))
        reply(store, 0, seq)
    reply(store, 1)
    assert store.checkpoint(job, 0) is None
    store.save_checkpoint(job, 0, 1, digest("state"), NOW)
    assert store.checkpoint(job, 0) == (1, digest("state"))
    kept = {digest(name) for name in ("spec", "model 1", (1, 0), "state")}
    assert store.digests() == kept
    assert blobs.collect(store.digests(), grace=-1) == 4
    assert all(name in blobs for name in kept)
    assert [(r.status, r.digest, r.pruned) for r in store.replies(job, 0)] == [
        ("ok", None, True),
        ("ok", None, True),
        ("dropped", None, True),
    ]
    assert reply(store, 1) is False
    assert [a.seq for a in store.pending("cardio", 2, 9)] == [1]
    with pytest.raises(Conflict, match="later than 0"):
        store.save_checkpoint(job, 0, 0, digest("old"), NOW)
    with pytest.raises(Conflict, match="running"):
        store.prune(job)
    store.save_checkpoint(job, 0, 2, digest("final"), NOW)
    store.set_job_state(job, "finished", "", NOW)
    store.prune(job)
    assert store.digests() == {digest("spec"), digest("final")}


def test_leaving_deletes_what_is_listed(store, job):
    store.add_invite("cardio", "site 1", b"t", NOW)
    add_ask(store)
    add_ask(store, 1)
    reply(store, 1)
    reply(store, 0)
    store.approve(job, 1, "dr. b", "h")
    store.log("cardio", job, 1, "refused", "policy", NOW)
    store.log("cardio", job, 0, "refused", "policy", NOW)
    held = store.held("cardio", 1)
    assert held == {"deliveries": 2, "approvals": 1, "events": 3, "invites": 1, "clients": 1}
    assert store.forget_client("cardio", 1) == held
    assert set(store.held("cardio", 1).values()) == {0}
    assert digest((0, 1)) not in store.digests()
    assert store.replies(job, 0)[1].reason == "left the federation"
    assert add_ask(store).clients == [0, 1, 2]
    add_ask(store, 2)
    assert store.open_deliveries(job, 2) == [0, 2]
    with pytest.raises(NotFound):
        store.forget_client("cardio", 1)


def test_a_federation_can_be_forgotten_and_others_stay(store, job):
    store.add_federation("other")
    enrol(store, 2, "other")
    add_job(store, "o", "other")
    store.log("other", "o", None, "started", "", NOW)
    other = store.held("other")
    add_ask(store)
    reply(store, 0)
    store.save_checkpoint(job, 0, 0, digest("state"), NOW)
    store.log("cardio", job, 0, "refused", "policy", NOW)
    held = store.held("cardio")
    assert held == {
        "deliveries": 3, "asks": 1, "approvals": 0, "checkpoints": 1, "events": 8, "jobs": 1,
        "invites": 0, "clients": 4, "federations": 1, "questions": 0, "models": 0,
    }  # fmt: skip
    assert store.forget_federation("cardio") == held
    assert set(store.held("cardio").values()) == {0}
    assert store.held("other") == other
    assert [f.name for f in store.federations()] == ["other"]
    with pytest.raises(NotFound):
        store.forget_federation("cardio")


def test_events_are_kept_in_order_and_filtered(store):
    first = store.log("cardio", None, None, "opened", "", NOW)
    second = store.log("cardio", "j", 3, "refused", "nul \0 in a reason", NOW + 1)
    third = store.log("other", "j", None, "failed", "", NOW + 2)
    assert [e.id for e in store.events()] == [first, second, third]
    assert [e.id for e in store.events(after=first, limit=1)] == [second]
    assert [e.id for e in store.events("cardio")] == [first, second]
    assert [e.id for e in store.events(job="j")] == [second, third]
    (event,) = store.events("cardio", "j", 3)
    assert (event.event, event.reason, event.time) == ("refused", "nul � in a reason", NOW + 1)


# --- kill -9 -------------------------------------------------------------------------------------

WRITER = """
    import hashlib, sys
    from solera.serve.store import Store
    from solera.serve.blobs import Blobs
    store, blobs = Store(sys.argv[1]), Blobs(sys.argv[2])
    for seq in range(int(sys.argv[3]), 1_000_000):
        payload = blobs.put(b"model %d" % seq)
        store.add_ask("j", seq, "t", 1, payload, None, seq, None, [0, 1], 1.0)
        answer = blobs.put(b"reply %d" % seq)
        store.add_reply("j", seq, 0, "ok", answer, 5, "", b"s", 2.0)
        print(seq, flush=True)
"""


def test_everything_acknowledged_survives_kill_9(store, job, url, tmp_path):
    done = -1
    for _ in range(2):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), url, str(tmp_path / "blobs")]
        process = subprocess.Popen([*command, str(done + 1)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            done = int(line)
            if done % 25 == 24:
                process.send_signal(signal.SIGKILL)
                break
        rest = process.stdout.read().split()
        assert process.wait() == -signal.SIGKILL
        done = max(done, *map(int, rest)) if rest else done
    blobs = Blobs(tmp_path / "blobs")
    with Store(url) as again:
        for seq in range(done + 1):
            assert blobs.read(again.ask(job, seq).payload) == b"model %d" % seq
            (stored,) = again.replies(job, seq)
            assert blobs.read(stored.digest) == b"reply %d" % seq
        assert all(name in blobs for name in again.digests() - {digest("spec")})
