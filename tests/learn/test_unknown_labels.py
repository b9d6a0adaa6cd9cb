"""A label that nobody knows is neither present nor absent: in training, predictions and figures."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as sk

import solera as so
from solera.core.schema import Schema, numbered
from solera.learn.averaging.label_metrics import label_scores, tune_thresholds

draw = np.random.default_rng(8)
X = draw.normal(size=(120, 4))
WHOLE = (X @ draw.normal(size=(4, 3)) + draw.normal(size=(120, 3)) > 0).astype(np.int64)
Y = np.where(draw.random((120, 3)) < 0.25, -1, WHOLE)
Y[:40, 0] = -1  # client 0 has no column of the first label
Y[50] = -1  # of this row nothing is known
OWNERS = np.repeat(np.arange(3), 40)
SCHEMA = Schema(numbered(4), "labels", np.arange(3), 3)


def federation(y=Y, **options):
    held = [np.flatnonzero(k == OWNERS) for k in range(3)]
    partition = so.partitions.Explicit(held)
    return so.simulate(X, y, partition=partition, seed=1, **{"schema": SCHEMA, **options})


def wanted(y, guess):
    """Metrics by scikit-learn, label by label and row by row over what is known."""
    known, rows = y >= 0, (y >= 0).any(axis=1)
    by_label = [
        sk.confusion_matrix(y[k, j], guess[k, j], labels=[0, 1]) if k.any() else np.zeros((2, 2))
        for j, k in enumerate(known.T)
    ]
    f1 = [2 * c[1, 1] / max(2 * c[1, 1] + c[0, 1] + c[1, 0], 1) for c in by_label]
    occurs = [c[1, 1] + c[0, 1] + c[1, 0] > 0 for c in by_label]
    right = (y == guess) | ~known
    by_row = [
        sk.f1_score(y[i, known[i]], guess[i, known[i]], zero_division=0)
        for i in np.flatnonzero(rows)
    ]
    specific = [c[0, 0] / c[0].sum() for c in by_label if c[0].sum()]
    return {
        "hamming_loss": sk.hamming_loss(y[known], guess[known]),
        "micro_f1": sk.f1_score(y[known], guess[known], zero_division=0),
        "macro_f1": np.array(f1)[occurs].mean(),
        "subset_accuracy": right[rows].all(axis=1).mean(),
        "samples_f1": np.mean(by_row),
        "specificity": np.mean(specific),
    }


@pytest.mark.parametrize("learner", [so.FedLinear(rounds=4), so.FedAvg(so.nn.linear(4, 3))])
def test_figures_are_of_what_is_known(learner):
    fed = federation()
    model = learner.clone().fit(fed)
    guess = model.predict(X)
    found = model.evaluate(fed, "train")
    for name, value in wanted(Y, guess).items():
        assert found[name] == pytest.approx(value), name
    assert found["hamming_loss"].rows == (Y >= 0).any(axis=1).sum()
    for client in range(3):
        held = client == OWNERS
        for name, value in wanted(Y[held], guess[held]).items():
            assert found.clients[client][name] == pytest.approx(value), (client, name)
    assert model.score(X, Y) == model.score(fed) == found["subset_accuracy"]
    at_hand = model.evaluate(X, y=Y, scores=True)
    assert at_hand["macro_f1"] == found["macro_f1"]
    p, known = np.asarray(model.predict_proba(X), dtype=float), Y >= 0
    cells = -np.log(np.where(Y > 0, p, 1 - p))
    by_row = np.array([cells[i, known[i]].mean() for i in range(120) if known[i].any()])
    assert at_hand["log_loss"] == pytest.approx(by_row.mean(), rel=1e-5)
    auroc = np.mean([sk.roc_auc_score(Y[k, j], p[k, j]) for j, k in enumerate(known.T)])
    assert at_hand["auroc"] == pytest.approx(auroc, abs=at_hand.bounds["auroc"] + 1e-9)
    of_scores = model.evaluate(fed, "train", scores=True)
    for one in (at_hand, of_scores):
        for name in ("log_loss", "auroc", "ece", "sensitivity"):
            assert one[name].is_whole
            assert one[name].rows == (Y >= 0).any(axis=1).sum()
    for client, figures in of_scores.clients.items():
        assert figures["auroc"].rows == (Y[client == OWNERS] >= 0).any(axis=1).sum()
    np.testing.assert_allclose(model.losses(X, Y)[known.any(axis=1)], by_row, rtol=1e-4)


def test_targets_that_are_no_labels_and_rows_without_any_are_named():
    model = so.FedLinear(rounds=1).fit(federation())
    for wrong in (np.where(Y > 0, 2, Y), Y[:, :2], Y[:, 0], X[:, :3]):
        for judge in (model.score, lambda X, y: model.evaluate(X, y=y), model.losses):
            with pytest.raises(so.errors.DataError, match="3 labels per row are needed"):
                judge(X, wrong)
    nothing = np.full_like(Y, -1)
    with pytest.raises(so.errors.DataError, match=r"of no row \(rows\) a label is known"):
        model.score(X, nothing)
    assert model.evaluate(X, y=nothing, scores=True).metrics == {}
    assert (model.losses(X, nothing) == 0).all()


def step(y, lr):
    """One step of gradient descent from zero on the mean over rows of the mean over labels."""
    known = y >= 0
    error = (0.5 - y) * known / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return -lr * X.T @ error / len(X), -lr * error.mean(axis=0)


@pytest.mark.parametrize("y", [WHOLE, Y])
def test_the_loss_of_labels_is_one_function(y):
    """The mean over the labels that a row knows, in NumPy, as layers and by autograd."""
    coef, intercept = step(y, 0.7)
    options = {"rounds": 1, "lr": 0.7, "batch_size": None}
    fed = so.simulate(X, y, clients=1, schema=SCHEMA)
    linear = so.FedLinear(**options).fit(fed)
    np.testing.assert_allclose(linear.coef_, coef)
    np.testing.assert_allclose(linear.intercept_, intercept)
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(4, 3))
    for network in (so.nn.linear(4, 3), module):
        learner = so.FedAvg(network, dtype="float64", **options)
        start = learner.clone().set_params(lr=1e-12).fit(fed).weights_
        moved = learner.fit(fed).weights_ - start
        zero = step(y, 0.7)
        assert moved.shape == (15,)
        p = 1 / (1 + np.exp(-(X @ start[:12].reshape(3, 4).T + start[12:])))
        known = y >= 0
        error = (p - y) * known / np.maximum(known.sum(axis=1, keepdims=True), 1)
        np.testing.assert_allclose(moved[:12].reshape(3, 4).T, -0.7 * X.T @ error / 120, atol=1e-6)
        np.testing.assert_allclose(moved[12:], -0.7 * error.mean(axis=0), atol=1e-6)
        assert zero


def test_what_an_unknown_label_would_have_been_changes_nothing():
    """One client of three has none of the first label; the others teach it to the model."""
    fed = federation()
    model = so.FedLinear(rounds=30, lr=0.5).fit(fed)
    first = WHOLE[:40, 0] == model.predict(X[:40])[:, 0]
    assert first.mean() > 0.7


def test_learners_that_cannot_leave_them_out_refuse_by_name():
    with pytest.raises(so.errors.DataError, match=r"client 0 does not know label '0'.*FedHEONN"):
        so.FedHEONN().fit(federation())
    with pytest.raises(so.errors.DataError, match="FedHEONN"):
        so.Pipeline(so.FedScaler(), so.FedHEONN()).fit(federation())
    names = Schema(numbered(4), "labels", np.arange(3), 3, ("asthma", "gout", "lupus"))
    y = np.where((np.arange(120) == 100)[:, None] & (np.arange(3) == 1), -1, WHOLE)
    with pytest.raises(so.errors.DataError, match="client 2 does not know label 'gout'"):
        so.FedHEONN().fit(federation(y, schema=names))
    assert so.FedHEONN().fit(federation(WHOLE)).score(X, WHOLE) > 0.3


@pytest.mark.parametrize("make", [so.FedPer, so.FedRep])
def test_a_client_does_not_predict_labels_that_it_never_saw(make, tmp_path):
    fed = federation(test=0.25)
    model = make(so.nn.mlp(4, 6, 3), rounds=3, lr=0.3).fit(fed)
    own, other = model.at(0), model.at(1)
    assert (own.predict(X)[:, 0] == -1).all()
    assert {*own.predict(X)[:, 1]} <= {0, 1}
    assert np.isnan(own.predict_proba(X)[:, 0]).all()
    assert {*other.predict(X)[:, 0]} <= {0, 1}
    back = so.load(own.save(tmp_path / "own.sol"))
    np.testing.assert_array_equal(back.predict(X), own.predict(X))
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(own.export(tmp_path / "own.onnx"))
    said = session.run(["prediction"], {"X": X})[0]
    np.testing.assert_array_equal(said, own.predict(X))
    assert own.score(X[:40], WHOLE[:40]) == (
        (own.predict(X[:40]) == WHOLE[:40])[:, 1:].all(axis=1).mean()
    )


def test_scores_of_the_thesis_leave_them_out():
    z = draw.normal(size=(120, 3))
    scores, known = label_scores(z, Y), Y >= 0
    guess = (z > 0).astype(int)
    of = wanted(Y, guess)
    for name in ("subset_accuracy", "macro_f1", "micro_f1", "hamming_loss"):
        assert scores[name] == pytest.approx(of[name])
    rows = [i for i in range(120) if known[i].any()]
    cells = np.log1p(np.exp(np.where(Y > 0, -z, z)))
    assert scores["loss"] == pytest.approx(np.mean([cells[i, known[i]].mean() for i in rows]))
    top = [np.argmax(z[i, known[i]]) == np.argmax(Y[i, known[i]]) for i in rows]
    assert scores["argmax_accuracy"] == pytest.approx(np.mean(top))
    ranked = []
    for i in rows:
        pairs = [(a, b) for a in range(3) for b in range(3) if Y[i, a] == 1 and Y[i, b] == 0]
        ranked.append(np.mean([z[i, a] <= z[i, b] for a, b in pairs]) if pairs else 0.0)
    assert scores["ranking_loss"] == pytest.approx(np.mean(ranked))


def test_thresholds_are_chosen_where_the_label_is_known():
    z = draw.normal(size=(120, 3))
    cuts = tune_thresholds(z, Y)
    for j in range(3):
        known = Y[:, j] >= 0
        alone = tune_thresholds(z[known][:, [j]], Y[known][:, [j]])
        assert cuts[j] == alone[0]


def test_labels_go_by_their_names(tmp_path):
    names = Schema(numbered(4), "labels", np.arange(3), 3, ("asthma", "gout", "lupus"))
    fed = federation(schema=names, test=0.2)
    model = so.FedLinear(rounds=2).fit(fed)
    assert model.evaluate(fed, scores=True).scores.names == ("asthma", "gout", "lupus")
    card = model.card()
    assert "- target: labels asthma gout lupus" in card
    assert "classes" not in card


def test_what_stops_training_is_a_figure_of_validation_rows(tmp_path):
    fed = federation(validation=0.2)
    model = so.MLFedAvg(so.nn.mlp(4, 6), rounds=2).fit(fed)
    figure = model.history_[-1]["validation_loss"]
    assert (figure.part, figure.clients, figure.asked) == ("validation", 3, 3)
    back = so.load(model.save(tmp_path / "model.sol"))
    assert back.card() == model.card()
