"""``kill -9`` at every step of the protocol: the same model, no reply lost or counted twice."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from databases import new_database  # noqa: E402
from fatal import AGENT, COORDINATOR, DRIVER, Fragile  # noqa: E402
from storm import KINDS, Storm  # noqa: E402

from solera.serve.coordinator.store.store import Store  # noqa: E402

X = np.random.default_rng(0).normal(size=(40, 3))
DATA = so.data.FederatedData(X, X[:, 0] > 0, np.array([0, 25, 40]))
NAMES = ("north", "south")
ROUNDS = 8


def signed(network, job, count):
    """The replies to a job in the coordinator's signed log, once there are so many."""
    path = network.folder / "coordinator" / "audit.log"
    for _ in range(1200):
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        numbers = [line["facts"]["event"] for line in lines if "event" in line["facts"]]
        assert len(numbers) == len(set(numbers)), "an event was signed twice"
        found = [line["facts"] for line in lines if line["event"] == "replied"]
        found = [facts for facts in found if facts["job"] == job]
        if len(found) >= count:
            break
        time.sleep(0.1)
    return found


def history(network, job):
    """Which bytes counted as whose reply to which ask."""
    file = network.folder / "coordinator" / "coordinator.sqlite"
    with Store(network.database or f"sqlite:///{file}") as store:
        asks = store.progress(job).asks
        told = signed(network, job, len(NAMES) * asks)
        found = {(facts["seq"], facts.get("client", 0)): facts["digest"] for facts in told}
        assert len(told) == len(found), "a reply was counted twice"
        assert set(found) == {(seq, client) for seq in range(asks) for client in range(len(NAMES))}
        for seq in range(asks):
            rows = store.replies(job, seq)
            assert [row.client for row in rows] == list(range(len(NAMES)))
            assert {row.status for row in rows} == {"ok"}
            kept = {(seq, row.client): row.digest for row in rows if not row.pruned}
            assert kept.items() <= found.items()
    return found


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    here = Fragile(tmp_path_factory.mktemp("chaos"))
    try:
        here.start()
        here.staff(NAMES, DATA)
        yield here
    finally:
        here.close()


@pytest.fixture(scope="module")
def calm(network):
    """What is learned, and from which replies, when nothing happens."""
    model = network.learned("calm", rounds=ROUNDS)
    return model, history(network, "calm")


def check(network, job, model, calm, deaths):
    told = network.diary.read_text().splitlines() if network.diary.exists() else []
    network.diary.unlink(missing_ok=True)
    assert told == deaths
    assert history(network, job) == calm[1]
    assert model == calm[0]


def test_the_coordinator_dies_at_every_step(network, calm):
    network.start(list(COORDINATOR))
    model = network.learned("coordinator", rounds=ROUNDS, often=True)
    check(network, "coordinator", model, calm, [f"coordinator: {step}" for step in COORDINATOR])


def test_an_agent_dies_at_every_step(network, calm):
    network.work("north", list(AGENT))
    model = network.learned("agent", rounds=ROUNDS)
    check(network, "agent", model, calm, [f"agent: {step}" for step in AGENT])


@pytest.mark.parametrize("often", [False, True], ids=["replay", "checkpoints"])
def test_the_driver_dies_at_every_step(network, calm, often):
    steps = [step for step in DRIVER if often or not step.startswith("state")]
    job = f"driver-{often}".lower()
    model = network.learned(job, rounds=ROUNDS, often=often, steps=steps)
    check(network, job, model, calm, [f"driver: {step}" for step in steps])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
@pytest.mark.parametrize("kills", [25, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_anything_dies_at_any_time(database, kills, request, tmp_path):
    """Coordinator, agents, workers, learners and drivers: the same bytes, no orphan, whole logs."""
    url = None if database == "sqlite" else new_database(request.getfixturevalue("postgres"))
    network = Fragile(tmp_path, url)
    storm = Storm(network, NAMES, seed=kills)
    rounds, at_once = (3, kills) if kills < 100 else (ROUNDS, 25)
    try:
        network.start()
        network.staff(NAMES, DATA)
        calm = storm.run(0, rounds, 0)
        replies = history(network, "storm-0")
        number = 0
        while storm.killed.total() < kills or storm.killed.keys() < set(KINDS):
            number += 1
            assert storm.run(number, rounds, at_once) == calm
            at_once = min(at_once, 25 if kills > 100 else 8)  # who was spared by chance
            assert history(network, f"storm-{number}") == replies
        storm.check_nothing_is_left()
        storm.check_logs()
    finally:
        network.close()
    storm.check_nothing_is_left()
    print(f"{database}: {dict(storm.killed)} in {number} storms")
