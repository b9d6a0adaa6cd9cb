"""``kill -9`` at every step of the protocol: the same model, no reply lost or counted twice."""

from __future__ import annotations

import json
import random
import time

import numpy as np
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from databases import new_database  # noqa: E402
from fatal import AGENT, COORDINATOR, DRIVER, Fragile  # noqa: E402

from solera.serve.coordinator.store.store import Store  # noqa: E402

X = np.random.default_rng(0).normal(size=(40, 3))
DATA = so.data.FederatedData(X, X[:, 0] > 0, np.array([0, 25, 40]))
NAMES = ("north", "south")
ROUNDS = 8


def signed(network, job, count):
    """The replies to a job in the coordinator's signed log, once there are so many."""
    path = network.folder / "coordinator" / "audit.log"
    for _ in range(100):
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


SOAK_SECONDS = 120


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_soak(database, request, tmp_path):
    """Anything dies at any time, for some minutes."""
    url = None if database == "sqlite" else new_database(request.getfixturevalue("postgres"))
    network = Fragile(tmp_path, url)
    chance = random.Random(9)
    killed = 0
    try:
        network.start()
        network.staff(NAMES, DATA)
        expected = network.learned("calm", rounds=ROUNDS)
        replies = history(network, "calm")
        end = time.monotonic() + SOAK_SECONDS
        for number in range(10_000):
            job = f"storm-{number}"
            out = network.learn(job, rounds=ROUNDS, often=bool(number % 2))
            while network.lives["driver"].is_alive():
                network.lives["driver"].join(chance.uniform(0.0, 4.0))
                if time.monotonic() < end:
                    network.lives[chance.choice(["coordinator", "driver", *NAMES])].kill()
                    killed += 1
                assert time.monotonic() < end + 120, "the storm is over, the job is not"
            said = (tmp_path / "driver.log").read_text()
            assert network.lives["driver"].code == 0, said[-3000:]
            assert out.read_bytes() == expected
            assert history(network, job) == replies
            if time.monotonic() > end:
                break
        print(f"{killed} kills in {number + 1} jobs")
        assert killed > SOAK_SECONDS / 6
    finally:
        network.close()
