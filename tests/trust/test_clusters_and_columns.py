"""Sums of k-means and of preprocessing: what a row changes of them, and what some withhold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.trust.withholding import Withholding

import solera as so
from solera.core.aggregation import Sum
from solera.core.clients import Client, Draws
from solera.core.errors import DataError, NotEnoughReplies
from solera.core.payload import is_finite
from solera.core.schema import Feature, Schema
from solera.core.task import find_task
from solera.engines.local import LocalEngine
from solera.learn.preprocess.moments import pooled_means, pooled_moments
from solera.learn.preprocess.quantiles import first_counts, quantiles
from solera.trust.cells import Behind
from solera.trust.policy import Policy

LEAST = 5
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
    with pytest.raises(NotEnoughReplies, match="no budget"):
        model.clone().fit(so.simulate(rows, clients=3, policy="noise"))
    small = Policy("noise", budget=(1.0, 1e-3))
    with pytest.raises(NotEnoughReplies, match="privacy budget is ε = 1"):
        model.clone().fit(so.simulate(rows, clients=3, policy=small))
    model.fit(so.simulate(rows, clients=3, policy=BUDGET, seed=1))
    plain = model.clone().fit(so.simulate(rows, clients=3, seed=1))
    np.testing.assert_array_equal(model.centroids_, plain.centroids_)
    assert not hasattr(model, "inertia_")
    with_gap = np.concatenate([rows, np.full((1, 3), 1e200)])  # whose distance is infinite
    model.fit(so.simulate(with_gap, clients=3, policy=BUDGET, seed=1))
    assert is_finite(model.centroids_)
    edges = so.FedBins(4, dp=so.DP(epsilon=8.0, delta=1e-4, level="record"))
    edges.fit(so.simulate(rows, clients=3, policy=BUDGET, seed=1))
    share = (rows[:, 0, None] <= edges.edges_[0]).mean(axis=0)
    np.testing.assert_allclose(share, [0.25, 0.5, 0.75], atol=0.1)


# --- columns of which clients know few values ---


def sparse_columns(clients: int) -> tuple[Any, Any, list[Any]]:
    """30 columns far from 0, of which some clients know 1 to 4 values; rows by client."""
    draw = np.random.default_rng(clients)
    parts = []
    for client in range(clients):
        rows = draw.normal(size=(25, 30)) * draw.uniform(0.1, 30, 30) + 1000.0 + 50 * client
        for j in draw.choice(30, 8, replace=False):
            rows[draw.integers(1, LEAST) :, j] = np.nan
        parts.append(rows)
    ends = np.concatenate([[0], np.cumsum([len(rows) for rows in parts])])
    X = np.concatenate(parts)
    return X, so.data.FederatedData(X, None, ends), parts


def told(parts: list[Any], column: int) -> Any:
    """The known values of a column, of the clients that know enough of them."""
    known = [part[~np.isnan(part[:, column]), column] for part in parts]
    return np.concatenate([values for values in known if len(values) >= LEAST])


@pytest.mark.parametrize("clients", [5, 10, 20])
def test_means_are_of_the_rows_that_are_told_and_marked(clients):
    X, data, parts = sparse_columns(clients)
    fed = so.simulate(data, policy=Withholding())
    model = so.FedScaler().fit(fed)
    values = [told(parts, j) for j in range(30)]
    np.testing.assert_allclose(model.mean_, [v.mean() for v in values], rtol=1e-12)
    np.testing.assert_allclose(model.scale_, [v.std() for v in values], rtol=1e-9)
    few = (~np.isnan(np.stack(parts))).sum(axis=1) < LEAST
    records = [r for r in fed.meter.records if r.task == "preprocess.moments"]
    assert len(records) == 2
    for record in records:
        for entry in ("rows", "sum"):
            assert record.absent[entry].tolist() == few.sum(axis=0).tolist()
    means = so.FedImputer().fit(fed)
    np.testing.assert_allclose(means.fill_, model.mean_, rtol=1e-12)
    nothing_withheld = so.FedScaler().fit(so.simulate(data))
    assert "warnings" not in nothing_withheld._trained_with
    np.testing.assert_allclose(nothing_withheld.mean_, np.nanmean(X, axis=0), rtol=1e-12)


def test_a_column_of_which_nothing_is_told_is_an_error_that_names_it():
    X = np.random.default_rng(0).normal(size=(60, 3))
    X[np.arange(60) % 20 >= 3, 1] = np.nan  # three values at each of three clients
    ends = np.array([0, 20, 40, 60])
    names = ("age", "marker", "weight")
    schema = Schema(tuple(map(Feature, names)))
    data = so.data.FederatedData(X, None, ends, schema=schema)
    fed = so.simulate(data, policy=Withholding())
    for step in (so.FedScaler(), so.FedImputer(), so.FedImputer("median"), so.FedBins(3)):
        with pytest.raises(DataError, match="nothing is told of marker: every client withholds"):
            step.fit(fed)
    kinds = tuple(
        Feature(n, "categorical", ("a", "b")) if n == "marker" else Feature(n) for n in names
    )
    codes = np.where(np.isnan(X), np.nan, np.where(np.arange(3) == 1, X > 0, X))
    data = so.data.FederatedData(codes, None, ends, schema=Schema(kinds))
    with pytest.raises(DataError, match="nothing is told of marker"):
        so.FedImputer().fit(so.simulate(data, policy=Withholding()))


def test_the_commonest_category_is_that_of_the_rows_that_are_told():
    """Of four clients three have four rows of the last category each, and no other as often."""
    codes = np.concatenate([np.repeat([0.0, 2.0], [18, 12]), *[np.repeat([1.0, 2.0], [7, 4])] * 3])
    ends = np.array([0, 30, 41, 52, 63])
    schema = Schema((Feature("c", "categorical", ("p", "q", "r")),))
    data = so.data.FederatedData(codes[:, None], None, ends, schema=schema)
    assert np.bincount(codes.astype(int)).argmax() == 2
    fed = so.simulate(data, policy=Withholding())
    replies = fed.ask("preprocess.count_categories", {"sizes": [3]})
    assert replies.fold(Sum())["0"].tolist() == [
        18,
        0,
        12,
    ]  # the other is hidden with the small one
    assert replies.absent["0"].tolist() == [0, 3, 3]
    model = so.FedImputer().fit(fed)
    assert model.fill_.tolist() == [0.0]


@pytest.mark.parametrize(("clients", "error"), [(5, 0.01), (50, 0.03)])
def test_quantiles_are_close_where_clients_withhold_some(clients, error):
    draw = np.random.default_rng(0)
    values = np.stack(
        [draw.normal(size=2000) * 100 + 1000, draw.exponential(size=2000) - 0.1], axis=1
    )
    fed = so.simulate(values, clients=clients, policy=Withholding())
    assert first_counts(fed, 2).withheld.any(axis=1).tolist() == [False, True]
    bins = so.FedBins(4).fit(fed)
    for j in (0, 1):
        share = (values[:, j, None] <= bins.edges_[j]).mean(axis=0)
        np.testing.assert_allclose(share, [0.25, 0.5, 0.75], atol=error)
    median = so.FedImputer("median").fit(fed).fill_
    np.testing.assert_allclose((values <= median).mean(axis=0), 0.5, atol=error)
    begun = so.simulate(values[:, :1], clients=clients, policy=Withholding())
    halves = quantiles(begun, 0.5, 1)  # exact before clients begin to withhold
    assert abs((values[:, 0] <= halves[0, 0]).mean() - 0.5) < error
    many = quantiles(fed, np.arange(1, 64) / 64, 2)
    assert is_finite(many)
    assert (np.diff(many, axis=1) >= 0).all()


def test_cells_of_one_column_do_not_give_those_of_another_by_subtraction():
    """All rows of the first column are told, so the small cell of the second hides with another."""
    rows = np.stack([np.arange(20.0), np.arange(20.0)], axis=1)
    data = so.data.FederatedData(rows, None, np.array([0, 20]))
    fed = so.simulate(data, policy=Withholding())
    (reply,) = fed.ask(
        "preprocess.count", {"edges": np.array([[9.0, 14.0], [1.0, 11.0]])}
    ).collect()
    assert reply["cells"].tolist() == [[10, 5, 5], [0, 10, 0]]
    assert reply.absent["cells"].tolist() == [[False] * 3, [True, False, True]]


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
        for policy in (None, Withholding()):
            hidden = so.simulate(csr_matrix(X), clients=4, policy=policy)
            np.testing.assert_allclose(pooled_means(hidden), X.mean(axis=0), rtol=1e-12, atol=1e-15)
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


# --- clusters of few rows ---


def told_cells(label: Any, k: int) -> Any:
    """Which clusters a client tells: those of enough rows, without what would give the others."""
    counts = np.bincount(label, minlength=k)
    hidden = (counts > 0) & (counts < LEAST)
    for cell in np.argsort(counts, kind="stable") if hidden.any() else ():
        if counts[hidden].sum() >= LEAST:
            break
        hidden[cell] |= counts[cell] > 0
    return ~hidden


def test_centroids_are_those_of_the_rows_that_are_told():
    draw = np.random.default_rng(2)
    start = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    X = np.concatenate(
        [draw.normal(size=(n, 2)) + c for n, c in zip((90, 60, 30), start, strict=True)]
    )
    draw.shuffle(X)
    fed = so.simulate(X, clients=6, policy=Withholding(), seed=0)
    model = so.FedKMeans(3, rounds=1, init=start).fit(fed)
    nearest = lambda rows, at: ((rows[:, None] - at) ** 2).sum(axis=2)  # noqa: E731

    def oracle(centroids):
        sums, counts, inertia = np.zeros((3, 2)), np.zeros(3, int), 0.0
        for client in range(6):
            rows = fed.data.segments(np.array([client]))[0].X
            squared = nearest(rows, centroids)
            label = squared.argmin(axis=1)
            for j in np.flatnonzero(told_cells(label, 3)):
                sums[j] += rows[label == j].sum(axis=0)
                counts[j] += (label == j).sum()
                inertia += squared[label == j, j].sum()
        return sums, counts, inertia

    sums, counts, inertia = oracle(start)
    assert 0 < counts.sum() < len(X)
    np.testing.assert_allclose(model.centroids_, sums / counts[:, None], rtol=1e-12)
    assert model.history_[0]["loss"] == pytest.approx(inertia / counts.sum())
    _, counts, inertia = oracle(model.centroids_)
    assert model.counts_.tolist() == counts.tolist()
    assert model.inertia_ == pytest.approx(inertia)
    absent = fed.meter.records[-1].absent
    assert {name: n.tolist() for name, n in absent.items()}.keys() == {"counts", "inertia"}
    assert absent["counts"].tolist() == absent["inertia"].tolist()
