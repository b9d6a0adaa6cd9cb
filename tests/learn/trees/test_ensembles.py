"""FedID3, FedForest, SimFL and FedHistGBDT: what they must equal, and where they must not break."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

import solera as so
from solera.core.errors import DataError, UsageError
from solera.learn.trees.boosting.base import gradients
from solera.learn.trees.boosting.histograms import Units
from solera.learn.trees.boosting.simfl_tasks import hyperplanes, most_similar
from solera.learn.trees.id3 import grow_id3

seeds = st.integers(0, 2**32 - 1)


def data(seed, target, rows=150, gaps=0.1):
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, 3)).round(2)
    z = X[:, 0] + X[:, 1] * X[:, 2]
    X[draw.random(X.shape) < gaps] = np.nan
    y = {"two": z > 0, "three": np.digitize(z, [-0.5, 0.5]), "numbers": z * 1000.0}[target]
    return X, y if target == "numbers" else y.astype(int)


def divided(X, y, offsets):
    schema = so.simulate(X, y, clients=1).schema
    return so.simulate(so.data.FederatedData(X, y, np.array([0, *offsets, len(X)]), schema=schema))


@given(seed=seeds, target=st.sampled_from(["two", "three", "numbers"]), data_=st.data())
@settings(max_examples=15, deadline=None)
def test_histgbdt_grows_the_same_trees_over_any_partition(seed, target, data_):
    X, y = data(seed, target)
    cuts = data_.draw(st.sets(st.integers(1, len(X) - 1), min_size=1, max_size=9))
    order = np.random.default_rng(seed).permutation(len(X))
    make = lambda: so.FedHistGBDT(rounds=4, max_depth=3, min_rows=2, bins=32)  # noqa: E731
    joined = make().fit(divided(X, y, []))
    parted = make().fit(divided(X[order], y[order], sorted(cuts)))
    assert joined.initial_.tolist() == parted.initial_.tolist()
    assert joined.trees_ == parted.trees_


def test_histgbdt_is_as_good_as_scikit_learn():
    X, y, X_test, y_test = so.datasets.breast_cancer()
    ours = so.FedHistGBDT(rounds=50, max_depth=4).fit(so.simulate(X, y, clients=5, seed=0))
    peer = HistGradientBoostingClassifier(
        max_iter=50, max_depth=4, max_leaf_nodes=None, early_stopping=False
    ).fit(X, y)
    assert ours.score(X_test, y_test) >= peer.score(X_test, y_test) - 0.02
    X, y = data(0, "numbers", rows=1500, gaps=0.05)
    ours = so.FedHistGBDT(rounds=60, max_depth=4).fit(so.simulate(X[:1000], y[:1000], clients=5))
    peer = HistGradientBoostingRegressor(
        max_iter=60, max_depth=4, max_leaf_nodes=None, early_stopping=False
    ).fit(X[:1000], y[:1000])
    assert ours.score(X[1000:], y[1000:]) >= peer.score(X[1000:], y[1000:]) - 0.02


def test_the_loss_falls_and_probabilities_are_per_row():
    X, y = data(1, "three", rows=600)
    model = so.FedHistGBDT(rounds=15).fit(so.simulate(X, y, clients=4))
    losses = [entry["loss"] for entry in model.history_]
    assert losses == sorted(losses, reverse=True)
    p = model.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    for i in (0, 7):
        np.testing.assert_allclose(model.predict_proba(X[i : i + 1])[0], p[i])


def test_rounds_are_judged_by_rows_as_they_are():
    """By codes of bins the last round's R² of validation rows was 1 lower than the model's."""
    X, y = data(2, "numbers", rows=400)
    fed = so.simulate(X, y, clients=4, validation=0.25, seed=1)
    model = so.FedHistGBDT(rounds=4, min_rows=5).fit(fed, callbacks=[so.callbacks.Evaluate()])
    for name, value in model.evaluate(fed, "validation").metrics.items():
        assert model.history_[-1][name] == pytest.approx(value)


@pytest.mark.parametrize("learner", [so.FedHistGBDT(rounds=12, min_rows=3), so.SimFL(rounds=12)])
def test_clients_that_come_and_go(learner):
    X, y = data(2, "two", rows=400)
    fed = so.simulate(X, y, clients=8, failures=so.simulation.Failures(dropout=0.2), seed=1)
    model = learner.clone().fit(fed)
    assert model.score(X, y) > 0.7
    if isinstance(model, so.FedHistGBDT):
        assert any(record.task == "trees.catch_up" for record in fed.meter.records)


def test_sums_stay_whole_for_many_rows():
    for rows in (10, 10**5, 10**7):
        units = Units.of(rows, 1.0, counted=False)
        assert rows * 2.0**units.gradient < 2.0**53
        if units.packed:
            assert rows * 0.25 * 2.0 ** (units.hessian + units.rows) < 2.0**53
        assert units.hessian >= 16
    assert not Units.of(10**7, 1.0, counted=False).packed


@pytest.mark.parametrize("loss", ["squared", "sigmoid", "softmax"])
def test_gradients_are_derivatives(loss):
    draw = np.random.default_rng(0)
    scores = draw.normal(size=(3 if loss == "softmax" else 1, 5))
    y = (
        draw.normal(size=5)
        if loss == "squared"
        else draw.integers(0, len(scores) + (loss == "sigmoid"), 5)
    )
    g, h, _ = gradients(scores, y, loss)
    step = 1e-4
    for k in range(len(scores)):
        up, down = scores.copy(), scores.copy()
        up[k] += step
        down[k] -= step
        (_, _, above), (_, _, here), (_, _, below) = (
            gradients(s, y, loss) for s in (up, scores, down)
        )
        np.testing.assert_allclose(g[k], (above - below) / (2 * step), atol=1e-6)
        np.testing.assert_allclose(h[k], (above - 2 * here + below) / step**2, atol=1e-5)


@given(seed=seeds, clients=st.integers(1, 7))
@settings(max_examples=20, deadline=None)
def test_fedid3_is_id3_of_the_joined_rows(seed, clients):
    draw = np.random.default_rng(seed)
    X = draw.integers(0, 4, (80, 5)).astype(float)
    X[draw.random(X.shape) < 0.05] = np.nan
    y = draw.integers(0, 3, 80)
    y[:3] = [0, 1, 2]
    features = [so.data.Feature(f"x{j}", "categorical", tuple("pqrs")) for j in range(5)]
    model = so.FedID3().fit(so.simulate(X, y, clients=clients, features=features, seed=0))
    assert model.tree_ == grow_id3(X, y, np.full(5, 4), 3, 2)
    noisy = so.FedID3(epsilon=1.0).fit(
        so.simulate(X, y, clients=clients, features=features, seed=0)
    )
    assert np.isfinite(noisy.predict_proba(X)).all()


def test_a_forest_is_its_trees():
    X, y = data(3, "three", rows=300)
    fed = so.simulate(X, y, clients=3, seed=0)
    forest = so.FedForest(trees=6, per_client=4).fit(fed)
    assert forest.owners_.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    everything = so.FedForest(trees=6).fit(fed)
    assert all(tree in everything.trees_ for tree in forest.trees_)
    votes = np.stack([tree.values(X).argmax(axis=1) for tree in forest.trees_])
    counted = (votes[:, :, None] == np.arange(3)).sum(axis=0)
    assert np.array_equal(forest.predict(X), counted.argmax(axis=1))
    mean = so.FedForest(trees=6, vote="mean").fit(fed)
    np.testing.assert_allclose(
        mean.predict_proba(X), np.mean([t.predict_proba(X) for t in mean.trees_], axis=0)
    )
    assert forest.feature_importances_.sum() == pytest.approx(1)


def test_similar_rows_share_most_hashes():
    draw = np.random.default_rng(0)
    planes = hyperplanes(6, 0)
    assert planes.shape == (5, 8, 7)
    assert hyperplanes(100, 0).shape[0] == 40
    own = draw.integers(0, 4, (30, 5)).astype(np.uint8)
    others = draw.integers(0, 4, (50, 5)).astype(np.uint8)
    slow = [int(np.argmax([(mine == row).sum() for row in others])) for mine in own]
    assert most_similar(own, others).tolist() == slow


def test_fedgbdt_takes_turns_and_learns():
    X, y = data(4, "two", rows=400)
    model = so.SimFL(rounds=9).fit(so.simulate(X, y, clients=4, seed=0))
    assert model.builders_ == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    assert model.score(X, y) > 0.75


@pytest.mark.parametrize("make", [so.FedHistGBDT, so.SimFL, so.FedForest])
def test_constant_columns_and_tiny_clients(make):
    X = np.ones((40, 2))
    y = np.arange(40) % 2
    model = make().fit(so.simulate(X, y, clients=20))
    assert np.isfinite(model.predict_proba(X)).all()


def test_bad_parameters_are_named():
    X, y = data(0, "two")
    fed = so.simulate(X, y, clients=2)
    for learner, wrong, rule in (
        (so.FedHistGBDT, {"rounds": 0}, "rounds must be a whole number of at least 1"),
        (so.FedHistGBDT, {"lr": 0}, "lr must be a number > 0"),
        (so.FedHistGBDT, {"bins": 256}, r"bins must be a whole number in \[2, 255\]"),
        (so.FedHistGBDT, {"l2": -1}, "l2 must be a number of at least 0"),
        (so.SimFL, {"max_depth": 0}, "max_depth must be a whole number of at least 1"),
        (so.FedForest, {"per_client": 30}, "per_client must be at most trees=20"),
        (so.FedForest, {"vote": "best"}, "vote must be 'majority' or 'mean'"),
        (so.FedID3, {"epsilon": 0}, "epsilon must be a number > 0 or None"),
    ):
        with pytest.raises(UsageError, match=rule):
            learner(**wrong)
        with pytest.raises(UsageError, match=rule):
            learner().set_params(**wrong).fit(fed)
    with pytest.raises(DataError, match="1 class"):
        so.FedHistGBDT().fit(so.simulate(X, np.zeros(150, int), clients=2))
    with pytest.raises(DataError, match="labels"):
        so.FedHistGBDT().fit(so.simulate(X, np.eye(3, dtype=int)[y], clients=2))
