from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import UsageError

X = np.random.default_rng(0).normal(size=(300, 4))
Y = (X @ [1, -1, 0.5, 0] > 0).astype(int)


def peers(exchange, **options):
    return so.simulate(
        X, Y, clients=6, seed=2, topology=so.simulation.Peers(exchange), test=0.2, **options
    )


@pytest.mark.parametrize("exchange", ["cyclic", "random", "parallel"])
def test_every_exchange_learns(exchange):
    fed = peers(exchange)
    model = so.PeerToPeer(so.FedLinear(rounds=5, lr=0.3)).fit(fed)
    assert model.evaluate(fed)["accuracy"] > 0.9
    assert model.history_[0]["messages"] == (30 if exchange == "parallel" else 6)


def test_parallel_exchange_equals_averaging_with_a_server():
    alone = so.PeerToPeer(so.FedLinear(rounds=3)).fit(peers("parallel"))
    star = so.FedLinear(rounds=3).fit(so.simulate(X, Y, clients=6, seed=2, test=0.2))
    np.testing.assert_allclose(alone.learner_.coef_, star.coef_, rtol=1e-12)


def test_cyclic_exchange_is_a_walk():
    model = so.PeerToPeer(so.FedLinear(rounds=1, batch_size=None, lr=0.3)).fit(peers("cyclic"))
    fed = peers("cyclic")
    w, b = np.zeros((4, 2)), np.zeros(2)
    for k in range(6):
        rows = fed.data.segments(np.array([k]), "train")[0]
        p = np.exp(rows.X @ w + b)
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(rows)), rows.y] -= 1
        w, b = w - 0.3 * rows.X.T @ p / len(rows), b - 0.3 * p.mean(axis=0)
    np.testing.assert_allclose(model.learner_.coef_, w, rtol=1e-9)


def test_a_peer_that_fails_is_passed_over():
    fed = peers("cyclic", failures=so.simulation.Failures(dropout=0.4))
    model = so.PeerToPeer(so.FedLinear(rounds=5, lr=0.3)).fit(fed)
    assert sum(h["failures"] for h in model.history_) > 5
    assert model.score(X, Y) > 0.9


def test_wrong_federation_or_learner():
    with pytest.raises(UsageError, match="Peers"):
        so.PeerToPeer(so.FedLinear()).fit(so.simulate(X, Y, clients=3))
    with pytest.raises(UsageError, match="must be a Averaging"):
        so.PeerToPeer(so.FedScaler()).fit(peers("cyclic"))
