"""Folded counts give the metrics scikit-learn computes on the joined rows."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from sklearn import metrics as sk
from sklearn.model_selection import GridSearchCV

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


def test_a_second_evaluation_does_not_overwrite_the_first():
    y = (X @ W + NOISE).argmax(axis=1)
    fed = so.simulate(X, y, clients=5, validation=0.2, test=0.3, seed=1)
    half, rest = (X[:60], y[:60]), (X[60:], y[60:])
    judges = [
        so.callbacks.Evaluate(every=2),
        so.callbacks.Evaluate(part="test"),
        so.callbacks.Evaluate(part="test", every=3),
        so.callbacks.Evaluate(*half),
        so.callbacks.Evaluate(*rest),
    ]
    for model in (so.FedLinear(rounds=6), so.Pipeline(so.FedScaler(), so.FedLinear(rounds=6))):
        stop = so.callbacks.EarlyStopping("rows_held_out_loss", patience=50)
        fitted = model.fit(fed, callbacks=[*judges, stop])
        history = fitted.history_
        assert ["accuracy" in h for h in history] == [False, True] * 3
        assert ["test_3_accuracy" in h for h in history] == [False, False, True] * 2
        last = history[-1]
        assert (last["accuracy"].part, last["test_accuracy"].part) == ("validation", "test")
        assert last["test_accuracy"] == last["test_3_accuracy"] != last["accuracy"]
        assert (last["score"].rows, last["rows_score"].rows) == (60, 440)
        assert last["held_out_loss"] != last["rows_held_out_loss"]
        best = min(h["rows_held_out_loss"] for h in history)
        if isinstance(model, so.FedLinear):
            p = fitted.predict_proba(rest[0])[np.arange(440), rest[1]]
            assert -np.log(p).mean() == pytest.approx(best), "the best model was kept"


def test_evaluation_inside_a_pipeline_sees_prepared_rows():
    y = (X @ W + NOISE).argmax(axis=1)
    fed = so.simulate(100 + 10 * X, y, clients=5, validation=0.3, seed=1)
    pipe = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=5)).fit(
        fed, callbacks=[so.callbacks.Evaluate()]
    )
    last = pipe.history_[-1]["accuracy"]
    assert pipe.evaluate(fed, "validation")["accuracy"] == pytest.approx(last)


# --- whose rows a metric rests on ---


def test_score_of_rows_and_of_a_federation_is_one_metric():
    """Grid search over a federation took the largest MSE for the best score."""
    y = X @ W[:, 0] + 0.1 * NOISE[:, 0]
    fed = so.simulate(X, y, clients=5, seed=1)
    learner = so.FedHEONN(activation="linear")
    model = learner.fit(fed)
    rows, values = joined(fed, "train")
    assert model.score(fed) == pytest.approx(sk.r2_score(values, model.predict(rows)))
    assert model.score(fed) == pytest.approx(model.score(X, y))
    assert type(model.score(fed)) is type(model.score(X, y)) is float
    search = GridSearchCV(
        learner, {"lam": [1e-3, 1.0, 1e6]}, cv=so.simulation.FoldsInClients(3)
    ).fit(fed)
    assert search.best_params_ == {"lam": 1e-3}
    assert 0.9 < search.best_score_ <= 1


def test_labels_are_scored_by_their_subset_accuracy():
    labels = (X @ W + NOISE > 0).astype(np.uint8)
    fed = so.simulate(X, labels, clients=5, seed=1)
    model = so.FedLinear(rounds=2).fit(fed)
    assert model.score(fed) == pytest.approx(sk.accuracy_score(labels, model.predict(X)))


@pytest.fixture(scope="module")
def dropping():
    """A model, and its federation where some clients do not answer when asked to judge it."""
    y = (X @ W + NOISE).argmax(axis=1)
    options = {"clients": 10, "test": 0.3, "seed": 1}
    model = so.FedLinear(rounds=5).fit(so.simulate(X, y, **options))
    return model, so.simulate(X, y, failures=so.simulation.Failures(dropout=0.4), **options)


@pytest.mark.parametrize("per_client", [True, False])
def test_clients_that_do_not_answer_are_missing_from_the_figure(dropping, per_client):
    model, fed = dropping
    sizes = fed.data.sizes("test")
    found = model.evaluate(fed, per_client=per_client)
    accuracy = found["accuracy"]
    replied = [*model.evaluate(fed).clients]
    assert 0 < len(replied) < 10
    assert (accuracy.asked, accuracy.absent) == (10, 10 - len(replied))
    assert (accuracy.clients, accuracy.rows) == (len(replied), sizes[replied].sum())
    whose = f"{accuracy.rows} test rows of {len(replied)} of 10 clients, {accuracy.absent} did not"
    for shown in (repr(found), found._repr_html_(), model.card(found)):
        assert whose in shown


def test_a_score_of_fewer_rows_warns(dropping):
    model, fed = dropping
    with pytest.warns(so.learn.MissingRows, match="of 10 clients, . did not reply"):
        score = model.score(fed)
    assert type(score) is float
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.score(X, (X @ W).argmax(axis=1))


def test_scores_and_the_class_that_counts_as_positive():
    y = np.where(X @ W[:, 0] + NOISE[:, 0] > 0, "well", "died")
    fed = so.simulate(X, y, clients=5, test=0.3, seed=1)
    found = so.FedLinear(rounds=5).fit(fed).evaluate(fed, scores=True)
    area = found["auroc"]
    assert area.bound == found.bounds["auroc"] > 0
    assert area.interval == found.intervals()["auroc"]
    assert f"of {area.rows} test rows of 5 clients, positive class well" in repr(area)
    assert found["log_loss"].positive == ""


def test_the_history_says_whose_rows(tmp_path):
    y = (X @ W + NOISE).argmax(axis=1)
    fed = so.simulate(X, y, clients=5, validation=0.3, seed=1)
    callbacks = [so.callbacks.Evaluate(), so.callbacks.Evaluate(X[:40], y[:40])]
    path = tmp_path / "state.sol"
    model = so.FedLinear(rounds=3).fit(fed, callbacks=callbacks, checkpoint=path)
    more = so.FedLinear(rounds=4).fit(fed, callbacks=callbacks, checkpoint=path)
    for history in (
        model.history_,
        so.load(model.save(tmp_path / "m.sol")).history_,
        more.history_,
    ):
        last = history[2]
        assert str(last["loss"]).endswith(
            f"of {fed.data.sizes('train').sum()} train rows of 5 clients"
        )
        assert last["accuracy"].part == "validation"
        assert last["accuracy"].rows == fed.data.sizes("validation").sum()
        assert last["score"].whose == "40 rows at hand"
    assert "train rows of 5 clients" in model.card()
    assert "train rows of 5 clients" in model._repr_html_()


def test_a_loss_of_clients_that_dropped_out_says_so():
    y = (X @ W + NOISE).argmax(axis=1)
    fed = so.simulate(X, y, clients=8, seed=1, failures=so.simulation.Failures(dropout=0.4))
    entry = so.FedLinear(rounds=1).fit(fed).history_[0]
    assert entry["failures"] == entry["loss"].absent > 0
    assert entry["loss"].clients == 8 - entry["failures"]


def test_figures_of_clients_are_made_when_they_are_looked_at():
    y = np.where(X @ W[:, 0] + NOISE[:, 0] > 0, "well", "died")
    fed = so.simulate(X, y, clients=5, test=0.3, seed=1)
    clients = so.FedLinear(rounds=2).fit(fed).evaluate(fed).clients
    assert not clients._made
    assert len(clients) == len([*clients]) == 5
    assert clients[3]["sensitivity"].positive == "well"
    assert list(clients._made) == [3]
    assert clients[3] is clients[3]
    assert clients == dict(clients)
    assert pickle.loads(pickle.dumps(clients)) == clients  # noqa: S301
    assert 7 not in clients
