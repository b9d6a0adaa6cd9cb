"""Exported graphs answer as their learners do."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.errors import NotFitted, UsageError

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
onnxruntime.disable_telemetry_events()


def answers(path: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def check_alike(learner: Any, X: Any, tmp_path: Any) -> None:
    path = learner.export(tmp_path / "model.onnx")
    found = answers(path, learner.onnx_inputs(X))
    expected = learner.predict(X)
    if expected.dtype.kind == "f":
        assert np.allclose(found["prediction"], expected, rtol=1e-5, atol=1e-5)
        assert found["prediction"].shape == expected.shape
        assert "probabilities" not in found
        assert np.ptp(expected) > 0
        return
    assert found["prediction"].tolist() == expected.tolist()
    p = learner.predict_proba(X)
    assert np.ptp(p, axis=0).max() > 1e-3  # rows differ by far more than the tolerance
    assert found["probabilities"].shape == p.shape
    assert np.abs(found["probabilities"] - p).max() < 1e-5


def data(name: str, rows: int = 400) -> Any:
    dataset = so.datasets.load(name)
    X, y = dataset.X[:rows], dataset.y[:rows]
    federation = so.simulate(X, y, clients=4, seed=1, schema=dataset.schema)
    return federation, dataset.X_test[:200]


def labels() -> Any:
    digits = so.datasets.load("digits")
    bits = (np.arange(10)[:, None] >> np.arange(3)) & 1
    y = bits[digits.y[:400]].astype(np.uint8)
    return so.simulate(digits.X[:400] / 16, y, clients=4, seed=1), digits.X_test[:200] / 16


HEONN = {
    "plain": {},
    "softplus": {"activation": "softplus"},
    "nearest": {"rule": "nearest"},
    "fourier": {"features": "fourier", "hidden": 80},
    "random_layer": {"features": "random_layer", "hidden": 80},
    "ensemble": {"ensemble": so.RandomPatches(7)},
    "replaced features": {"ensemble": so.RandomPatches(5, feature_replacement=True)},
    "mean of an ensemble": {"ensemble": so.RandomPatches(7), "vote": "mean"},
    "ensemble of features": {
        "ensemble": so.RandomPatches(4),
        "features": "fourier",
        "hidden": 60,
    },
}


@pytest.mark.parametrize("options", HEONN.values(), ids=HEONN)
def test_heonn(options, tmp_path):
    federation, X = data("digits")
    check_alike(so.FedHEONN(**options).fit(federation), X, tmp_path)


@pytest.mark.parametrize(
    "learner",
    [
        so.FedLinear(rounds=5),
        so.FedHEONN(),
        so.FedHEONN(ensemble=so.RandomPatches(5)),
        so.FedAvg(so.nn.mlp(64, 12, 3), rounds=3),
        so.MLFedAvg(so.nn.mlp(64, 12), rounds=2, stop=None),
    ],
    ids=["linear", "heonn", "ensemble", "network", "shared core"],
)
def test_labels(learner, tmp_path):
    federation, X = labels()
    model = learner.fit(federation)
    check_alike(model.at(1) if model.is_personal else model, X, tmp_path)


NUMBERS = {
    "linear": so.Pipeline(so.FedScaler(), so.FedLinear(rounds=5)),
    "heonn": so.FedHEONN("linear"),
    "network": so.Pipeline(so.FedScaler(), so.FedAvg(so.nn.mlp(10, 8, 1), rounds=5, lr=1e-4)),
    "forest": so.FedForest(trees=5),
    "boosting": so.FedHistGBDT(rounds=6),
}


@pytest.mark.parametrize("learner", NUMBERS.values(), ids=NUMBERS)
def test_numbers(learner, tmp_path):
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    check_alike(learner.fit(so.simulate(X[:300], y[:300], clients=3)), X[300:], tmp_path)


def test_several_numbers(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4))
    federation = so.simulate(X, X @ rng.normal(size=(4, 2)), clients=3)
    check_alike(so.FedLinear(rounds=4).fit(federation), X, tmp_path)


def own_module() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(64, 9), nn.Tanh(), nn.Dropout(0.2), nn.Linear(9, 10, bias=False))


def binary_network() -> Any:
    return so.Pipeline(so.FedScaler(), so.FedAvg(so.nn.mlp(30, 5, 1), rounds=6))


NETWORKS = {
    "relu": lambda: so.FedAvg(so.nn.mlp(64, 20, 10), rounds=4),
    "float64": lambda: so.FedAvg(
        so.nn.mlp(64, 20, 10, activation="tanh"), rounds=4, dtype="float64"
    ),
    "dropout": lambda: so.FedProx(
        so.nn.mlp(64, 20, 10, activation="sigmoid", dropout=0.2), mu=0.1, rounds=4
    ),
    "simple": lambda: so.FedAvg(so.nn.simple_cnn((8, 8, 1), 10), rounds=2),
    "convolutions": lambda: so.FedAvg(so.nn.conv_net((8, 8, 1), 10, channels=(4, 6)), rounds=2),
    "personal": lambda: so.FedPer(so.nn.mlp(64, 20, 10), rounds=4),
    "own module": lambda: so.FedAvg(own_module(), rounds=4),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_networks(make, tmp_path):
    digits = so.datasets.load("digits")
    federation = so.simulate(digits.X[:120] / 16, digits.y[:120], clients=2, seed=1)
    model = make().fit(federation)
    check_alike(model.at(1) if model.is_personal else model, digits.X_test[:60] / 16, tmp_path)


def test_batch_normalisation(tmp_path):
    digits = so.datasets.load("digits")
    federation = so.simulate(digits.X[:60] / 16, digits.y[:60], clients=1, seed=1)
    learner = so.FedAvg(so.nn.complex_cnn((8, 8, 1), 10), rounds=1, dtype="float64").fit(federation)
    learner.weights_ = learner.weights_ * 2  # as after more rounds: rows differ
    check_alike(learner, digits.X_test[:60] / 16, tmp_path)


def test_peers(tmp_path):
    digits = so.datasets.load("digits")
    topology = so.simulation.Peers("cyclic")
    federation = so.simulate(digits.X[:120] / 16, digits.y[:120], clients=2, topology=topology)
    learner = so.PeerToPeer(so.FedLinear(rounds=3)).fit(federation)
    check_alike(learner, digits.X_test[:60] / 16, tmp_path)


def test_one_output_for_two_classes(tmp_path):
    federation, X = data("breast_cancer")
    check_alike(binary_network().fit(federation), X, tmp_path)


def test_a_module_that_is_not_known_inside_says_what_to_do(tmp_path):
    from torch import nn

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x):
            return self.layer(x).relu()

    federation, _ = data("digits", 100)
    learner = so.FedAvg(Own(), rounds=1).fit(federation)
    with pytest.raises(UsageError, match="Own is a module of one's own") as error:
        learner.export(tmp_path / "own.onnx")
    assert "torch.onnx.export" in error.value.hint
    assert not (tmp_path / "own.onnx").exists()


# --- trees ---

TREES = {
    "forest": so.FedForest(trees=4),
    "mean of a forest": so.FedForest(trees=4, vote="mean"),
    "boosting": so.FedHistGBDT(rounds=4),
    "similarity boosting": so.SimFL(rounds=3),
    "merged tree": so.FederatedTree(max_depth=4),
}


@pytest.mark.parametrize("name", ["digits", "breast_cancer"])
@pytest.mark.parametrize("learner", TREES.values(), ids=TREES)
def test_trees(learner, name, tmp_path):
    federation, X = data(name)
    check_alike(learner.clone().fit(federation), X, tmp_path)


@pytest.fixture(scope="module")
def categories():
    """Rows of codes with gaps, in which what is missing matters."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 4, 300), rng.integers(0, 3, 300), rng.normal(size=300)])
    y = np.where((X[:, 0] == 2) ^ (X[:, 2] > 0.3), "yes", "no")
    X[rng.random(X.shape) < 0.15] = np.nan
    return X, y


def coded(X: Any, y: Any) -> Any:
    from solera.core.schema import Feature, infer

    features = [
        Feature("colour", "categorical", ("red", "green", "blue", "grey")),
        Feature("size", "categorical", ("S", "M", "L")),
        Feature("weight"),
    ]
    return so.simulate(X, y, clients=3, seed=2, schema=infer(X, y, features=features))


@pytest.mark.parametrize("learner", [so.FedHistGBDT(rounds=5), so.FedForest(trees=5)])
def test_trees_with_gaps(learner, categories, tmp_path):
    X, y = categories
    check_alike(learner.fit(coded(X, y)), X, tmp_path)


def test_a_branch_for_every_category(categories, tmp_path):
    X, y = categories
    learner = so.Pipeline(so.FedBins(4), so.FedID3(max_depth=4)).fit(coded(X[:150], y[:150]))
    assert learner.steps_[-1].tree_.categorical.any()
    assert (learner.steps_[-1].tree_.arity > 2).any()
    check_alike(learner, X, tmp_path)


def test_a_category_without_a_branch_ends_at_the_node(categories, tmp_path):
    X, y = categories
    seen = X[:, 0] < 3  # nobody is grey, and no colour is missing
    learner = so.Pipeline(so.FedBins(4), so.FedID3(max_depth=3)).fit(coded(X[seen], y[seen]))
    tree = learner.steps_[-1].tree_
    assert (tree.branches < 0).any()
    check_alike(learner, X, tmp_path)


# --- pipelines ---

STEPS = {
    "onehot": (so.FedEncoder(), so.FedImputer("median"), so.FedScaler()),
    "ordinal": (so.FedEncoder("ordinal"), so.FedImputer()),
    "dummy": (so.FedEncoder("dummy"), so.FedImputer()),
    "bins": (so.FedBins(5), so.FedEncoder(), so.FedImputer()),
    "columns": (
        so.FedColumns(("texts", so.FedEncoder(), "categorical"), (so.FedScaler(), ["weight"])),
        so.FedImputer(),
    ),
    "rest": (so.FedColumns((so.FedEncoder(), ["size"])), so.FedEncoder("ordinal"), so.FedImputer()),
    "select": (so.FedSelect(["weight", "colour"]), so.FedEncoder(), so.FedImputer()),
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_pipelines(steps, categories, tmp_path):
    X, y = categories
    check_alike(so.Pipeline(*steps, so.FedHEONN()).fit(coded(X, y)), X, tmp_path)


def test_text_is_encoded_by_the_graph_itself(categories, tmp_path):
    X, y = categories
    model = so.Pipeline(so.FedEncoder(), so.FedImputer(), so.FedHEONN()).fit(coded(X, y))
    path = model.export(tmp_path / "model.onnx")
    given = {
        "colour": np.array([["blue"], ["violet"], [""]], dtype=object),
        "size": np.array([["S"], ["M"], ["L"]], dtype=object),
        "weight": np.array([[0.5], [np.nan], [1.0]]),
    }
    expected = model.predict_proba(np.array([[2, 0, 0.5], [np.nan, 1, np.nan], [np.nan, 2, 1.0]]))
    assert np.allclose(answers(path, given)["probabilities"], expected, atol=1e-9)
    properties = {p.key: p.value for p in onnx.load(path).metadata_props}
    schema = json.loads(properties["solera.schema"])
    assert schema["columns"][0]["categories"] == ["red", "green", "blue", "grey"]
    assert schema["classes"] == ["no", "yes"]


def test_clusters(tmp_path):
    federation, X = data("digits")
    learner = so.FedKMeans(3).fit(federation)
    found = answers(learner.export(tmp_path / "k.onnx"), learner.onnx_inputs(X))
    assert found["prediction"].tolist() == learner.predict(X).tolist()


def test_a_learner_that_is_not_fitted_or_no_graph_says_so(tmp_path):
    with pytest.raises(NotFitted):
        so.FedLinear().export(tmp_path / "model.onnx")
    federation, _ = data("digits")
    with pytest.raises(UsageError, match="FedScaler cannot be exported"):
        so.FedScaler().fit(federation).export(tmp_path / "model.onnx")


# --- scikit-learn ---


def test_scikit_learn_predicts_the_same(categories):
    X, y = categories
    for encoder in (so.FedEncoder(), so.FedEncoder("dummy"), so.FedEncoder("ordinal")):
        steps = (encoder, so.FedImputer(), so.FedScaler(), so.FedLinear(rounds=8))
        model = so.Pipeline(*steps).fit(coded(X, y))
        theirs = model.to_sklearn()
        assert [*theirs.named_steps] == ["fedencoder", "fedimputer", "fedscaler", "fedlinear"]
        assert theirs.predict(X).tolist() == model.predict(X).tolist()
        assert np.abs(theirs.predict_proba(X) - model.predict_proba(X)).max() < 1e-12


def test_scikit_learn_with_several_classes_numbers_and_clusters():
    federation, X = data("digits")
    model = so.FedLinear(rounds=8).fit(federation)
    assert np.allclose(model.to_sklearn().predict_proba(X), model.predict_proba(X), atol=1e-12)
    clusters = so.FedKMeans(3).fit(federation)
    assert clusters.to_sklearn().predict(X).tolist() == clusters.predict(X).tolist()
    for y in (X[:, 3] * 1.5, X[:, 3:5] * 1.5):
        numbers = so.FedLinear(rounds=3, lr=1e-5).fit(so.simulate(X, y, clients=2))
        assert np.allclose(numbers.to_sklearn().predict(X), numbers.predict(X), atol=1e-12)
        assert numbers.to_sklearn().predict(X).shape == numbers.predict(X).shape


def test_what_has_no_counterpart_says_so():
    federation, _ = data("digits")
    with pytest.raises(UsageError, match="FedHEONN has no exact counterpart") as error:
        so.Pipeline(so.FedScaler(), so.FedHEONN()).fit(federation).to_sklearn()
    assert "onnx" in error.value.hint
