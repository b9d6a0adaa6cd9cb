"""The store keeps what it acknowledged, once, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text
from store_rows import NOW, add_ask, add_job, digest, enrol, reply, waiting

from solera.core.errors import SoleraError, UsageError
from solera.serve.coordinator.store.base import Conflict, Denied, NotFound
from solera.serve.coordinator.store.blobs import Blobs
from solera.serve.coordinator.store.store import Store
from solera.serve.coordinator.store.tables import NEXT, metadata

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


# --- jobs ----------------------------------------------------------------------------------------


def test_a_job_is_added_once(store):
    first = add_job(store)
    assert (first.state, first.created) == ("created", NOW)
    assert add_job(store, now=NOW + 5) == first == store.job("j")
    for change in ({"seed": 8}, {"spec": digest("x")}, {"owner": "eve"}, {"kind": "managed"}):
        with pytest.raises(Conflict, match=next(iter(change))):
            add_job(store, **change)
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


# --- asks and replies ----------------------------------------------------------------------------


def test_a_replayed_ask_is_the_stored_one(store, job):
    first = add_ask(store)
    assert add_ask(store, now=NOW + 99, seconds=999, clients=[2, 1, 0]) == first
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
    assert [a.sequence for a in store.pending("cardio", 1, 10)] == [0, 1, 2]
    assert [a.sequence for a in store.pending("cardio", 1, 2)] == [0, 1]
    reply(store, 1)
    assert [a.sequence for a in store.pending("cardio", 1, 10)] == [1, 2]
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
    assert waiting(store) == [2]


def test_replies_out_of_place_are_refused(store, job):
    add_ask(store)
    with pytest.raises(Denied, match="was not asked"):
        reply(store, 3)
    with pytest.raises(Denied, match="was not asked"):
        reply(store, 0, seq=5)
    for change in ({"digest": None}, {"status": "failed"}):
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
    assert waiting(store) == []


# --- kill -9 -------------------------------------------------------------------------------------

WRITER = """
    import hashlib, sys
    from solera.serve.coordinator.store.store import Store
    from solera.serve.coordinator.store.blobs import Blobs
    from solera.serve.wire import NewAsk, NewReply
    store, blobs = Store(sys.argv[1]), Blobs(sys.argv[2])
    for seq in range(int(sys.argv[3]), 1_000_000):
        payload = blobs.put(b"model %d" % seq)
        ask = NewAsk(task="t", version=1, payload=payload, round=seq, clients=[0, 1])
        store.add_ask("j", seq, ask, 1.0)
        answer = blobs.put(b"reply %d" % seq)
        reply = NewReply(status="ok", digest=answer, size=5, signature="ab" * 64)
        assert store.add_replies([("j", seq, "cardio", 0, reply, 2.0)]) == [True]
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
