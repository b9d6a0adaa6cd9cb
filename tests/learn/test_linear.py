"""FedLinear against closed forms, scikit-learn and plain gradient descent."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression

import solera as so
from solera.core.errors import DataError, NotEnoughReplies, UsageError

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 5))
W = rng.normal(size=(5, 3))


def test_one_full_batch_step_is_centralised_gradient_descent():
    y = (X @ W).argmax(axis=1)
    sizes = [100, 250, 40, 10]
    data = so.data.FederatedData(X, y, np.concatenate([[0], np.cumsum(sizes)]))
    model = so.FedLinear(rounds=5, lr=0.3, batch_size=None, l2=0.1).fit(so.simulate(data))
    w, b = np.zeros((5, 3)), np.zeros(3)
    for _ in range(5):
        p = np.exp(X @ w + b)
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(400), y] -= 1
        w, b = w - 0.3 * (X.T @ p / 400 + 0.1 * w), b - 0.3 * p.mean(axis=0)
    np.testing.assert_allclose(model.coef_, w, rtol=1e-10)
    np.testing.assert_allclose(model.intercept_, b, rtol=1e-10)


def test_linear_regression_reaches_least_squares():
    y = X @ W + 0.01 * rng.normal(size=(400, 3))
    fed = so.simulate(X, y, clients=8, seed=1)
    model = so.FedLinear(rounds=60, lr=0.1, batch_size=None, epochs=5).fit(fed)
    best = np.linalg.lstsq(np.c_[X, np.ones(400)], y, rcond=None)[0]
    np.testing.assert_allclose(model.coef_, best[:5], atol=0.02)
    assert model.score(X, y) > 0.999
    assert model.predict(X).shape == (400, 3)


def test_close_to_centralised_logistic_regression():
    X, y, X_test, y_test = so.datasets.breast_cancer()
    fed = so.simulate(X, y, clients=10, partition=so.Dirichlet(1.0), seed=0)
    model = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=40, lr=0.2)).fit(fed)
    mean, scale = X.mean(axis=0), X.std(axis=0)
    central = LogisticRegression(max_iter=1000).fit((X - mean) / scale, y)
    theirs = central.score((X_test - mean) / scale, y_test)
    assert model.score(X_test, y_test) > theirs - 0.03


def test_text_classes_and_probabilities():
    names = np.array(["ant", "bee", "cat"])[(X @ W).argmax(axis=1)]
    model = so.FedLinear(rounds=20, lr=0.5).fit(so.simulate(X, names, clients=5))
    assert model.score(X, names) > 0.9
    assert set(model.predict(X)) <= {"ant", "bee", "cat"}
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)


def test_labels():
    y = (X @ W > 0).astype(np.uint8)
    model = so.FedLinear(rounds=30, lr=0.5).fit(so.simulate(X, y, clients=5))
    assert model.score(X, y) > 0.8
    assert ((model.predict_proba(X) > 0.5) == model.predict(X)).all()


def test_sparse_rows_equal_dense_rows():
    dense = np.where(rng.random((200, 6)) < 0.3, rng.normal(size=(200, 6)), 0.0)
    y = (dense.sum(axis=1) > 0).astype(int)
    a = so.FedLinear(rounds=3).fit(so.simulate(dense, y, clients=4, seed=2))
    b = so.FedLinear(rounds=3).fit(
        so.simulate(scipy.sparse.csr_matrix(dense), y, clients=4, seed=2)
    )
    np.testing.assert_allclose(a.coef_, b.coef_, rtol=1e-12)
    assert np.array_equal(a.predict(dense), b.predict(scipy.sparse.csr_matrix(dense)))


def test_float32_stays_float32():
    y = (X @ W).argmax(axis=1)
    model = so.FedLinear(rounds=2).fit(so.simulate(X.astype(np.float32), y, clients=4))
    assert model.coef_.dtype == np.float32


def test_images_need_not_be_flat():
    y = (X[:, :4] @ W[:4]).argmax(axis=1)
    flat = so.FedLinear(rounds=2).fit(so.simulate(X[:, :4], y, clients=4))
    square = so.FedLinear(rounds=2).fit(so.simulate(X[:, :4].reshape(-1, 2, 2), y, clients=4))
    assert np.array_equal(flat.coef_, square.coef_)
    assert np.array_equal(flat.predict(X[:, :4]), square.predict(X[:, :4].reshape(-1, 2, 2)))


def test_bad_data():
    y = (X @ W).argmax(axis=1)
    with pytest.raises(DataError, match="two classes"):
        so.FedLinear().fit(so.simulate(X, np.zeros(400, dtype=int), clients=4))
    with pytest.raises(DataError, match="target"):
        so.FedLinear().fit(so.simulate(X, clients=4))
    with pytest.raises(NotEnoughReplies, match=r"diverged at client 0 .*lower lr"):
        so.FedLinear(lr=1e200).fit(so.simulate(1e200 * X, X @ W, clients=2))
    with pytest.raises(UsageError, match="probabilities"):
        so.FedLinear(rounds=1).fit(so.simulate(X, X @ W, clients=2)).predict_proba(X)
    lazy = so.data.LazyData(lambda client, rng: (X[:9, : 3 + client % 2], y[:9]), clients=4,
                       schema=so.simulate(X[:, :3], y, clients=2).schema)  # fmt: skip
    fed = so.simulate(lazy)
    model = so.FedLinear(rounds=1).fit(fed)
    assert model.history_[0]["failures"] == 2
    empty = so.data.FederatedData(X, y, np.array([0, 200, 200, 400]))
    with pytest.raises(DataError, match="client 1 has no rows"):
        so.FedLinear(rounds=1).fit(so.simulate(empty))
    gappy = X.copy()
    gappy[150, 2] = np.nan
    data = so.data.FederatedData(gappy, y, np.array([0, 100, 400]))
    with pytest.raises(DataError, match=r"client 1 has missing .* x2"):
        so.FedLinear(rounds=1).fit(so.simulate(data))
