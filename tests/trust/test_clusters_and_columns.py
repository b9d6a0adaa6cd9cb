"""Sums of k-means and of preprocessing: what a row changes of them, and their digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.aggregation import Sum
from solera.core.clients import Client, Draws
from solera.core.errors import GateRefusal, NotEnoughReplies
from solera.core.payload import is_finite
from solera.core.schema import Schema
from solera.core.task import find_task
from solera.engines.local import LocalEngine
from solera.learn.preprocess.moments import pooled_means, pooled_moments
from solera.trust.cells import Behind
from solera.trust.policy import Policy

RNG = np.random.default_rng(11)
ROWS = RNG.normal(size=(40, 3)) * [1.0, 5.0, 0.2]
ROWS[3] *= 100
BUDGET = Policy("noise", budget=(20.0, 1e-3))


def client_of(X: Any, schema: Schema | None = None) -> Client:
    data = so.data.FederatedData(X, None, np.array([0, len(X)]), schema=schema)
    return Client(0, data, Draws(0, "test", 0), {})


# --- what one row changes ---

CLIP = 2.0
EDGES = np.sort(RNG.normal(size=(3, 6)), axis=1)
ASKS = {
    "assign, first": ("kmeans.assign", {"centroids": ROWS[:4] / 3}),
    "assign, later": ("kmeans.assign", {"centroids": RNG.normal(size=(2, 3))}),
    "count, first": ("preprocess.count", {"edges": 2.0 ** np.arange(-4.0, 4) * np.ones((3, 1))}),
    "count, later": ("preprocess.count", {"edges": EDGES}),
}


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("name", ASKS)
def test_no_row_changes_bounded_sums_by_more_than_is_derived(name, norm):
    task, ask = ASKS[name]
    privacy = {"mechanism": "gaussian", "noise": 1.0, "share": 1, "clip": CLIP}
    ask = {**ask, "privacy": privacy}

    def numbers(rows: Any) -> dict[str, Any]:
        reply = find_task(task)(client_of(rows), ask)
        return {
            entry: (leaf.bounded(CLIP).numbers(Behind(len(rows))), leaf.sensitivity(norm, CLIP))
            for entry, leaf in reply.items()
        }

    whole = numbers(ROWS)
    for row in range(len(ROWS)):
        for entry, (without, derived) in numbers(np.delete(ROWS, row, axis=0)).items():
            change = np.ravel(whole[entry][0] - without)
            size = np.abs(change).sum() if norm == "l1" else np.linalg.norm(change)
            bound = derived if norm == "l2" or entry != "sums" else derived * np.sqrt(3)
            assert size <= bound * (1 + 1e-12)
            if entry != "sums":  # every row counts, and counts once
                assert size == pytest.approx(derived)
    assert set(whole) <= {"counts", "sums", "cells"}


@pytest.mark.filterwarnings("ignore:overflow")
def test_noise_needs_a_budget_and_is_charged():
    rows = RNG.normal(size=(300, 3))
    dp = so.DP(epsilon=5.0, delta=1e-4, level="record", clip=1.0)
    model = so.FedKMeans(2, rounds=3, init=rows[:2], tolerance=0, dp=dp)
    with pytest.raises(GateRefusal, match="no budget"):
        model.clone().fit(so.simulate(rows, clients=3, policy="noise"))
    small = Policy("noise", budget=(1.0, 1e-3))
    with pytest.raises(GateRefusal, match="privacy budget is ε = 1"):
        model.clone().fit(so.simulate(rows, clients=3, policy=small))
    model.fit(so.simulate(rows, clients=3, policy=BUDGET, seed=1))
    assert model.epsilon_ == pytest.approx(5.0, rel=1e-3)
    assert not hasattr(model, "inertia_")
    with_gap = np.concatenate([rows, np.full((1, 3), 1e200)])  # whose distance is infinite
    model.fit(so.simulate(with_gap, clients=3, policy=BUDGET, seed=1))
    assert is_finite(model.centroids_)
    edges = so.FedBins(4, dp=so.DP(epsilon=8.0, delta=1e-4, level="record"))
    edges.fit(so.simulate(rows, clients=3, policy=BUDGET, seed=1))
    share = (rows[:, 0, None] <= edges.edges_[0]).mean(axis=0)
    np.testing.assert_allclose(share, [0.25, 0.5, 0.75], atol=0.1)


def test_counts_of_many_clients_are_those_of_each():
    """Added up at once where only their sum is needed, by client otherwise, or one by one."""
    X = np.round(RNG.normal(size=(300, 3)) * 3)
    X[RNG.random(X.shape) < 0.1] = np.nan
    X[0, 0] = np.inf
    ask = {"edges": np.array([[-1.0, 0.0, 0.0, 2.0], [0.0] * 4, [-9.0, 1.0, 1.5, 2.0]])}
    fed = so.simulate(X, clients=40)
    alone = so.Federation(LocalEngine(fed.data, memory=1), seed=0)
    replies = alone.ask("preprocess.count", ask).collect()
    for reply, other in zip(fed.ask("preprocess.count", ask).collect(), replies, strict=True):
        assert reply["cells"].tolist() == other["cells"].tolist()
    total = fed.ask("preprocess.count", ask).fold(Sum())["cells"]
    assert total.tolist() == sum(reply["cells"] for reply in replies).tolist()
    for j in range(3):
        known = X[np.isfinite(X[:, j]), j]
        up_to = [(known <= edge).sum() for edge in ask["edges"][j]]
        assert np.cumsum(total[j]).tolist() == [*up_to, len(known)]
    assert {int(record.up.sum()) for record in fed.meter.records} == {alone.meter.total().up}


def test_edges_out_of_order_are_refused():
    for edges in (np.array([[1.0, 0.0]]), np.array([[0.0, 2.0, 1.0]])):
        replies = so.simulate(ROWS[:, :1], clients=2).ask("preprocess.count", {"edges": edges})
        with pytest.raises(NotEnoughReplies, match="not in order"):
            replies.fold(Sum())


def test_sparse_rows_have_the_moments_of_dense_ones():
    from scipy.sparse import csr_matrix

    for width in (1, 4):
        X = np.where(RNG.random((90, width)) < 0.3, RNG.normal(size=(90, width)), 0.0)
        sparse = so.simulate(csr_matrix(X), clients=4)
        np.testing.assert_allclose(pooled_means(sparse), X.mean(axis=0), rtol=1e-12, atol=1e-15)
        moments = pooled_moments(sparse)
        np.testing.assert_allclose(moments["mean"], X.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(moments["variance"], X.var(axis=0), rtol=1e-12)
        assert moments["rows"].tolist() == [90] * width


def test_variances_keep_their_digits_far_from_zero():
    X = np.random.default_rng(1).normal(size=(3000, 2)) * 1e-3 + [1e6, -3e5]
    exact = X.astype(np.longdouble)
    moments = pooled_moments(so.simulate(X, clients=30))
    wanted = ((exact - exact.mean(axis=0)) ** 2).mean(axis=0)
    np.testing.assert_allclose(moments["variance"], wanted.astype(float), rtol=1e-13)
