"""Honest learners over real agents, each under the policy it belongs to; others are refused."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import NotEnoughReplies
from solera.core.payload import encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network  # noqa: E402

from solera.core.component import describe_fitted  # noqa: E402

rng = np.random.default_rng(4)
X = rng.normal(size=(360, 4))
Y = (X[:, 0] + 0.3 * rng.normal(size=360) > 0).astype(int)
DATA = so.data.FederatedData(X, Y, np.array([0, 180, 360]))


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    here = Network(tmp_path_factory.mktemp("policies"))
    try:
        here.start()
        yield here
    finally:
        here.close()


@pytest.fixture(params=["statistics", "training"])
def network(coordinator, request):
    """Two agents of a federation whose owners name one policy."""
    coordinator.federation = request.param
    for client in range(2):
        name = f"{request.param}-{client}"
        coordinator.enrol(name)
        coordinator.give(name, DATA, client, f'policy = "{request.param}"\n')
        coordinator.work(name)
    return coordinator, request.param


def test_a_named_policy_lets_out_what_it_says_and_the_same_as_in_simulation(network):
    here, policy = network
    there = so.FedScaler().fit(here.connect(f"{policy}-scaler", seed=1))
    simulated = so.FedScaler().fit(so.simulate(DATA, policy=policy, seed=1))
    assert encode(describe_fitted(there)) == encode(describe_fitted(simulated))
    pipeline = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=5))
    if policy == "statistics":
        with pytest.raises(NotEnoughReplies, match="does not allow task"):
            pipeline.fit(here.connect(f"{policy}-linear", seed=1))
        return
    first = pipeline.fit(here.connect(f"{policy}-linear", seed=1))
    assert first.score(X, Y) > 0.85
    again = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=5)).fit(
        here.connect(f"{policy}-again", seed=1)
    )
    assert encode(describe_fitted(again)) == encode(describe_fitted(first))
    evaluated = first.evaluate(here.connect(f"{policy}-judge", seed=1), "train", per_client=False)
    assert evaluated.metrics["accuracy"] > 0.85
    many = {"coef": np.zeros((4, 100)), "intercept": np.zeros(100)}
    replies = here.connect(f"{policy}-hostile").ask(
        "linear.train",
        many
        | {"loss": "sigmoid", "classes": np.arange(2), "lr": 1.0, "l2": 0.0, "epochs": 1}
        | {"batch_size": None},
        quorum=0,
        deadline=600,
    )
    assert list(replies) == []
    assert {failure.kind for failure in replies.failures} == {"refused"}
