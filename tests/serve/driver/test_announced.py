"""A driver says what it will ask before it asks, and clients hold it to its word."""

from __future__ import annotations

import numpy as np
import pytest
from solera.core.plan import PREPARE

import solera as so
from solera.core.component import describe_fitted
from solera.core.errors import NotEnoughReplies
from solera.core.payload import encode
from solera.core.task import find_task

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network  # noqa: E402
from solera.serve.agent.policy_for import policy_for  # noqa: E402

from solera.serve.description import Description  # noqa: E402

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 4))
Y = (X @ rng.normal(size=(4, 3))).argmax(axis=1)
DATA = so.data.FederatedData(X, Y, np.array([0, 250, 400]))
LEARNER = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=2, epochs=2))


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Two clients that allow every task: what is refused is so because of the description."""
    here = Network(tmp_path_factory.mktemp("announced"))
    here.start()
    for client, name in enumerate(("north", "south")):
        here.enrol(name)
        here.give(name, DATA, client)
        here.work(name)
    yield here
    here.close()


def test_the_policy_for_a_job_lets_it_through(tmp_path):
    said = {"job": "j", "federation": "cardio", "kind": "driven", "owner": "", "seed": 0}
    job = Description(**said, plan=LEARNER.asks(None))
    undeclared = [
        entry.task
        for entry in job.plan
        if not entry.task.startswith(PREPARE) and find_task(entry.task).release is None
    ]
    if undeclared:
        pytest.skip(f"{undeclared[0]} does not declare what leaves")
    policy = policy_for(job)
    assert 'policy = "training"' in policy
    network = Network(tmp_path)
    network.start()
    try:
        for client, name in enumerate(("north", "south")):
            network.enrol(name)
            network.give(name, DATA, client, policy)
            network.work(name)
        federation = network.connect(seed=5)
        learner = LEARNER.clone().fit(federation)
        assert learner.score(X, Y) > 0.6
        with pytest.raises(
            NotEnoughReplies, match=r"policy does not allow task 'learner.evaluate'"
        ):
            learner.evaluate(federation, "train")
        federation.close()
    finally:
        network.close()


def descriptions(network, *names):
    driver = network.driver()
    jobs = [driver.request("GET", f"/v1/jobs/{name}").json() for name in names]
    found = [Description.from_bytes(driver.download(job["spec"])) for job in jobs]
    assert [job["owner"] for job in jobs] == [description.owner for description in found]
    driver.close()
    return found


def test_what_a_program_asks_is_described_job_by_job_and_replayed(network):
    def program():
        federation = network.connect("p", seed=5)
        assert repr(federation).startswith("Federation(2 clients")
        learner = LEARNER.clone().fit(federation)
        judged = learner.evaluate(federation, "train")
        told = federation.ask("data.describe").collect()
        federation.ask("data.describe").collect()
        federation.close()
        return encode([describe_fitted(learner), judged.metrics, [r.payload for r in told]])

    first = program()
    fitted, judged, asked = descriptions(network, "p", "p.2", "p.3")
    assert fitted.plan == LEARNER.asks(None)
    assert fitted.learner["kind"] == "Pipeline"
    assert fitted.learner["steps"][1]["epochs"] == 2
    assert [entry.task for entry in judged.plan] == ["learner.evaluate"]
    assert asked.plan == ()
    assert asked.learner == {}
    assert [d.job for d in (fitted, judged, asked)] == ["p", "p.2", "p.3"]
    assert program() == first
    driver = network.driver()
    jobs = driver.request("GET", "/v1/federations/cardio/jobs").json()
    assert [job["id"] for job in jobs if job["id"].startswith("p")] == ["p", "p.2", "p.3"]
    driver.close()


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (("kmeans.cost", {"centroids": np.zeros((1, 4))}), "'kmeans.cost' is not planned"),
        (("linear.train", {"epochs": 3}), "epochs = 3, which must be 2"),
        (("linear.train", {"lr": 50.0}), "lr = 50"),
    ],
)
def test_an_ask_that_was_not_announced_is_refused(network, ask, why):
    """Also one that the policy allows: what the description says counts as well."""
    federation = network.connect(seed=5)
    task, changed = ask
    learner = LEARNER.clone()
    linear = so.FedLinear(rounds=2, epochs=2)
    linear.schema_ = DATA.schema
    payload = {**linear.round_config(0), **linear.first_model(0), **changed}
    with federation.announced(learner, lambda: learner.asks(None)):
        replies = federation.ask(task, payload)
        with pytest.raises(NotEnoughReplies):
            replies.collect()
        assert all(why in failure.reason for failure in replies.failures)
        assert {failure.kind for failure in replies.failures} == {"refused"}
    federation.close()


def test_more_asks_than_were_announced_are_refused(network):
    federation = network.connect(seed=5)
    learner = so.FedKMeans(2, init=np.zeros((2, 4)), rounds=1)
    with federation.announced(learner, lambda: learner.asks(None)):
        ask = {"centroids": np.zeros((1, 4))}
        assert len(federation.ask("kmeans.cost", ask).collect()) == 2
        replies = federation.ask("kmeans.cost", ask, round=1)
        with pytest.raises(NotEnoughReplies):
            replies.collect()
    federation.close()
