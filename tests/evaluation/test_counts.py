"""Metrics of counts are those of scikit-learn on the rows, by any target."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

import solera as so
from solera.evaluation.counts import class_metrics, metrics_of

rng = np.random.default_rng(1)
X = rng.normal(size=(400, 4))
W = rng.normal(size=(4, 3))
NOISE = rng.normal(size=(400, 3))


def confused(truth, guess, k):
    return {"confusion": sk.confusion_matrix(truth, guess, labels=range(k))}


def test_two_classes_have_sensitivity_and_specificity_without_scores():
    truth, guess = rng.integers(0, 2, 200), rng.integers(0, 2, 200)
    found = metrics_of(confused(truth, guess, 2))
    assert found["sensitivity"] == pytest.approx(sk.recall_score(truth, guess))
    assert found["specificity"] == pytest.approx(sk.recall_score(truth, guess, pos_label=0))
    assert found["false_positive_rate"] == pytest.approx(1 - found["specificity"])


def test_of_more_classes_sensitivity_is_that_of_the_predicted_class():
    truth, guess = rng.integers(0, 4, 300), rng.integers(0, 4, 300)
    found = metrics_of(confused(truth, guess, 4))
    every = sk.multilabel_confusion_matrix(truth, guess)
    specificity = np.mean([m[0, 0] / m[0].sum() for m in every])
    assert found["sensitivity"] == pytest.approx(sk.recall_score(truth, guess, average="macro"))
    assert found["specificity"] == pytest.approx(specificity)
    assert found["macro_f1"] == pytest.approx(sk.f1_score(truth, guess, average="macro"))


def test_more_classes_are_not_judged_by_a_threshold_on_each_score():
    y = (X @ W + 2 * NOISE).argmax(axis=1)
    fed = so.simulate(X, y, clients=4, test=0.5, seed=1)
    model = so.FedLinear(rounds=5).fit(fed)
    rows = fed.data.segments(fed.clients, "test").joined()
    expected = sk.recall_score(rows.y, model.predict(rows.X), average="macro")
    found = model.evaluate(fed, scores=True)
    assert found["sensitivity"] == pytest.approx(expected)
    over = model.predict_proba(rows.X) > 0.5  # what it was
    assert not over.any(axis=1).all()


def test_what_is_not_defined_is_not_there():
    found = metrics_of(confused(np.zeros(10, int), rng.integers(0, 2, 10), 2))
    assert "sensitivity" not in found
    assert found["specificity"] < 1
    many = class_metrics(np.array([[[3, 1], [0, 0]], [[3, 1], [1, 2]]]))
    assert np.isnan(many["sensitivity"]).tolist() == [True, False]


def test_labels():
    y = (X @ W + NOISE > 0.8).astype(np.uint8)
    fed = so.simulate(X, y, clients=4, test=0.5, seed=1)
    model = so.FedLinear(rounds=5).fit(fed)
    rows = fed.data.segments(fed.clients, "test").joined()
    guess = model.predict(rows.X)
    assert not (rows.y.any(axis=1) | guess.any(axis=1)).all()  # some rows have no label at all
    expected = {
        "macro_f1": sk.f1_score(rows.y, guess, average="macro"),
        "macro_precision": sk.precision_score(rows.y, guess, average="macro"),
        "macro_recall": sk.recall_score(rows.y, guess, average="macro"),
        "samples_f1": sk.f1_score(rows.y, guess, average="samples", zero_division=0),
        "samples_jaccard": sk.jaccard_score(rows.y, guess, average="samples", zero_division=0),
        "sensitivity": sk.recall_score(rows.y, guess, average="macro"),
        "specificity": sk.recall_score(1 - rows.y, 1 - guess, average="macro"),
    }
    found = model.evaluate(fed)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    at_hand = model.evaluate(rows.X, y=rows.y)
    assert {name: at_hand[name] for name in expected} == pytest.approx(expected)


def test_labels_that_do_not_occur_are_left_out_as_classes_are():
    counts = {
        "true_positive": np.array([3, 0]), "false_positive": np.array([1, 0]),
        "false_negative": np.array([2, 0]), "exact": 4, "rows": 10,
    }  # fmt: skip
    found = metrics_of(counts)
    assert found["macro_f1"] == pytest.approx(6 / 9)
    assert found["macro_precision"] == pytest.approx(3 / 4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mean", [0.0, 2e4, 1e9])
def test_numbers_far_from_zero(mean, dtype):
    """R² of .8 was .55 at float32 targets of 20000 ± 1."""
    if mean == 1e9 and dtype == "float32":
        pytest.skip("float32 has no digits left at 1e9")
    y = (mean + X @ W[:, 0] + 1.5 * NOISE[:, 0]).astype(dtype)
    fed = so.simulate(X, y, clients=4, test=0.5, seed=1)
    model = so.FedGLM(family="gaussian").fit(fed)
    rows = fed.data.segments(fed.clients, "test").joined()
    truth, guess = rows.y.astype(float), np.asarray(model.predict(rows.X), dtype=float)
    expected = sk.r2_score(truth, guess)
    assert 0.5 < expected < 0.95
    found = model.evaluate(fed)
    assert found["r2"] == pytest.approx(expected, abs=1e-6)
    assert found["rmse"] == pytest.approx(np.sqrt(sk.mean_squared_error(truth, guess)))
    one = model.evaluate(fed, per_client=False)
    assert one["r2"] == pytest.approx(expected, abs=1e-6)
    assert model.evaluate(rows.X, y=rows.y)["r2"] == pytest.approx(expected, abs=1e-6)


def test_a_pipeline_takes_its_pivot_from_the_last_step():
    y = 1e8 + X @ W[:, 0] + 1.5 * NOISE[:, 0]
    fed = so.simulate(50 + 7 * X, y, clients=4, test=0.5, seed=1)
    model = so.Pipeline(so.FedScaler(), so.FedGLM(family="gaussian")).fit(fed)
    rows = fed.data.segments(fed.clients, "test").joined()
    expected = sk.r2_score(rows.y, model.predict(rows.X))
    assert model.evaluate(fed)["r2"] == pytest.approx(expected, abs=1e-6)


def test_rmse_of_several_outputs_is_the_mean_of_theirs():
    y = X @ W + NOISE
    fed = so.simulate(X, y, clients=4, test=0.5, seed=1)
    model = so.FedLinear(rounds=3).fit(fed)
    rows = fed.data.segments(fed.clients, "test").joined()
    expected = sk.root_mean_squared_error(rows.y, model.predict(rows.X))
    assert model.evaluate(fed)["rmse"] == pytest.approx(expected)
