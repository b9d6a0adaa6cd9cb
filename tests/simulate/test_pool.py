"""A new federated method in one notebook cell."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import ForbiddenMessage, UsageError

X = np.random.default_rng(0).normal(size=(300, 3))
Y = X @ np.array([1.0, -2.0, 0.5])


@so.simulation.steps.initialise
def start():
    return {"w": np.zeros(3)}


@so.simulation.steps.deploy
def send(model):
    return {"w": model["w"].copy()}


def train(client):
    rows = client.data
    for _ in range(5):
        error = rows.X @ client.model["w"] - rows.y
        client.model["w"] -= 0.1 * rows.X.T @ error / len(rows)


@so.simulation.steps.collect
def weights(model):
    return model["w"]


@so.simulation.steps.aggregate
def mean(collected):
    return np.mean(collected, axis=0)


@so.simulation.steps.set_aggregated
def take(aggregated):
    return {"w": aggregated}


@so.simulation.steps.evaluate
def loss(model, data):
    return float(((data.X @ model["w"] - data.y) ** 2).mean())


@pytest.mark.parametrize("topology", [so.simulation.Star(), so.simulation.Hierarchy(1)])
def test_federated_averaging_by_hand(topology):
    pool = so.pool(so.simulate(X, Y, clients=10, seed=1, topology=topology))
    pool.servers.map(start)
    for _ in range(20):
        chosen = pool.clients.select(5)
        pool.servers.map(send, chosen)
        chosen.map(train)
        pool.aggregators.map(weights, chosen)
        pool.aggregators.map(mean)
        pool.aggregators.map(take, pool.servers)
    pool.servers.map(send, pool.clients)
    assert max(pool.clients.map(loss)) < 1e-3


def test_roles_are_checked():
    pool = so.pool(so.simulate(X, Y, clients=4))
    with pytest.raises(ForbiddenMessage, match="client 0 may not send to client 1"):
        pool.clients.select(lambda a: a.id == 0).map(
            lambda me, others: None, pool.clients.select(lambda a: a.id == 1)
        )
    peers = so.pool(so.simulate(X, Y, clients=4, topology=so.simulation.Peers("parallel")))
    assert len(peers.servers) == len(peers.aggregators) == len(peers.clients) == 4
    assert peers.clients.map(lambda me, others: len(others), peers.clients) == [4] * 4


def test_select():
    pool = so.pool(so.simulate(X, Y, clients=10, seed=3))
    again = so.pool(so.simulate(X, Y, clients=10, seed=3))
    assert [a.id for a in pool.clients.select(4)] == [a.id for a in again.clients.select(4)]
    assert [a.id for a in pool.clients.select(lambda a: a.id % 2)] == [1, 3, 5, 7, 9]
    with pytest.raises(UsageError, match="between 0 and 10"):
        pool.clients.select(11)


def test_in_simulation_only():
    fed = so.simulate(X, Y, clients=4)
    with pytest.raises(UsageError, match="simulation only"):
        so.pool(so.Federation(fed.engine))
