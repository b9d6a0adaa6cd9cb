"""Secure sums over real agents: signed keys, pinned peers, ``only_sums``, and ``kill -9``."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import numpy as np
import pytest

import solera as so
from solera.core.engine import Ask
from solera.core.errors import Refusal, SecureSumFailed, UsageError
from solera.core.payload import encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network, kill  # noqa: E402

from solera.privacy.secure_sum import tasks  # noqa: E402
from solera.serve import wire  # noqa: E402
from solera.serve.agent import secure_sums  # noqa: E402
from solera.serve.agent.home import Place  # noqa: E402
from solera.serve.driver.driven import connect  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402
from solera.serve.job_spec import parse_job  # noqa: E402

X = np.random.default_rng(0).normal(size=(90, 3))
Y = (X[:, 0] > 0).astype(int)
DATA = so.data.FederatedData(X, Y, np.array([0, 30, 60, 90]))
NAMES = ("north", "south", "west")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    here = Network(tmp_path_factory.mktemp("sums"))
    try:
        here.start()
        for client, name in enumerate(NAMES):
            here.enrol(name)
            here.give(name, DATA, client)
            here.work(name)
        yield here
    finally:
        here.close()


def federation(network, job, secure=True, seed=4):
    where = {"federation": network.federation, "token": network.token, "ca": network.ca}
    return connect(network.url, **where, job=job, seed=seed, secure=secure)


@pytest.fixture(scope="module")
def simulated():
    return so.FedHEONN().fit(so.simulate(DATA, seed=4))


def test_masked_sums_are_right(network, simulated):
    with federation(network, "secure") as fed:
        model = so.FedHEONN().fit(fed)
        np.testing.assert_allclose(model.weights_, simulated.weights_, rtol=1e-9)
        alone = [r.task for r in fed.meter.records if not r.task.startswith("secure.")]
    assert alone == ["data.describe", "heonn.statistics"]


class Deadly(Exception):
    """The driver's death."""


def dying(network, run, reached):
    """The engine of a driver that dies after every step that is new; agents die around it."""
    number = 0

    def run_and_die(ask, aggregation):
        nonlocal number
        number += 1
        if number <= reached[0]:
            return run(ask, aggregation)
        reached[0] = number
        before, after = NAMES[number % 3], NAMES[(number + 1) % 3]
        kill(network.agents[before])
        network.work(before)
        list(run(ask, aggregation))
        kill(network.agents[after])
        network.work(after)
        raise Deadly

    return run_and_die


def test_the_sum_is_the_same_after_kills_at_every_step(network, simulated):
    """Agents and driver die between the steps; what is learned has the same bytes."""
    with federation(network, "calm") as fed:
        calm = encode(so.FedHEONN().fit(fed).weights_)
    reached, model = [0], None
    while model is None:
        with federation(network, "deadly") as fed, suppress(Deadly):
            fed.engine.run = dying(network, fed.engine.run, reached)
            model = so.FedHEONN().fit(fed)
    assert reached == [6]  # data.describe, keys, shares, statistics, confirm, unmask
    assert encode(model.weights_) == calm
    np.testing.assert_allclose(model.weights_, simulated.weights_, rtol=1e-9)


def test_a_client_that_is_gone_is_a_named_failure(network):
    """Of three clients all must stay; the job says who did not."""
    kill(network.agents["west"])
    try:
        for deadline in (1.0, 20.0, 120.0):  # on a busy machine the others are late, too
            with (
                federation(network, f"gone-{deadline:.0f}") as fed,
                pytest.raises(SecureSumFailed, match="clients told their keys, 3 are needed") as e,
            ):
                fed.ask("preprocess.moments", deadline=deadline).fold(so.aggregations.Sum())
            if "2 of 3" in str(e.value):
                break
    finally:
        network.work("west")
    assert "2 of 3" in str(e.value)


def test_a_job_of_the_coordinator_can_be_secure(network, simulated):
    text = 'federation = "cardio"\nseed = 4\nclients = 3\nsecure = true\n'
    text += '[learner]\nkind = "FedHEONN"\n'
    described = parse_job(text, name="managed").describe(text)
    driver = network.driver()
    new = wire.NewJob.of(described, id="managed", spec=driver.upload(described.to_bytes()))
    driver.request("POST", "/v1/federations/cardio/jobs", json=new)
    deadline = time.monotonic() + 600
    while (job := driver.call("GET", "/v1/jobs/managed", wire.Job)).state != "finished":
        assert job.state not in ("failed", "expired", "cancelled"), job.reason
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
    model = driver.download(driver.call("GET", "/v1/jobs/managed/model", wire.Model).digest)
    path = network.folder / "managed.sol"
    path.write_bytes(model)
    np.testing.assert_allclose(so.load(path).weights_, simulated.weights_, rtol=1e-9)
    driver.close()
    with pytest.raises(UsageError, match="a standing job has no secure sums"):
        parse_job(f"standing = true\n{text}", name="standing")


def test_a_log_shows_that_no_number_left_in_the_clear(network):
    lines = (network.folder / "north" / "audit.log").read_text().splitlines()
    replies = [json.loads(line)["facts"] for line in lines if '"reply"' in line]
    statistics = [f for f in replies if f.get("task") == "heonn.statistics" and f["status"] == "ok"]
    assert statistics
    assert all(facts["numbers"] < 20 < facts["bytes"] / 8 for facts in statistics)


# --- whose keys are whose ---


class Peers:
    """A coordinator's list of clients, and the keys that each of them signed for one sum."""

    def __init__(self, folder, count=4):
        self.identities = [Identity.create(folder / f"client {i}") for i in range(count)]
        self.private = [tasks.new_keys() for _ in range(count)]
        public = [tasks.public_keys(private) for private in self.private]
        signed = [
            identity.sign(secure_sums.keys_message("cardio", "job", i, *public[i]))
            for i, identity in enumerate(self.identities)
        ]
        stack = lambda pieces: np.stack([np.frombuffer(p, np.uint8) for p in pieces])  # noqa: E731
        self.roster = {
            "clients": np.arange(count),
            "mask_keys": stack([mask for mask, _ in public]),
            "seal_keys": stack([seal for _, seal in public]),
            "signatures": stack(signed),
            "share": 2 / 3,
        }

    def call(self, method, path, kind):
        from solera.serve.identity import seal_key_message

        return wire.Peers(
            [
                wire.Peer(
                    i,
                    f"client-{i}",
                    identity.sign_key.hex(),
                    identity.seal_key.hex(),
                    identity.sign(seal_key_message("cardio", identity.seal_key)).hex(),
                )
                for i, identity in enumerate(self.identities)
            ]
        )

    def vouched(self, folder, payload=None, task=tasks.give_shares):
        ask = Ask(task.name, 1, self.roster if payload is None else payload, np.array([0]), 0)
        place = Place("", None, 0, "client-0", "cardio")
        who = (place, self.identities[0], folder, self)
        return secure_sums.vouched(ask, "job", *who).payload


@pytest.mark.parametrize("entry", ["mask_keys", "seal_keys", "signatures"])
def test_a_key_that_its_owner_has_not_signed_is_refused(tmp_path, entry):
    peers = Peers(tmp_path)
    peers.roster[entry] = peers.roster[entry].copy()
    peers.roster[entry][2, 0] ^= 1
    with pytest.raises(Refusal, match="client 2 has not signed the keys"):
        peers.vouched(tmp_path)


def test_a_client_that_the_coordinator_made_up_is_refused(tmp_path):
    peers = Peers(tmp_path)
    assert peers.vouched(tmp_path) == peers.roster
    swapped = Peers(tmp_path / "others")
    swapped.identities[0] = peers.identities[0]
    with pytest.raises(Refusal, match=r"among strangers: client 'client-1' .* had the key"):
        swapped.vouched(tmp_path)
    for roster in (
        {},
        {"clients": 3},
        {**peers.roster, "mask_keys": peers.roster["mask_keys"][:2]},
    ):
        with pytest.raises(Refusal, match="no list of clients and keys"):
            peers.vouched(tmp_path, payload=roster)
