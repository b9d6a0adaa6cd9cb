"""Who predicts classes or labels predicts what is most probable, ties and all."""

from __future__ import annotations

import numpy as np
import pytest
from cases import federation, learner_cases, registered, rows

import solera as so
from solera.core.errors import UsageError

CASES = {
    name: (make, target)
    for name, make, target in learner_cases()
    if target in ("classes", "labels") and hasattr(make(), "predict_proba") and make().predicts
}


def test_every_learner_with_probabilities_is_here():
    kinds = {type(make()) for make, _ in CASES.values()}
    wanted = {
        cls
        for cls in registered(so.learn.Predictor)
        if hasattr(cls, "predict_proba") and not issubclass(cls, so.learn.VerticalLearner)
    }
    assert wanted - kinds <= {so.FedGLM, so.FedLoRA, so.FedID3}  # FedID3 is in a Pipeline


@pytest.mark.parametrize("name", CASES)
def test_predict_is_the_most_probable(name):
    make, target = CASES[name]
    model = make()
    model.fit(federation("local", rows(target), model))
    model = model.at(min(model._client_parts.parts)) if model.is_personal else model
    X = np.concatenate([rows(target).X, 30 * rows(target, seed=4).X])  # far out as well
    probability, predicted = model.predict_proba(X), model.predict(X)
    assert np.isfinite(probability).all()
    if target == "labels":
        assert np.array_equal(predicted, probability > 0.5)
        return
    assert np.array_equal(predicted, model.classes_[probability.argmax(axis=1)])
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("rule", ["argmax", "nearest"])
@pytest.mark.parametrize("vote", ["majority", "mean"])
@pytest.mark.parametrize("activation", ["logistic", "softplus", "linear"])
def test_random_patches_predict_by_their_shares_of_votes(activation, vote, rule):
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(400, 6)), draw.integers(0, 4, 400)
    for ensemble in (None, so.RandomPatches(6, rows=0.5, features=0.5)):
        model = so.FedHEONN(activation, ensemble=ensemble, vote=vote, rule=rule)
        model.fit(so.simulate(X, y, clients=3, seed=1))
        p = model.predict_proba(20 * X)
        assert np.array_equal(model.predict(20 * X), p.argmax(axis=1))
        np.testing.assert_allclose(p.sum(axis=1), 1)
        if ensemble is not None and vote == "majority":
            np.testing.assert_allclose(p * 6, np.round(p * 6), atol=1e-12)


def test_a_tie_of_votes_goes_to_the_smaller_class():
    draw = np.random.default_rng(1)
    X, y = draw.normal(size=(300, 5)), draw.integers(0, 3, 300)
    model = so.FedHEONN(ensemble=so.RandomPatches(2, rows=0.3, features=0.4))
    model.fit(so.simulate(X, y, clients=2, seed=0))
    p = model.predict_proba(X)
    tied = (p == 0.5).sum(axis=1) == 2
    assert tied.sum() > 20
    assert np.array_equal(model.predict(X)[tied], (p[tied] == 0.5).argmax(axis=1))


def test_numbers_have_none():
    model = so.FedForest(trees=2).fit(federation("local", rows("numbers")))
    with pytest.raises(UsageError, match="numbers, which have no probabilities"):
        model.predict_proba(rows("numbers").X)
