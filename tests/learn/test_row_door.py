"""Every method that takes rows checks them alike, and says what is wrong in a sentence."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError, NotEnoughReplies, UsageError

pd = pytest.importorskip("pandas")

draw = np.random.default_rng(0)
X = draw.normal(size=(240, 3)) * [1, 10, 100] + [0, 50, 0]
CODES = (X[:, 0] + X[:, 2] / 100 > 0).astype(np.int64)
Y = np.where(CODES, "yes", "no")
FRAME = pd.DataFrame(X, columns=["age", "bmi", "dose"])
SHUFFLED = FRAME.assign(town="Lugo")[["town", "dose", "age", "bmi"]]


@pytest.fixture(scope="module")
def federation():
    return so.simulate(FRAME.assign(ill=Y), target="ill", clients=3, seed=0)


LEARNERS = {
    "linear": so.FedLinear(rounds=2, lr=1e-5),
    "heonn": so.FedHEONN(),
    "net": so.FedAvg(so.nn.mlp(3, 4, 2), rounds=1, lr=1e-4),
    "labels": so.MLFedAvg(so.nn.mlp(3, 4, 4), rounds=1, stop=None, lr=1e-4),
    "glm": so.FedGLM(
        "binomial", dp=so.DP(noise_multiplier=2.0, delta=1e-3, clip=1.0, level="record")
    ),
    "cox": so.FedCox(),
    "clusters": so.FedKMeans(2, rounds=2),
    "tree": so.FederatedTree(max_depth=3),
    "id3": so.Pipeline(so.FedBins(4), so.FedID3()),
    "forest": so.FedForest(trees=2),
    "boosted": so.FedHistGBDT(rounds=2),
    "simfl": so.SimFL(rounds=2),
    "scaler": so.FedScaler(),
    "imputer": so.FedImputer(),
    "encoder": so.FedEncoder(),
    "bins": so.FedBins(4),
    "select": so.learn.FedSelect([0, 2]),
    "columns": so.FedColumns((so.FedScaler(), [0])),
    "steps": so.Pipeline(so.FedScaler(), so.FedBins(4)),
}
TARGETS = {
    "cox": np.column_stack([draw.exponential(size=240), draw.integers(0, 2, 240)]),
    "labels": np.column_stack([CODES, 1 - CODES]).astype(np.uint8),
}
FITTED = {}


@pytest.fixture(params=sorted(LEARNERS))
def model(request, federation):
    name = request.param
    if name not in FITTED:
        rows = federation
        if name in TARGETS:
            rows = so.simulate(FRAME, TARGETS[name], clients=3, seed=0)
        fitted = LEARNERS[name].clone().fit(rows)
        FITTED[name] = fitted.at(0) if fitted.is_personal else fitted
    return FITTED[name]


def doors(model):
    """Methods that take rows, as functions of rows alone."""
    names = ("predict", "predict_proba", "decision_function", "transform", "onnx_inputs", "outputs")
    found = {n: getattr(model, n) for n in names if hasattr(model, n)}
    if isinstance(model, so.FedKMeans):
        found |= {"losses": model.losses, "silhouette": model.silhouette}
    if isinstance(model, so.MLFedAvg):
        found |= {"losses": lambda rows: model.losses(rows, TARGETS["labels"])}
    elif hasattr(model, "predict_proba") and model.predicts and model.schema_.target == "classes":
        found |= {
            "score": lambda rows: model.score(rows, Y),
            "losses": lambda rows: model.losses(rows, Y),
            "evaluate": lambda rows: model.evaluate(rows, y=Y).metrics,
        }
    if isinstance(model, so.Pipeline) and not hasattr(model.steps_[-1], "predict_proba"):
        found.pop("predict_proba")
        if "transform" in found:
            found.pop("predict")
    return found


def same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        return all(same(a[key], b[key]) for key in a)
    a, b = np.asarray(a), np.asarray(b)
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def test_frames_are_read_by_name(model):
    for name, door in doors(model).items():
        assert same(door(SHUFFLED), door(FRAME)), name
        with pytest.raises(DataError, match="no column 'bmi'"):
            door(SHUFFLED.drop(columns="bmi"))


BAD = {
    "text": (X.astype(str), DataError, "X holds values of type <U"),
    "words": ("hello", DataError, "X holds values of type <U5"),
    "objects": ([["a", 1.0, None]] * 2, DataError, "X holds values of type object|type <U"),
    "complex": (X + 1j, DataError, "Complex data not supported"),
    "no rows": (X[:0], DataError, r"X has 0 sample\(s\)"),
    "no rows of a frame": (FRAME[:0], DataError, r"X has 0 sample\(s\)"),
    "nothing": (None, DataError, "X has 0 dimension"),
    "narrow": (X[:, :2], DataError, "X has 2 features"),
    "one row": (X[0], DataError, "X has 1 dimension"),
}


@pytest.mark.parametrize("bad", sorted(BAD))
def test_rows_that_are_none_are_refused_in_a_sentence(model, bad):
    rows, error, text = BAD[bad]
    for door in doors(model).values():
        with pytest.raises(error, match=text):
            door(rows)


def test_a_federation_is_no_row(model, federation):
    for name, door in doors(model).items():
        if name not in ("silhouette", "score", "evaluate"):
            with pytest.raises(UsageError, match=r"X is a federation.*stay with its clients"):
                door(federation)


def test_a_federation_of_clients_has_its_silhouette_and_so_have_rows(federation):
    model = so.FedKMeans(2, rounds=2).fit(federation)
    assert model.silhouette(FRAME) == pytest.approx(model.silhouette(federation), rel=1e-9)


def test_rows_sent_to_clients_pass_the_same_check():
    labels = TARGETS["labels"]
    model = so.MLFedAvg(so.nn.mlp(3, 4, 4), rounds=1, stop=None, lr=1e-4)
    fed = so.simulate(FRAME, labels, clients=2, seed=0)
    model.fit(fed)
    assert model.evaluate_clients(fed, SHUFFLED, labels) == model.evaluate_clients(fed, X, labels)
    with pytest.raises(DataError, match="X has 2 features"):
        model.evaluate_clients(fed, X[:, :2], labels)


# --- one row ---


@pytest.fixture(scope="module")
def tree(federation):
    return so.FederatedTree(max_depth=3).fit(federation)


def test_explain_takes_a_row_however_it_is_named(tree):
    expected = tree.explain(X[3])
    assert expected.prediction == tree.predict(X[3:4])[0]
    named = [SHUFFLED[3:4], SHUFFLED.iloc[3], dict(SHUFFLED.iloc[3]), X[3:4], X[3].tolist()]
    assert all(tree.explain(row) == expected for row in named)
    assert all(
        tree.explain(SHUFFLED.iloc[i]).prediction == label
        for i, label in enumerate(tree.predict(FRAME))
    )


def test_explain_refuses_what_is_no_row(tree, federation):
    for row, text in (
        (["a", "b", "c"], "X holds values of type <U1"),
        (X[:2], "one row is needed, X has 2"),
        (X[:0], r"0 sample\(s\)"),
        (X[0, :2], "X has 2 features"),
        ({"age": 1.0, "dose": 2.0}, "no column 'bmi'"),
    ):
        with pytest.raises(DataError, match=text):
            tree.explain(row)
    with pytest.raises(UsageError, match="X is a federation"):
        tree.explain(federation)


# --- targets ---


def test_a_column_of_text_is_one_class_per_row():
    tall = so.FedHEONN().fit(X, Y[:, None])
    flat = so.FedHEONN().fit(X, Y)
    assert tall.classes_.tolist() == ["no", "yes"]
    assert np.array_equal(tall.predict(X), flat.predict(X))
    assert tall.score(X, Y[:, None]) == flat.score(X, Y)  # n × n comparisons gave another number
    assert np.array_equal(tall.losses(X, Y[:, None]), flat.losses(X, Y))
    with pytest.raises(DataError, match=r"y holds text and has the shape \(240, 2\)"):
        so.FedHEONN().fit(X, np.column_stack([Y, Y]))
    with pytest.raises(DataError, match=r"y has the shape \(240, 2\), one class per row"):
        flat.score(X, np.column_stack([CODES, CODES]))


def test_a_column_of_numbers_is_one_number_per_row():
    model = so.FedHEONN("linear").fit(X, X[:, 0])
    assert np.array_equal(model.losses(X, X[:, :1]), model.losses(X, X[:, 0]))
    assert model.losses(X, X[:, :1]).shape == (240,)


def test_fit_takes_the_name_of_the_target_of_a_frame(federation):
    frame = FRAME.assign(ill=Y)
    model = so.FedHEONN().fit(frame, "ill")
    assert np.array_equal(model.predict(frame), so.FedHEONN().fit(FRAME, Y).predict(FRAME))
    with pytest.raises(DataError, match=r"no column 'il'.*did you mean 'ill'"):
        so.FedHEONN().fit(frame, "il")
    with pytest.raises(DataError, match="y is 'ill', a target has one value for every row"):
        so.FedHEONN().fit(X, "ill")


def test_columns_of_one_name_are_named():
    frame = pd.DataFrame(X, columns=["a", "b", "a"])
    with pytest.raises(DataError, match="several columns are called 'a'"):
        so.simulate(frame, Y, clients=2)


@pytest.mark.parametrize(
    "learner",
    [
        so.FedLinear(),
        so.FedHEONN(),
        so.FedForest(),
        so.FedHistGBDT(),
        so.SimFL(),
        so.FedGLM(),
        so.FedGLM("binomial"),
        so.FedCox(),
        so.FedAvg(so.nn.mlp(3, 4, 2)),
        so.FederatedTree(),
        so.FedID3(),
        so.Pipeline(so.FedScaler(), so.FedForest()),
    ],
    ids=repr,
)
def test_who_needs_a_target_says_so(learner):
    with pytest.raises(DataError, match="needs a target") as error:
        learner.clone().fit(so.simulate(X, clients=3))
    assert "so.simulate(X, y)" in str(error.value)


# --- what a learner cannot do ---


def test_numbers_have_no_probabilities():
    model = so.FedGLM().fit(X, X[:, 0] + draw.normal(size=240))
    with pytest.raises(UsageError, match="FedGLM was fitted to numbers, which have no probab"):
        model.predict_proba(X)


@pytest.mark.parametrize("name", ["clusters", "cox"])
def test_evaluate_says_what_stands_in_its_place(name, federation):
    model = LEARNERS[name].clone().fit(so.simulate(FRAME, TARGETS["cox"], clients=3, seed=0))
    with pytest.raises(UsageError, match="does not predict the target") as error:
        model.evaluate(federation)
    assert {"clusters": "silhouette(federation)", "cox": "summary()"}[name] in str(error.value)


def test_a_pipeline_of_transformers_transforms(federation):
    steps = so.Pipeline(so.FedScaler(), so.FedBins(4)).fit(federation)
    scaler, bins = steps.steps_
    assert np.array_equal(steps.transform(FRAME), bins.transform(scaler.transform(FRAME)))
    predictor = so.Pipeline(so.FedScaler(), so.FedHEONN()).fit(federation)
    with pytest.raises(AttributeError, match="FedHEONN has no transform"):
        predictor.transform(FRAME)
    with pytest.raises(UsageError, match="FedBins does not predict"):
        steps.predict(FRAME)


@pytest.mark.parametrize("init", ["k-means||", "k-means++", "random"])
def test_there_are_no_more_clusters_than_rows(init):
    fed = so.simulate(X[:20], clients=4, seed=0)
    with pytest.raises(DataError, match=r"FedKMeans.*k=21.*20 rows"):
        so.FedKMeans(21, init=init).fit(fed)
    assert len(so.FedKMeans(20, init=init, rounds=2).fit(fed).centroids_) == 20


def test_clusters_of_float32_rows_predict_alike_in_scikit_learn():
    rows = X.astype(np.float32)
    model = so.FedKMeans(3, rounds=5).fit(so.simulate(rows, clients=3, seed=0))
    exported = model.to_sklearn()
    assert np.array_equal(exported.predict(rows), model.predict(rows))
    assert np.array_equal(exported.predict(X), model.predict(X))


# --- divergence ---


@pytest.mark.parametrize(
    "learner",
    [so.FedLinear(rounds=40), so.FedAvg(so.nn.mlp(3, 4, 1), rounds=5)],
    ids=["linear", "net"],
)
def test_a_target_that_is_not_scaled_is_told_from_silence(learner):
    fed = so.simulate(X * 100, X[:, 0] * 1e6 + 5e5, clients=3, seed=0)
    with pytest.raises(NotEnoughReplies, match=r"training diverged in round.*lr=0\.1") as error:
        learner.fit(fed)
    assert "lower lr" in str(error.value)
    assert "FedScaler" in str(error.value)
    assert "target" in str(error.value)


def test_the_score_of_a_model_that_diverged_says_so():
    model = so.FedLinear(rounds=1, lr=1e-5).fit(X, X[:, 0])
    model.coef_ = model.coef_ + 1e308
    with pytest.raises(DataError, match=r"predicts numbers that are not finite.*diverged"):
        model.score(X * 1e3, X[:, 0])


def test_separation_is_named_where_a_scaler_is_there_already():
    apart = (X[:, 0] > 0).astype(int)
    for learner in (so.FedGLM("binomial"), so.Pipeline(so.FedScaler(), so.FedGLM("binomial"))):
        with pytest.raises(Exception, match="tells the classes apart without error"):
            learner.fit(so.simulate(X, apart, clients=3, seed=0))
