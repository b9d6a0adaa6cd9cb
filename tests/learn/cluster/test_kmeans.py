"""FedKMeans: Lloyd's algorithm where it must be, and sound where it need not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

import solera as so
from solera.core.clients import ClientGroup, Draws
from solera.core.errors import DataError, UsageError
from solera.core.rng import random_bits
from solera.engines.local import LocalEngine
from solera.learn.cluster.assignment import nearest
from solera.learn.cluster.tasks import assign, steps
from solera.trust.cells import sum_by_cell
from solera.trust.open_asks import numbers_of


def blobs(rows=600, k=4, width=3, seed=0, spread=0.6):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(k, width)) * 6
    label = rng.integers(0, k, rows)
    return centres[label] + spread * rng.normal(size=(rows, width)), label


def lloyd(X, centroids, rounds):
    """Lloyd (1982) as in the textbook; an empty cluster keeps its centroid."""
    centroids = centroids.copy()
    for _ in range(rounds):
        label = cdist(X, centroids).argmin(axis=1)
        for j in range(len(centroids)):
            if (label == j).any():
                centroids[j] = X[label == j].mean(axis=0)
    return centroids


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 5), st.integers(1, 5))
def test_one_epoch_whole_batches_all_clients_is_lloyd(seed, clients, k, rounds):
    X, _ = blobs(120, 3, seed=seed)
    start = X[:k] + 0.01
    fed = so.simulate(X, clients=clients, seed=seed)
    model = so.FedKMeans(k, rounds=rounds, init=start, tolerance=0).fit(fed)
    wanted = lloyd(X, start, len(model.history_))
    np.testing.assert_allclose(model.centroids_, wanted, rtol=1e-9, atol=1e-9)
    assert model.inertia_ == pytest.approx((cdist(X, wanted).min(axis=1) ** 2).sum())
    assert model.counts_.sum() == 120


@pytest.mark.parametrize(
    "partition", [so.partitions.IID(), so.partitions.QuantitySkew(0.5), so.partitions.ByCluster(6)]
)
def test_who_holds_which_rows_does_not_matter(partition):
    X, _ = blobs()
    models = [
        so.FedKMeans(4, init=X[:4], tolerance=0).fit(so.simulate(X, clients=c, partition=p))
        for c, p in ((1, so.partitions.IID()), (6, partition))
    ]
    np.testing.assert_allclose(models[0].centroids_, models[1].centroids_, rtol=1e-9)
    assert len(models[0].history_) == len(models[1].history_)


def test_it_is_scikit_learn_s_k_means():
    X, _ = blobs()
    fed = so.simulate(X, clients=7)
    ours = so.FedKMeans(4, init=X[:4], tolerance=0).fit(fed)
    theirs = KMeans(4, init=X[:4], n_init=1, tol=0, algorithm="lloyd").fit(X)
    np.testing.assert_allclose(ours.centroids_, theirs.cluster_centers_, rtol=1e-9)
    assert ours.inertia_ == pytest.approx(theirs.inertia_)
    assert np.array_equal(ours.predict(X), theirs.predict(X))


def test_the_loss_never_rises_and_it_stops():
    X, _ = blobs(k=6, spread=2.0)
    model = so.FedKMeans(6, init="random", rounds=200).fit(so.simulate(X, clients=5, seed=2))
    losses = [entry["loss"] for entry in model.history_]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(losses))
    assert len(losses) < 200
    assert model.history_[-1]["moved"] <= 1e-3


def test_the_client_s_step_by_hand():
    """Two batches, β = 0.5: Λ and Γ follow the equations of Kumar et al."""
    X = np.array([[0.0], [2.0], [10.0], [14.0]])
    fed = so.simulate(X, clients=1)
    order = {"centroids": np.array([[1.0], [11.0]]), "epochs": 1, "rate": 0.5}
    whole = fed.ask("kmeans.update", {**order, "batch_size": None}).fold(so.aggregations.Sum())
    # means 1 and 12, from 1 and 11 half the way
    assert whole["sums"].ravel().tolist() == [2 * 1.0, 2 * 11.5]
    assert whole["counts"].tolist() == [2, 2]
    assert whole["inertia"] == pytest.approx(1 + 1 + 1 + 9)
    single = fed.ask("kmeans.update", {**order, "batch_size": 1}).collect()[0]
    seen = fed.data.X.ravel()  # batches of one row: Γ moves by β/Λ towards each in turn
    reached = set()
    for perm in itertools.permutations(seen):
        g, n = [1.0, 11.0], [0, 0]
        for x in perm:
            j = int(abs(x - g[1]) < abs(x - g[0]))
            n[j] += 1
            g[j] += 0.5 / n[j] * (x - g[j])
        reached.add((round(g[0] * n[0], 9), round(g[1] * n[1], 9)))
    assert tuple(np.round(single["sums"].ravel(), 9)) in reached


def slow_update(client, ask):
    """One client's epochs and batches, as the equations of Kumar et al. read."""
    X, centroids = client.data.X, ask["centroids"].copy()
    order = np.arange(len(X))
    if ask["batch_size"] is not None:
        order = np.argsort(random_bits(client.key, order), kind="stable")
    step = ask["batch_size"] or len(X)
    for _ in range(ask["epochs"]):
        counts, inertia = np.zeros(len(centroids), dtype=np.int64), 0.0
        for first in range(0, len(X), step):
            batch = X[order[first : first + step]]
            squared = cdist(batch, centroids, "sqeuclidean")
            label = squared.argmin(axis=1)
            inertia += squared.min(axis=1).sum()
            for j, here in zip(*np.unique(label, return_counts=True), strict=True):
                counts[j] += here
                mean = batch[label == j].mean(axis=0)
                centroids[j] += ask["rate"] * here / counts[j] * (mean - centroids[j])
    return {"sums": counts[:, None] * centroids, "counts": counts, "inertia": inertia}


@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_many_clients_at_once_move_centroids_as_the_equations_say(batch_size):
    X, _ = blobs(120)
    data = so.data.FederatedData(X, None, np.array([0, 40, 41, 120]))
    group = ClientGroup(np.arange(3), data, Draws(5, "kmeans.update", 2), [{}, {}, {}])
    ask = {"centroids": X[:4] + 0.01, "epochs": 3, "batch_size": batch_size, "rate": 0.7}
    for client, reply in zip(group, steps.many(group, ask), strict=True):
        for one in (reply, numbers_of(steps, client, ask, steps(client, ask))):
            for name, value in slow_update(client, ask).items():
                np.testing.assert_allclose(one[name], value, rtol=1e-9)


def test_one_step_over_all_rows_is_a_sum():
    X, _ = blobs(120)
    data = so.data.FederatedData(X, None, np.array([0, 40, 41, 120]))
    ask = {"centroids": X[:4] + 0.01}
    slow = {**ask, "epochs": 1, "batch_size": None, "rate": 1.0}
    replies = so.simulate(data).ask(assign, ask).collect()
    alone = so.Federation(LocalEngine(data, memory=1), seed=0).ask(assign, ask).collect()
    group = ClientGroup(np.arange(3), data, Draws(0, "kmeans.assign", 0), [{}, {}, {}])
    for client, reply, other in zip(group, replies, alone, strict=True):
        wanted = slow_update(client, slow)
        np.testing.assert_allclose(reply["sums"], wanted["sums"], rtol=1e-12)
        assert reply["counts"].tolist() == wanted["counts"].tolist()
        assert reply["inertia"].sum() == pytest.approx(wanted["inertia"], rel=1e-12)
        for name, value in reply.payload.items():
            assert value.tobytes() == other[name].tobytes()


def test_the_server_s_rate():
    X, _ = blobs()
    fed = so.simulate(X, clients=3)
    full = so.FedKMeans(4, rounds=1, init=X[:4]).fit(fed).centroids_
    half = so.FedKMeans(4, rounds=1, init=X[:4], server_rate=0.5).fit(fed).centroids_
    np.testing.assert_allclose(half, (X[:4] + full) / 2)


def test_empty_clusters_keep_their_centroid():
    X, _ = blobs(k=2)
    far = np.full((1, 3), 1e6)
    fed = so.simulate(X, clients=4)
    model = so.FedKMeans(3, init=np.concatenate([X[:2], far])).fit(fed)
    assert model.centroids_[2].tolist() == far[0].tolist()
    assert model.counts_[2] == 0
    # empty at one client only: that client does not pull
    split = so.simulate(
        np.array([[0.0], [1.0], [9.0], [11.0]]), partition=so.partitions.ByGroup([0, 0, 1, 1])
    )
    model = so.FedKMeans(2, init=[[0.0], [9.0]]).fit(split)
    assert model.centroids_.ravel().tolist() == [0.5, 10.0]


@pytest.mark.parametrize("init", ["k-means||", "k-means++"])
@pytest.mark.parametrize("partition", [so.partitions.IID(), so.partitions.ByCluster(5)])
def test_seeding_finds_separate_blobs(init, partition):
    X, truth = blobs(1500, 5, seed=4, spread=0.3)
    for seed in range(3):
        fed = so.simulate(X, clients=10, partition=partition, seed=seed)
        model = so.FedKMeans(5, init=init).fit(fed)
        assert so.metrics.jaccard(model.predict(X), truth) > 0.99


def test_seeding_is_about_as_good_as_k_means_plus_plus():
    X, y, *_ = so.datasets.digits()
    best = KMeans(10, n_init=10, random_state=0).fit(X).inertia_
    fed = so.simulate(X, y, clients=20, partition=so.Dirichlet(0.3, min_rows=5), seed=1)
    assert so.FedKMeans(10).fit(fed).inertia_ < 1.05 * best


@pytest.mark.parametrize("init", ["k-means||", "k-means++", "random"])
def test_seeding_sends_no_row(init):
    """Every row carries a mark of its own; what clients send before training has none of them."""
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(200, 2)) * 5) + rng.random((200, 2)) * 1e-3
    sizes = [3, 4, 60, 133]
    fed = so.simulate(X, partition=so.partitions.ByGroup(np.repeat(np.arange(4), sizes)), seed=3)
    sent = []
    original = fed.ask

    def ask(task, payload=None, **options):
        replies = original(task, payload, **options)
        name = getattr(task, "name", task)
        if name in ("kmeans.candidates", "kmeans.local_seeds"):
            answers = original(task, payload, **options).collect()
            sent.extend(answer["sums"] / answer["rows"][:, None] for answer in answers)
        return replies

    fed.ask = ask
    so.FedKMeans(4, rounds=1, init=init).fit(fed)
    points = np.concatenate(sent) if sent else np.empty((0, 2))
    assert init == "random" or len(points)
    if len(points):
        assert cdist(points, X).min() > 1e-9


def test_too_few_candidates_are_completed():
    X = np.array([[0.0], [1.0], [5.0]])
    for init in ("k-means||", "k-means++"):
        model = so.FedKMeans(2, init=init).fit(so.simulate(X, clients=3))
        assert model.centroids_.shape == (2, 1)
        assert np.isfinite(model.centroids_).all()
    same = so.simulate(np.ones((30, 2)), clients=2)
    model = so.FedKMeans(3).fit(same)
    assert model.inertia_ == pytest.approx(0, abs=1e-12)


def test_sparse_and_dense_rows_give_the_same():
    X, _ = blobs(300)
    X[np.abs(X) < 2] = 0
    models = [
        so.FedKMeans(3, batch_size=16, epochs=2, rounds=5).fit(so.simulate(rows, clients=4, seed=1))
        for rows in (X, sparse.csr_matrix(X))
    ]
    np.testing.assert_allclose(models[0].centroids_, models[1].centroids_, rtol=1e-9)
    assert np.array_equal(models[0].predict(X), models[1].predict(sparse.csr_matrix(X)))


def test_silhouette_of_clear_clusters_is_near_the_full_one():
    X, _ = blobs(400, 3, spread=0.2)
    fed = so.simulate(X, clients=5)
    model = so.FedKMeans(3).fit(fed)
    assert model.silhouette(fed) == pytest.approx(silhouette_score(X, model.predict(X)), abs=0.05)
    with pytest.raises(UsageError, match="two"):
        so.FedKMeans(1).fit(fed).silhouette(fed)


def test_a_pipeline_clusters_scaled_rows():
    X, truth = blobs()
    X = X * [1, 1000, 1e-3] + 50
    fed = so.simulate(X, clients=5)
    model = so.Pipeline(so.FedScaler(), so.FedKMeans(4)).fit(fed)
    assert so.metrics.jaccard(model.predict(X), truth) > 0.95
    assert not model.predicts
    with pytest.raises(UsageError, match="jaccard"):
        model.evaluate(so.simulate(X, truth, clients=5, test=0.2))


def test_plots_show_every_centroid():
    X, _ = blobs()
    model = so.FedKMeans(4).fit(so.simulate(X, clients=3))
    assert model.plot().axes[0].images[0].get_array().shape == (4, 3)
    assert len(model.plot(shape=(1, 3)).axes) == 4
    with pytest.raises(UsageError, match="3 columns"):
        model.plot(shape=(2, 2))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"k": 0}, "k must"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"server_rate": 0.0}, "server_rate"),
        ({"client_rate": 1.5}, "client_rate"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"per_round": 2.5}, r"per_round must be .* a number in \(0, 1\] or None"),
        ({"per_round": 0}, "per_round"),
        ({"init": "kmeans"}, r"k-means\|\|"),
        ({"init": np.zeros((3, 2))}, r"\(3, 2\)"),
        ({"init": np.full((3, 3), np.nan)}, "finite"),
    ],
)
def test_bad_parameters_are_named(options, says):
    X, _ = blobs(60)
    with pytest.raises((UsageError, DataError), match=says):
        so.FedKMeans(**{"k": 3, **options}).fit(so.simulate(X, clients=3))


def test_a_client_with_an_infinite_value_is_left_out_and_named(caplog):
    X, _ = blobs(60)

    def generate(client, rng):
        rows = X[client * 20 : (client + 1) * 20].copy()
        if client == 1:
            rows[3, 2] = np.inf
        return rows, None

    fed = so.simulate(so.data.LazyData(generate, clients=3))
    model = so.FedKMeans(2, init=X[:2]).fit(fed)
    assert "client 1 has missing or infinite values in x2" in caplog.text
    assert np.isfinite(model.centroids_).all()
    assert model.counts_.sum() == 40


def test_per_round_as_a_fraction():
    X, _ = blobs()
    fed = so.simulate(X, clients=10)
    for share, clients in ((0.5, 5), (0.01, 1), (1.0, 10)):
        model = so.FedKMeans(2, rounds=1, per_round=share).fit(fed)
        assert model.history_[0]["clients"] == clients


@given(
    hnp.arrays(np.float64, (9, 2), elements=st.integers(-3, 3).map(float)),
    hnp.arrays(np.float64, (4, 2), elements=st.integers(-3, 3).map(float)),
)
def test_nearest_takes_the_first_of_equals_and_sums_add_up(X, centroids):
    label, squared = nearest(X, centroids)
    table = cdist(X, centroids, "sqeuclidean")
    assert np.array_equal(label, table.argmin(axis=1))
    assert squared.tolist() == table.min(axis=1).tolist()
    alone = [nearest(row[None], centroids)[0][0] for row in X]
    assert alone == label.tolist()
    sums = sum_by_cell(X, label, 4)
    assert np.array_equal(sums, [X[label == j].sum(axis=0) for j in range(4)])
