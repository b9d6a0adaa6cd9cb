"""Learners and asks over real agents, each under the policy that it belongs to."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.payload import encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network  # noqa: E402

from solera.core.component import describe_fitted  # noqa: E402

rng = np.random.default_rng(4)
X = rng.normal(size=(360, 4))
Y = (X[:, 0] + 0.3 * rng.normal(size=360) > 0).astype(int)
DATA = so.data.FederatedData(X, Y, np.array([0, 180, 360]))
NOISE = {"mechanism": "gaussian", "noise": 20.0, "share": 1, "clip": 2.0}
REST = {
    "sums": '[approval]\nmode = "auto"\n',
    "noise": '[approval]\nmode = "auto"\n[privacy]\nepsilon = 1.0\ndelta = 1e-6\n',
    "trusted": "",
}


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    here = Network(tmp_path_factory.mktemp("policies"))
    try:
        here.start()
        yield here
    finally:
        here.close()


def hire(here, policy):
    """Two agents of a federation whose owners name one policy."""
    here.federation = policy
    for client in range(2):
        name = f"{policy}-{client}"
        here.enrol(name)
        here.give(name, DATA, client, f'policy = "{policy}"\n{REST[policy]}')
        here.work(name)
    return here


def test_trusted_owners_let_a_driver_learn_and_judge_as_in_simulation(coordinator):
    here = hire(coordinator, "trusted")
    there = so.FedScaler().fit(here.connect("scaler", seed=1))
    simulated = so.FedScaler().fit(so.simulate(DATA, policy="trusted", seed=1))
    assert encode(describe_fitted(there)) == encode(describe_fitted(simulated))
    pipeline = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=5))
    first = pipeline.fit(here.connect("linear", seed=1))
    assert first.score(X, Y) > 0.85
    again = pipeline.clone().fit(here.connect("again", seed=1))
    assert encode(describe_fitted(again)) == encode(describe_fitted(first))
    judged = first.evaluate(here.connect("judge", seed=1), "train", per_client=False)
    assert judged.metrics["accuracy"] > 0.85


@pytest.mark.parametrize("privacy", [None, NOISE])
def test_under_sums_no_open_ask_is_answered(coordinator, privacy):
    here = hire(coordinator, "sums") if privacy is None else coordinator
    asks = [("data.describe", None), ("preprocess.moments", None), ("linear.train", {})]
    for i, (task, payload) in enumerate(asks):
        if privacy is not None:
            payload = {**(payload or {}), "privacy": privacy}
        fed = here.connect(f"asked-{i}-{privacy is None}")
        fed.engine._answers_nobody = False  # a driver that sends it all the same
        replies = fed.ask(task, payload, quorum=0, deadline=600)
        assert list(replies) == []
        assert all("learner.fit(federation)" in failure.reason for failure in replies.failures)
        assert {failure.kind for failure in replies.failures} == {"refused"}


def test_under_noise_bounded_sums_leave_with_noise_until_the_budget_is_spent(coordinator):
    here = hire(coordinator, "noise")
    edges = {"edges": np.zeros((4, 1))}
    total = so.aggregations.Sum()
    for name, payload, why in (
        ("bare", edges, "the ask states none"),
        ("names", {"privacy": NOISE}, "nothing says which rows gave entry"),
    ):
        task = "preprocess.count" if name == "bare" else "data.describe"
        replies = here.connect(name).ask(task, payload, quorum=0, deadline=600)
        assert list(replies) == []
        assert all(why in failure.reason for failure in replies.failures)
    ask, jobs = {**edges, "privacy": NOISE}, []
    counted = here.connect("counted").ask("preprocess.count", ask, deadline=600).fold(total)
    exact = (X < 0).sum(axis=0)
    assert (counted["cells"][:, 0] != exact).any()
    assert np.abs(counted["cells"][:, 0] - exact).max() < 6 * 20.0 * 2 * np.sqrt(2)
    spent = []
    while not spent:
        fed = here.connect(f"more-{len(jobs)}", seed=len(jobs))
        jobs.append(fed)
        replies = fed.ask("preprocess.count", ask, quorum=0, deadline=600)
        answered = len(list(replies))
        spent = [failure.reason for failure in replies.failures]
    assert len(jobs) > 2
    assert answered == 0
    assert all("the privacy budget is ε = 1" in reason for reason in spent)
