"""Folded counts give the metrics scikit-learn computes on the joined rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

import solera as so
from solera.core.errors import DataError, UsageError
from solera.evaluation.counts import metrics_of

rng = np.random.default_rng(0)
X = rng.normal(size=(500, 4))
W = rng.normal(size=(4, 3))
NOISE = rng.normal(size=(500, 3))


def joined(fed, part):
    rows = fed.data.segments(fed.clients, part).joined()
    return rows.X, rows.y


def test_classes():
    fed = so.simulate(X, (X @ W + NOISE).argmax(axis=1), clients=7, test=0.3, seed=1)
    model = so.FedLinear(rounds=5).fit(fed)
    result = model.evaluate(fed)
    Xt, yt = joined(fed, "test")
    guess = model.predict(Xt)
    expected = {
        "accuracy": sk.accuracy_score(yt, guess),
        "balanced_accuracy": sk.balanced_accuracy_score(yt, guess),
        "macro_precision": sk.precision_score(yt, guess, average="macro", zero_division=0),
        "macro_recall": sk.recall_score(yt, guess, average="macro"),
        "macro_f1": sk.f1_score(yt, guess, average="macro"),
    }
    assert {name: result[name] for name in expected} == pytest.approx(expected)
    assert np.array_equal(result.counts["confusion"], sk.confusion_matrix(yt, guess))
    assert len(result.clients) == 7
    rows = fed.data.sizes("test")
    each = [result.clients[k]["accuracy"] for k in range(7)]
    assert np.average(each, weights=rows) == pytest.approx(result["accuracy"])


def test_labels():
    fed = so.simulate(X, (X @ W + NOISE > 0).astype(np.uint8), clients=5, test=0.4)
    model = so.FedLinear(rounds=3).fit(fed)
    Xt, yt = joined(fed, "test")
    guess = model.predict(Xt)
    expected = {
        "subset_accuracy": sk.accuracy_score(yt, guess),
        "hamming_loss": sk.hamming_loss(yt, guess),
        "micro_f1": sk.f1_score(yt, guess, average="micro"),
        "macro_f1": sk.f1_score(yt, guess, average="macro"),
    }
    found = model.evaluate(fed)
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_numbers():
    fed = so.simulate(X, X @ W + NOISE, clients=5, test=0.4)
    model = so.FedLinear(rounds=3).fit(fed)
    Xt, yt = joined(fed, "test")
    guess = model.predict(Xt)
    expected = {
        "mse": sk.mean_squared_error(yt, guess),
        "mae": sk.mean_absolute_error(yt, guess),
        "r2": sk.r2_score(yt, guess),
    }
    found = model.evaluate(fed)
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_absent_classes_do_not_count():
    confusion = np.array([[3, 1, 0], [1, 5, 0], [0, 0, 0]])
    assert metrics_of({"confusion": confusion})["macro_recall"] == pytest.approx(
        (3 / 4 + 5 / 6) / 2
    )


def test_errors():
    fed = so.simulate(X, (X @ W).argmax(axis=1), clients=5)
    model = so.FedLinear(rounds=1).fit(fed)
    with pytest.raises(DataError, match="no client has test rows"):
        model.evaluate(fed)
    with pytest.raises(UsageError, match="part"):
        model.evaluate(fed, "tset")
    other = so.simulate(X, (X @ W).argmax(axis=1) + 5, clients=5, test=0.5)
    with pytest.raises(so.errors.NotEnoughReplies, match="agreed classes"):
        model.evaluate(other)


def test_evaluation_inside_the_rounds_and_early_stopping_on_it():
    y = (X @ W + NOISE).argmax(axis=1)
    fed = so.simulate(X, y, clients=5, validation=0.3, seed=1)
    callbacks = [
        so.callbacks.Evaluate(),
        so.callbacks.Evaluate(X, y, every=2),
        so.callbacks.EarlyStopping("accuracy", patience=3),
    ]
    model = so.FedLinear(rounds=60, lr=0.5).fit(fed, callbacks=callbacks)
    history = model.history_
    assert len(history) < 60
    assert "score" not in history[0]
    assert "score" in history[1]
    best = max(h["accuracy"] for h in history)
    assert model.evaluate(fed, "validation")["accuracy"] == pytest.approx(best)
    with pytest.raises(UsageError, match="rows and their target"):
        so.callbacks.Evaluate(X)


def test_evaluation_inside_a_pipeline_sees_prepared_rows():
    y = (X @ W + NOISE).argmax(axis=1)
    fed = so.simulate(100 + 10 * X, y, clients=5, validation=0.3, seed=1)
    pipe = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=5)).fit(
        fed, callbacks=[so.callbacks.Evaluate()]
    )
    last = pipe.history_[-1]["accuracy"]
    assert pipe.evaluate(fed, "validation")["accuracy"] == pytest.approx(last)
