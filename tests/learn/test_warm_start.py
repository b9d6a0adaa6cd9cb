"""Learning goes on from a model, and from a checkpoint with more rounds."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import CheckpointError, DataError, NotFitted, UsageError
from solera.learn.averaging.schedules import CosineDecay


@pytest.fixture(scope="module")
def federation():
    X, y, _, _ = so.datasets.breast_cancer()
    return so.simulate(X / X.max(axis=0), y, clients=5, seed=2)


def test_averaging_begins_with_the_weights_of_the_model(federation):
    first = so.FedLinear(rounds=8).fit(federation)
    second = so.FedLinear(rounds=1, lr=1e-12).fit(federation, start=first)
    assert np.allclose(second.coef_, first.coef_, atol=1e-9)
    more = so.FedLinear(rounds=8).fit(federation, start=first)
    assert more.history_[-1]["loss"] < first.history_[-1]["loss"]
    assert len(more.history_) == 8
    assert not np.array_equal(first.coef_, more.coef_)


def test_other_averaging_goes_on_with_the_same_network(federation):
    pytest.importorskip("torch")
    network = so.nn.mlp(30, 4, 2)
    first = so.FedAvg(network, rounds=2).fit(federation)
    second = so.FedProx(network, rounds=1, lr=1e-9).fit(federation, start=first)
    assert np.allclose(second.weights_, first.weights_, atol=1e-6)
    with pytest.raises(UsageError, match="FedAvg cannot start from"):
        so.FedAvg(so.nn.mlp(30, 5, 2), rounds=1).fit(federation, start=first)
    with pytest.raises(UsageError, match="FedAvg cannot start from"):
        so.FedAvg(network, rounds=1).fit(federation, start=so.FedLinear(rounds=1).fit(federation))


def test_clusters_go_on_from_where_they_were(federation):
    first = so.FedKMeans(3, rounds=3).fit(federation)
    again = so.FedKMeans(3, rounds=1).fit(federation, start=first)
    assert again.inertia_ <= first.inertia_
    with pytest.raises(UsageError, match=r"centroids has shape \(3, 30\), \(4, 30\) is needed"):
        so.FedKMeans(4, rounds=1).fit(federation, start=first)


@pytest.mark.parametrize("target", ["classes", "numbers"])
def test_boosting_adds_trees_to_those_of_the_model(target):
    if target == "classes":
        X, y, _, _ = so.datasets.breast_cancer()
    else:
        X, y, _, _ = so.datasets.diabetes()
    fed = so.simulate(X, y, clients=4, seed=2)
    whole = so.FedHistGBDT(rounds=6).fit(fed)
    half = so.FedHistGBDT(rounds=3).fit(fed)
    rest = so.FedHistGBDT(rounds=3).fit(fed, start=half)
    assert len(rest.trees_) == 6
    assert len(half.trees_) == 3
    if target == "classes":
        assert np.array_equal(rest.predict_proba(X), whole.predict_proba(X))
    else:
        assert np.allclose(rest.predict(X), whole.predict(X), rtol=1e-6)
    with pytest.raises(UsageError, match="FedHistGBDT cannot start from"):
        so.FedHistGBDT(rounds=1).fit(fed, start=so.FedForest(trees=2).fit(fed))


def test_a_pipeline_keeps_its_transformers_and_goes_on(federation):
    first = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=5)).fit(federation)
    data = federation.data
    others = so.simulate(data.X * 3 + 1, data.y, clients=5)
    second = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=1, lr=1e-12)).fit(others, start=first)
    assert np.array_equal(second.steps_[0].mean_, first.steps_[0].mean_)
    assert np.allclose(second.steps_[1].coef_, first.steps_[1].coef_, atol=1e-9)
    with pytest.raises(UsageError, match="same transformers"):
        so.Pipeline(so.FedBins(4), so.FedLinear(rounds=1)).fit(federation, start=first)


def test_what_cannot_go_on_is_said(federation):
    model = so.FedLinear(rounds=1).fit(federation)
    data = federation.data
    with pytest.raises(UsageError, match="FedHEONN cannot start from a model"):
        so.FedHEONN().fit(federation, start=model)
    with pytest.raises(NotFitted):
        so.FedLinear().fit(federation, start=so.FedLinear())
    with pytest.raises(UsageError, match="needs a fitted learner, not str"):
        so.FedLinear().fit(federation, start="model.sol")
    with pytest.raises(DataError, match="fitted on 30 columns, these are 29"):
        so.FedLinear(rounds=1).fit(so.simulate(data.X[:, 1:], data.y, clients=2), start=model)
    with pytest.raises(DataError, match=r"knows \[0, 1\], not the class 2"):
        so.FedLinear(rounds=1).fit(so.simulate(data.X, data.y + 1, clients=2), start=model)
    with pytest.raises(DataError, match="learned classes, the target holds numbers"):
        so.FedLinear(rounds=1).fit(so.simulate(data.X, data.y / 2, clients=2), start=model)


def test_fewer_classes_are_no_obstacle(federation):
    model = so.FedLinear(rounds=3).fit(federation)
    data = federation.data
    one = np.flatnonzero(data.y == 1)
    again = so.FedLinear(rounds=1).fit(
        so.simulate(data.X[one], data.y[one], clients=2), start=model
    )
    assert again.classes_.tolist() == [0, 1]
    assert set(again.predict(data.X)) <= {0, 1}


def test_categories_are_those_of_the_model():
    pd = pytest.importorskip("pandas")
    learner = so.Pipeline(so.FedEncoder(), so.FedLinear(rounds=3))
    old = pd.DataFrame({"smokes": ["daily", "never", "former"] * 6, "ill": ["yes", "no", "no"] * 6})
    new = pd.DataFrame({"smokes": ["never", "daily"] * 6, "ill": ["no", "yes"] * 6})
    model = learner.clone().fit(so.simulate(old, target="ill", clients=2))
    with pytest.raises(DataError, match="'smokes' has other categories than in the model"):
        learner.clone().fit(so.simulate(new, target="ill", clients=2), start=model)
    same = so.simulate(new, schema=model.schema_, clients=2)
    assert same.schema == model.schema_
    assert set(same.data.X[:, 0]) == {0.0, 2.0}
    more = learner.clone().fit(same, start=model)
    assert more.predict(old.head(3)).tolist() == ["yes", "no", "no"]


def test_a_finished_run_goes_on_from_its_checkpoint_with_more_rounds(federation, tmp_path):
    path = tmp_path / "run.ckpt"
    so.FedLinear(rounds=3).fit(federation, checkpoint=path)
    more = so.FedLinear(rounds=7).fit(federation, checkpoint=path)
    whole = so.FedLinear(rounds=7).fit(federation)
    assert np.array_equal(more.coef_, whole.coef_)
    assert [entry["round"] for entry in more.history_] == list(range(7))
    with pytest.raises(CheckpointError, match="7 rounds on, rounds=5 are fewer"):
        so.FedLinear(rounds=5).fit(federation, checkpoint=path)
    with pytest.raises(CheckpointError, match="another run"):
        so.FedLinear(rounds=9, lr=0.5).fit(federation, checkpoint=path)


def test_with_a_schedule_the_number_of_rounds_is_part_of_the_run(federation, tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "run.ckpt"
    options = {"model": so.nn.mlp(30, 3, 2), "schedule": CosineDecay()}
    so.FedAvg(rounds=1, **options).fit(federation, checkpoint=path)
    with pytest.raises(CheckpointError, match="another run"):
        so.FedAvg(rounds=2, **options).fit(federation, checkpoint=path)
