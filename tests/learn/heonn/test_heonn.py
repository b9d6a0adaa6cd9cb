"""FedHEONN: the closed form of the joined rows, however they are split."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import solera as so
from solera.core.clients import Client, Draws
from solera.core.errors import DataError, NotEnoughReplies, UsageError
from solera.learn.heonn.activations import activation
from solera.learn.heonn.statistics import draw_rows

rng = np.random.default_rng(0)
X = rng.normal(size=(90, 6))
X[:, 5] = X[:, 0] + 0.5 * X[:, 1]
Y = (X @ rng.normal(size=(6, 3)) + rng.normal(size=(90, 3))).argmax(axis=1)
LABELS = (X @ rng.normal(size=(6, 3)) > 0).astype(np.uint8)
NUMBERS = X @ rng.normal(size=(6, 2)) + 0.1 * rng.normal(size=(90, 2))
TARGETS = {"classes": Y, "labels": LABELS, "numbers": NUMBERS}


def slow(X, targets, name="logistic", lam=0.01, derivative="exact"):
    """The thesis's algorithms 2 to 5: an SVD per output, w = U (S² + λ)⁻¹ Uᵀ m (Eq. 3.20)."""
    f = activation(name, derivative)
    A = np.concatenate([np.ones((len(X), 1)), X], axis=1).T
    weights = []
    for d in targets.T:
        d_bar, slope = f.inverse(d), f.slope(d)
        U, S, _ = np.linalg.svd(A * slope, full_matrices=False)
        m = A @ (slope**2 * d_bar)
        weights.append(U @ ((U.T @ m) / (S**2 + lam)))
    return np.array(weights).T


def coded(y):
    present = np.eye(3)[y] if y.ndim == 1 else y
    return np.where(present == 1, 0.95, 0.05)


def fed(y=Y, sizes=(40, 25, 15, 9, 1), rows=X, **options):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return so.simulate(so.data.FederatedData(rows, y, offsets), **options)


def close(a, b, tolerance=1e-9):
    assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)


@pytest.mark.parametrize("name", ["logistic", "softplus", "relu", "linear"])
@pytest.mark.parametrize("derivative", ["exact", "thesis"])
@pytest.mark.parametrize("target", ["classes", "labels"])
def test_equals_the_algorithms_of_the_thesis(name, derivative, target):
    model = so.FedHEONN(name, derivative=derivative).fit(fed(TARGETS[target]))
    close(model.weights_, slow(X, coded(TARGETS[target]), name, 0.01, derivative))


def test_numbers_equal_the_thesis_for_each_activation():
    model = so.FedHEONN("linear").fit(fed(NUMBERS))
    close(model.weights_, slow(X, NUMBERS, "linear"))
    between = 1 / (1 + np.exp(-NUMBERS))
    close(so.FedHEONN("logistic").fit(fed(between)).weights_, slow(X, between))
    positive = np.exp(NUMBERS)
    close(so.FedHEONN("softplus").fit(fed(positive)).weights_, slow(X, positive, "softplus"))


@given(st.permutations(range(90)), st.lists(st.integers(1, 89), max_size=6, unique=True))
@settings(max_examples=40, deadline=None)
def test_any_partition_gives_the_centralised_solution(order, cuts):
    offsets = np.array([0, *sorted(cuts), 90])
    data = so.data.FederatedData(X[list(order)], Y[list(order)], offsets, schema=fed().schema)
    close(so.FedHEONN().fit(so.simulate(data)).weights_, slow(X, coded(Y)))


@given(st.permutations(range(5)), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_clients_may_come_in_any_order_and_groups(order, cut):
    federation = fed()
    model = so.FedHEONN()
    model.partial_fit(federation, clients=order[:cut])
    early = model.weights_.copy()
    model.partial_fit(federation, clients=order[cut:])
    close(model.weights_, slow(X, coded(Y)))
    assert not np.allclose(early, model.weights_)


def test_new_rows_are_added_to_what_is_known():
    model = so.FedHEONN().partial_fit(fed(Y[:50], (30, 20), X[:50]))
    more = so.data.FederatedData(X[50:], Y[50:], np.array([0, 40]), schema=model.schema_)
    model.partial_fit(so.simulate(more))
    close(model.weights_, slow(X, coded(Y)))
    assert model.statistics_["rows"] == 90


def test_one_row_per_client():
    model = so.FedHEONN().fit(fed(sizes=[1] * 90))
    close(model.weights_, slow(X, coded(Y)))


@pytest.mark.parametrize("target", ["classes", "labels", "numbers"])
@pytest.mark.parametrize("lam", [1e-2, 1e-6, 10.0])
@pytest.mark.parametrize("derivative", ["exact", "thesis"])
def test_gram_equals_svd(target, lam, derivative):
    name = "linear" if target == "numbers" else "logistic"
    found = [
        so.FedHEONN(name, lam=lam, representation=r, derivative=derivative)
        .fit(fed(TARGETS[target]))
        .weights_
        for r in ("gram", "svd", "auto")
    ]
    close(found[0], found[1], 1e-8)
    close(found[2], found[0], 1e-8)


def test_no_regularisation_with_constant_and_repeated_columns():
    flat = np.concatenate([X, np.ones((90, 1)), np.zeros((90, 1)), X[:, :1]], axis=1)
    best = np.linalg.lstsq(np.c_[np.ones(90), flat], NUMBERS, rcond=None)[0]
    for representation in ("gram", "svd", "auto"):
        model = so.FedHEONN("linear", lam=0.0, representation=representation)
        model.fit(fed(NUMBERS, rows=flat))
        np.testing.assert_allclose(model.predict(flat), np.c_[np.ones(90), flat] @ best, atol=1e-6)
        assert np.abs(model.weights_).max() < 10


def test_factors_keep_singular_values_that_gram_matrices_lose():
    near = np.c_[X[:, :2], X[:, 0] + 1e-9 * rng.normal(size=90)]
    smallest = np.linalg.svd(np.c_[np.ones(90), near], compute_uv=False)[-1]
    kept = so.FedHEONN("linear", lam=1e-12).fit(fed(NUMBERS, rows=near)).statistics_["shape"]
    found = np.linalg.svd(kept["factors"][0, 0], compute_uv=False)[-1]
    assert found == pytest.approx(smallest, rel=1e-5)
    gram = so.FedHEONN("linear", lam=1e-12, representation="gram").fit(fed(NUMBERS, rows=near))
    eigenvalue = np.linalg.eigvalsh(gram._grams(gram.statistics_["shape"])[0, 0])[0]
    assert np.sqrt(max(eigenvalue, 0)) != pytest.approx(smallest, rel=0.1)


def test_sparse_rows():
    thin = np.where(np.abs(X) > 1, X, 0.0)
    sparse = so.FedHEONN().fit(fed(rows=scipy.sparse.csr_matrix(thin)))
    close(sparse.weights_, slow(thin, coded(Y)))
    assert sparse.score(scipy.sparse.csr_matrix(thin), Y) == sparse.score(thin, Y)


def test_many_rows_are_taken_in_chunks(monkeypatch):
    whole = so.FedHEONN(derivative="thesis").fit(fed()).weights_
    monkeypatch.setattr("solera.trust.members._CHUNK", 1)
    close(so.FedHEONN(derivative="thesis").fit(fed()).weights_, whole)
    close(so.FedHEONN(representation="svd", derivative="thesis").fit(fed()).weights_, whole, 1e-8)


# --- λ from one message ---


def test_lambda_is_chosen_on_clients_left_out():
    lams = [1e-4, 1e-2, 1.0, 100.0]
    federation = fed()
    model = so.FedHEONN(lam=lams).fit(federation)
    assert federation.meter.total(task="heonn.statistics").asks == 1
    errors = []
    owner = np.repeat(np.arange(5), [40, 25, 15, 9, 1])
    f = activation("logistic")
    for lam in lams:
        total = 0.0
        for k in range(5):
            w = slow(X[owner != k], coded(Y[owner != k]), lam=lam)
            d = coded(Y[owner == k])
            z = np.c_[np.ones((owner == k).sum()), X[owner == k]] @ w
            total += ((f.slope(d) * (f.inverse(d) - z)) ** 2).sum()
        errors.append(total / 90)
    np.testing.assert_allclose(list(model.lam_errors_.values()), errors, rtol=1e-7)
    assert model.lam_ == lams[int(np.argmin(errors))]
    close(model.weights_, slow(X, coded(Y), lam=model.lam_))


def test_lambdas_as_an_array_and_of_some_clients():
    array = so.FedHEONN(lam=np.logspace(-3, 1, 4)).fit(fed())
    assert array.lam_ in np.logspace(-3, 1, 4)
    some = so.FedHEONN(lam=[0.01, 1.0]).partial_fit(fed(sizes=[2] * 45), clients=[0, 20, 40])
    assert len(some.lam_errors_) == 2


def test_path_needs_no_further_message():
    federation = fed()
    model = so.FedHEONN().fit(federation)
    asked = federation.meter.total().asks
    for lam, w in zip([0.001, 0.1, 10], model.path([0.001, 0.1, 10]), strict=True):
        close(w, slow(X, coded(Y), lam=lam), 1e-8)
    assert federation.meter.total().asks == asked


# --- ensembles ---


@pytest.mark.parametrize("derivative", ["exact", "thesis"])
@pytest.mark.parametrize("replacement", [True, False])
def test_ensembles_equal_a_slow_reference(derivative, replacement):
    patches = so.RandomPatches(
        7, rows=0.6, row_replacement=replacement, features=0.7, feature_replacement=replacement
    )
    federation = fed(sizes=(50, 40))
    model = so.FedHEONN(ensemble=patches, derivative=derivative).fit(federation)
    drawn = []
    for k in range(2):
        client = Client(k, federation.data, Draws(0, "heonn.statistics", 0), {})
        rows = federation.data.segments(np.array([k]))[0]
        n = round(0.6 * len(rows))
        picks = draw_rows(client.rng, 7, len(rows), n, replacement)
        assert replacement or all(len(np.unique(p)) == n for p in picks)
        drawn.append([(rows.X[p], rows.y[p]) for p in picks])
    votes = np.zeros((90, 3))
    for t, columns in enumerate(model.patches_):
        Xt = np.concatenate([d[t][0] for d in drawn])[:, columns]
        yt = np.concatenate([d[t][1] for d in drawn])
        w = slow(Xt, coded(yt), derivative=derivative)
        close(model.weights_[t], w, 1e-8)
        best = (np.c_[np.ones(90), X[:, columns]] @ w).argmax(axis=1)
        votes[np.arange(90), best] += 1
    assert np.array_equal(model.predict(X), votes.argmax(axis=1))


def test_clients_draw_rows_of_their_own_and_share_features():
    same = np.tile(X[:30], (2, 1))
    federation = fed(np.tile(Y[:30], 2), (30, 30), same)
    patches = so.RandomPatches(3, rows=0.5)
    model = so.FedHEONN(ensemble=patches)
    one = model.clone().partial_fit(federation, clients=[0]).statistics_["shape"]["grams"]
    two = model.clone().partial_fit(federation, clients=[1]).statistics_["shape"]["grams"]
    assert not np.allclose(one, two)
    again = model.clone().partial_fit(federation, clients=[0]).statistics_["shape"]["grams"]
    assert np.array_equal(one, again)


def test_mean_vote_and_numbers():
    patches = so.RandomPatches(5, rows=0.8)
    model = so.FedHEONN("linear", ensemble=patches).fit(fed(NUMBERS))
    each = [
        np.c_[np.ones(90), X[:, c]] @ w for c, w in zip(model.patches_, model.weights_, strict=True)
    ]
    np.testing.assert_allclose(model.predict(X), np.mean(each, axis=0))
    by_mean = so.FedHEONN(ensemble=patches, vote="mean").fit(fed())
    assert np.array_equal(by_mean.predict(X), by_mean.outputs(X).mean(axis=0).argmax(axis=1))


# --- hidden features ---


@pytest.mark.parametrize("kind", ["fourier", "random_layer"])
def test_hidden_features_are_the_same_everywhere_and_still_exact(kind):
    one = so.FedHEONN(features=kind, hidden=30).fit(fed(sizes=(90,)))
    five = so.FedHEONN(features=kind, hidden=30).fit(fed())
    close(five.weights_, one.weights_, 1e-8)
    late = so.FedHEONN(features=kind, hidden=30)
    late.partial_fit(fed(), clients=[3, 4]).partial_fit(fed(), clients=[0, 1, 2])
    close(late.weights_, one.weights_, 1e-8)
    other = so.FedHEONN(features=kind, hidden=30).fit(fed(seed=5))
    assert not np.allclose(other.weights_, one.weights_)


def test_hidden_features_learn_what_a_line_cannot():
    ring = rng.normal(size=(600, 2))
    inside = (np.linalg.norm(ring, axis=1) < 1.1).astype(int)
    federation = so.simulate(ring, inside, clients=6)
    assert so.FedHEONN().fit(federation).score(ring, inside) < 0.75
    assert so.FedHEONN(features="fourier", hidden=100).fit(federation).score(ring, inside) > 0.95


# --- what can go wrong ---


def test_clients_with_few_rows_are_warned_about_or_refuse(caplog):
    with caplog.at_level(logging.WARNING, logger="solera"):
        so.FedHEONN().fit(fed())
    assert "1 clients have fewer rows than the layer has columns (7)" in caplog.text
    with caplog.at_level(logging.WARNING, logger="solera"):
        so.FedHEONN(ensemble=so.RandomPatches(3, rows=0.2, features=1.0)).fit(fed(sizes=(60, 30)))
    assert "1 clients have fewer rows than the layer has columns (7)" in caplog.text.split("\n")[-2]
    federation = fed()
    model = so.FedHEONN(min_rows=10).fit(federation)
    assert model.statistics_["rows"] == 80
    with pytest.raises(NotEnoughReplies, match="at least 100 are needed"):
        so.FedHEONN(min_rows=100).fit(fed())


def test_bad_input():
    with pytest.raises(NotEnoughReplies, match=r"outside the range .* activation='linear'"):
        so.FedHEONN().fit(fed(NUMBERS))
    schema = fed().schema
    late = so.data.FederatedData(X, Y + 5, np.array([0, 90]), schema=schema)
    with pytest.raises(NotEnoughReplies, match="not among the 3 agreed classes"):
        so.FedHEONN().fit(so.simulate(late))
    with pytest.raises(DataError, match="two classes"):
        so.FedHEONN().fit(fed(np.zeros(90, int)))
    with pytest.raises(DataError, match="target"):
        so.FedHEONN().fit(fed(None))
    model = so.FedHEONN().fit(fed())
    with pytest.raises(DataError, match="3 features, but FedHEONN is expecting 6"):
        model.partial_fit(fed(rows=X[:, :3]))
    gappy = X.copy()
    gappy[3, 2] = np.inf
    with pytest.raises(DataError, match=r"client 0 .* x2"):
        so.FedHEONN().fit(fed(rows=gappy))
    for options, message in [
        ({"activation": "tanh"}, "activation"),
        ({"lam": -1}, "lam"),
        ({"lam": []}, "lam"),
        ({"derivative": "wrong"}, "derivative"),
        ({"vote": "none"}, "vote"),
        ({"rule": "none"}, "rule"),
        ({"features": "cosine"}, "features"),
        ({"features": "fourier", "hidden": 0}, "hidden"),
        ({"representation": "qr"}, "representation"),
    ]:
        with pytest.raises(UsageError, match=message):
            so.FedHEONN(**options)
        with pytest.raises(UsageError, match=message):
            so.FedHEONN().set_params(**options).partial_fit(fed())
    for options, message in [
        ({"estimators": 0}, "estimators must be a whole number of at least 1"),
        ({"rows": 0}, r"rows must be a number in \(0, 1\]"),
        ({"features": 1.5}, r"features must be a number in \(0, 1\]"),
    ]:
        with pytest.raises(UsageError, match=message):
            so.RandomPatches(**options)
    with pytest.raises(UsageError, match="at least two"):
        so.FedHEONN(lam=[0.1, 1]).fit(fed(sizes=(90,)))


def test_single_class_clients_do_no_harm():
    order = np.argsort(Y, kind="stable")
    sizes = np.bincount(Y)
    model = so.FedHEONN().fit(fed(Y[order], sizes, X[order]))
    close(model.weights_, slow(X, coded(Y)))


def test_clients_get_no_statistics_when_they_evaluate():
    federation = fed(sizes=(45, 45))
    federation = so.simulate(federation.data.split(test=0.3))
    model = so.FedHEONN().fit(federation)
    light = model.for_prediction()
    assert "statistics_" not in light.get_state()
    assert np.array_equal(light.predict(X), model.predict(X))
    assert 0 < model.evaluate(federation)["accuracy"] <= 1
