"""Classes by whatever names they have: at the first try, and at the second."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so

pd = pytest.importorskip("pandas")

draw = np.random.default_rng(0)
X = draw.normal(size=(240, 3))
CODES = (X[:, 0] + X[:, 1] > 0).astype(np.int64)
WORDS = np.where(CODES, "yes", "no")
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
LEARNERS = [
    so.FedLinear(rounds=5),
    so.FedHEONN(),
    so.FedGLM("binomial", dp=so.DP(noise_multiplier=0.1, delta=1e-3, clip=3.0, level="record")),
    so.FedAvg(so.nn.mlp(3, 4, 2), rounds=5, lr=0.5),
    so.FederatedTree(max_depth=3),
    so.FedHistGBDT(rounds=3),
    so.Pipeline(so.FedBins(4), so.FedID3()),
]
NAMES = {
    "text": WORDS,
    "list of text": WORDS.tolist(),
    "objects": WORDS.astype(object),
    "bytes": WORDS.astype("S3"),
    "numpy strings": WORDS.astype(np.dtypes.StringDType()),
    "truth values": CODES.astype(bool),
    "objects of truth": CODES.astype(bool).astype(object),
    "categories": pd.Series(WORDS, dtype="category"),
    "strings of pandas": pd.Series(WORDS, dtype="string"),
    "nullable truth": pd.Series(CODES.astype(bool), dtype="boolean"),
    "far numbers": np.where(CODES, 7, 3),
    "small numbers": CODES.astype(np.uint8),
}


@pytest.mark.parametrize("names", sorted(NAMES))
@pytest.mark.parametrize("learner", LEARNERS, ids=lambda each: type(each).__name__)
def test_classes_are_learned_predicted_and_scored_by_their_names(learner, names, tmp_path):
    y = NAMES[names]
    values = CODES.astype(bool) if "truth" in names else np.asarray(y)
    values = values.astype(np.int64) if "number" in names else values
    values = values if "truth" in names or "number" in names else WORDS
    model = learner.clone().fit(so.simulate(X, y, clients=3, seed=0))
    assert model.classes_.tolist() == np.unique(values).tolist()
    predicted = model.predict(X)
    assert set(predicted.tolist()) <= set(values.tolist())
    truth = (predicted == values).mean()
    assert truth > 0.7
    assert model.score(X, y) == model.score(X, values) == truth
    assert model.evaluate(X, y=y)["accuracy"] == pytest.approx(truth)
    model.save(tmp_path / "m.sol")
    assert np.array_equal(so.load(tmp_path / "m.sol").predict(X), predicted)


@pytest.mark.parametrize("names", sorted(NAMES))
def test_classes_named_in_a_frame(names):
    frame = FRAME.assign(y=pd.Series(NAMES[names]) if names != "bytes" else WORDS)
    model = so.FedHEONN().fit(so.simulate(frame, target="y", clients=3, seed=0))
    assert model.score(frame) == model.score(FRAME, frame["y"]) > 0.8
    assert np.array_equal(model.predict(frame), so.FedHEONN().fit(frame, "y").predict(frame))


def named(kind):
    if kind == "frame":
        frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=WORDS)
        return so.from_pandas(frame, target="y")
    if kind == "truth":
        return so.from_pandas(FRAME.assign(y=CODES.astype(bool)), target="y")
    if kind == "numbers":
        return so.from_pandas(FRAME.assign(y=np.where(CODES, 3, 1)), target="y")
    return so.datasets.wine()


@pytest.mark.parametrize("kind", ["frame", "truth", "numbers", "wine"])
def test_classes_are_named_once_however_often_that_is_asked_for(kind):
    dataset = named(kind)
    once = dataset.with_class_names()
    twice = once.with_class_names()
    assert np.array_equal(twice.y, once.y)
    assert np.array_equal(twice.y_test, once.y_test)
    assert twice.schema == once.schema
    assert twice.class_names == once.class_names
    codes = np.unique(once.y, return_inverse=True)[1]
    assert np.array_equal(codes, dataset.y)
    first = so.FedHEONN().fit(so.simulate(once, clients=3, seed=0))  # an IndexError
    second = so.FedHEONN().fit(so.simulate(dataset, clients=3, seed=0))
    assert first.schema_ == second.schema_
    assert np.array_equal(first.predict(dataset.X), second.predict(dataset.X))
    assert once.summary()
