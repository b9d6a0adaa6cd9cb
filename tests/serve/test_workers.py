"""Several worker processes behind one address: they share news, and any of them may die."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from solera.core.errors import UsageError

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography", "psycopg"):
    pytest.importorskip(library, reason="the extras 'serve' and 'postgresql' are not installed")

from databases import new_database  # noqa: E402
from fatal import Fragile  # noqa: E402
from test_chaos import DATA, NAMES, history  # noqa: E402

from solera.serve.coordinator.run import serve  # noqa: E402
from solera.serve.coordinator.service import Coordinator  # noqa: E402
from solera.serve.coordinator.store.blobs import Blobs  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.coordinator.store.tables import TokenRow  # noqa: E402

SECONDS = 600.0


def until(condition):
    """Wait for something that must come."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def pair(postgres, tmp_path):
    """Two coordinators over one database and one folder of blobs, as two workers have them."""
    url = new_database(postgres)
    made = []
    for _ in range(2):
        one = Coordinator(Store(url), Blobs(tmp_path), b"")
        one.listen()
        made.append(one)
    for one in made:
        assert one.news.listening.wait(SECONDS)
    yield made
    for one in made:
        one.news.close()
        one.store.close()


def test_who_waits_at_one_worker_is_woken_by_another(pair):
    here, there = pair

    async def woken():
        looked = []

        async def ready():
            looked.append(time.monotonic())
            if len(looked) == 1:
                there.notifier.notify(("cardio", 3), "other")
            return len(looked) > 1

        return await here.notifier.until(("cardio", 3), ready, 30.0), looked

    result, looked = asyncio.run(woken())
    assert result is True
    assert looked[1] - looked[0] < 29


def test_a_topic_reaches_however_many_there_are(pair):
    here, there = pair
    heard = set()
    here.notifier.wake = lambda *topics: heard.update(topics)
    topics = [("a-federation-with-a-long-name", client) for client in range(3000)]
    there.notifier.notify(*topics)
    until(lambda: heard >= set(topics))


def test_a_change_is_told_with_the_transaction(pair):
    """Whoever dies after the commit has told it: nothing is said after it."""
    here, there = pair
    there.store.add_federation("cardio")
    client = there.store.enrol("cardio", "north", b"k" * 32, b"s" * 32, {})
    here._clients[b"k" * 32] = client
    before = here.store.changes
    there.store.revoke("cardio", client.id, "lost laptop")
    until(lambda: not here._clients)
    assert here.store.changes > before
    here._tokens = {}
    there.store.add_token(TokenRow(b"t" * 32, "ci", "viewer", None, 0.0, 1e12), "ana")
    until(lambda: here._tokens is None)


def test_where_the_signed_log_ends_is_known_to_all(pair):
    here, there = pair
    there.signed_event, there.log_problem = 17, "the disk is full"
    there.tell_log()
    until(lambda: (here.signed_event, here.log_problem) == (17, "the disk is full"))


def test_several_workers_need_postgresql(tmp_path):
    with pytest.raises(UsageError, match="several workers need PostgreSQL"):
        serve(tmp_path, workers=2)


def children(pid):
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, 40])
def test_any_worker_dies_at_any_time(kills, postgres, tmp_path):
    """Three workers, killed one after the other while a job goes on: no byte changes."""
    network = Fragile(tmp_path, new_database(postgres), workers=3)
    chance = np.random.default_rng(kills)
    rounds = 4 if kills < 10 else 12
    killed = 0
    try:
        network.start()
        parent = network.lives["coordinator"].process.pid
        first = set(children(parent))
        assert len(first) == 3
        network.staff(NAMES, DATA)
        calm = network.learned("calm", rounds=rounds)
        replies = history(network, "calm")
        job = 0
        while killed < kills or first:
            job += 1
            out = network.learn(f"storm-{job}", rounds=rounds)
            while network.lives["driver"].is_alive():
                alive = sorted(children(parent))
                victim = min(first) if first else alive[chance.integers(len(alive))]
                first.discard(victim)
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed += 1
                until(lambda gone=victim: gone not in children(parent))
                until(lambda: len(children(parent)) == 3)
                network.lives["driver"].join(chance.uniform(0.2, 1.0))
            assert network.lives["driver"].code == 0, (tmp_path / "driver.log").read_text()[-2000:]
            assert out.read_bytes() == calm
            assert history(network, f"storm-{job}") == replies
        assert network.lives["coordinator"].deaths == 0
    finally:
        network.close()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_workers_end_with_the_process_that_started_them(postgres, tmp_path):
    network = Fragile(tmp_path, new_database(postgres), workers=2)
    try:
        network.start()
        workers = children(network.lives["coordinator"].process.pid)
        network.lives["coordinator"].kill()
        until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers))
        network.wait()  # the next one serves
    finally:
        network.close()
