"""Averaging behind the gate: networks leave where rows may, linear models as their rows allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gate.measure import REFUSED, Hostile, Owner, table
from tests.gate.test_hostile_driver import rows_of

import solera as so
from solera.core.component import describe, describe_fitted
from solera.core.errors import SoleraError
from solera.core.schema import infer
from solera.learn.averaging.label_metrics import SCORES, label_scores, score_changes
from solera.learn.base import Learner
from solera.trust.declared import Fitted
from solera.trust.gate import POLICIES, find_limits

RNG = np.random.default_rng(2)
X = RNG.normal(size=(120, 4))
Y = (X[:, 0] + 0.3 * RNG.normal(size=120) > 0).astype(np.int64)
LABELS = (RNG.random((120, 3)) < 0.4).astype(np.int64)
NET = so.nn.mlp(4, 5, 2)
LEARNERS = [
    so.FedAvg(NET, rounds=1),
    so.FedAvg(NET, rounds=1, update_steps=[so.updates.Clip(1.0), so.updates.TopK(0.2)]),
    so.FedProx(NET, rounds=1),
    so.Scaffold(NET, rounds=1),
    so.FedNova(NET, rounds=1),
    so.FedRep(NET, rounds=1),
    so.Ditto(NET, rounds=1),
    so.FedAvg(so.nn.linear(4, 2), rounds=1),
]


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: type(learner).__name__)
def test_networks_are_trained_where_the_driver_is_trusted_and_nowhere_else(learner):
    fed = so.simulate(X, Y, clients=2, test=0.2, policy="trusted", seed=3)
    learner.fit(fed)
    free = so.simulate(X, Y, clients=2, test=0.2, seed=3)
    assert np.array_equal(learner.weights_, learner.clone().fit(free).weights_)
    if learner.is_personal:
        assert 0 <= learner.evaluate(fed)["accuracy"] <= 1
    for policy in ("training", "vertical", "upload"):
        with pytest.raises(SoleraError, match="needs noise or the policy 'trusted'"):
            learner.clone().fit(so.simulate(X, Y, clients=2, policy=policy))


def ask(**change: Any) -> Any:
    return {
        "model": describe(NET),
        "weights": np.zeros(37, np.float32),
        "classes": np.array([0, 1]),
        "training": {
            "loss": "softmax", "lr": 0.1, "optimiser": "sgd", "momentum": 0.0, "l2": 0.0,
            "epochs": 1, "steps": None, "batch_size": 8,
        },
        "private": [],
        "send": "difference",
        "steps": [],
        "device": None,
        **change,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"weights": np.zeros(38, np.float32)}, "37 parameters"),
        ({"weights": np.full(37, np.nan)}, "not finite"),
        ({"model": describe(so.nn.mlp(5, 5, 2))}, "takes rows of 5 values"),
        ({"model": describe(so.FedLinear())}, "is no model"),
        ({"steps": describe([so.FedLinear()])}, "update steps"),
        ({"training": {**ask()["training"], "epochs": 10**9}}, "epochs"),
        ({"more": 1}, "'more' is not declared"),
    ],
)
def test_what_a_network_is_trained_with_fits_the_rows(change, why):
    owner = Owner(table(X, Y), find_limits("trusted"))
    reply = owner.ask("averaging.train", ask(**change))
    if why is None:
        assert set(reply) == {"update", "loss", "rows"}
        return
    assert reply == REFUSED
    assert why in owner.why


def test_models_from_the_wire_are_of_their_architecture():
    rule, schema = Fitted(Learner), infer(X, Y)
    model = so.FedAvg(NET, rounds=1).fit(so.simulate(X, Y, clients=2))
    assert rule.objection(describe_fitted(model.for_prediction()), schema) is None
    model.weights_ = np.zeros(36, np.float32)
    assert "37 parameters" in rule.objection(describe_fitted(model.for_prediction()), schema)
    wide = so.FedAvg(so.nn.mlp(5, 2), rounds=1)
    wide.schema_, wide.weights_ = schema, np.zeros(12, np.float32)
    assert "takes rows of 5" in rule.objection(describe_fitted(wide), schema)


# --- labels ---


def test_changes_of_label_scores_are_those_of_leaving_a_row_out():
    rng = np.random.default_rng(0)
    z, truth = rng.normal(size=(12, 3)), (rng.random((12, 3)) < 0.5).astype(int)
    changes = score_changes(z, truth, 0.1)
    now = label_scores(z, truth, 0.1)
    assert set(changes) == set(now) == set(SCORES)
    for i in range(12):
        left = label_scores(np.delete(z, i, 0), np.delete(truth, i, 0), 0.1)
        for name, value in now.items():
            assert changes[name][i] == pytest.approx(value - left[name], abs=1e-12), name


def test_labels_are_learnt_and_judged_where_the_driver_is_trusted():
    learner = so.MLFedAvg(
        so.nn.mlp(4, 6, 5), rounds=2, stop="patience", fine_tune=1, thresholds=True
    )
    fed = so.simulate(X, LABELS, clients=2, validation=0.2, policy="trusted")
    learner.fit(fed)
    assert learner.evaluate_clients(fed, X, LABELS)[0]["rows"] > 0
    with pytest.raises(SoleraError, match="'trusted'"):
        learner.fit(so.simulate(X, LABELS, clients=2, validation=0.2, policy="training"))


# --- linear models ---


def linear(outputs: int = 2, **change: Any) -> Any:
    return {
        "coef": np.zeros((4, outputs)),
        "intercept": np.zeros(outputs),
        "classes": np.array([0, 1]),
        "loss": "softmax",
        "lr": 0.1,
        "epochs": 1,
        "batch_size": 32,
        "l2": 0.0,
        **change,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"coef": np.zeros((4, 30_000)), "intercept": np.linspace(-9, 9, 30_000)},
        {"coef": np.full((4, 2), 1e300)},
        {"coef": np.full((4, 2), 100.0)},
        {"lr": 1e300},
        {"epochs": 10_000},
    ],
)
def test_linear_models_that_single_out_rows_get_nothing(change):
    assert (
        Owner(table(X, Y), find_limits("training")).ask("linear.train", linear(**change)) == REFUSED
    )


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"lr": 5.0, "batch_size": None},
        {"coef": np.array([[5.0, -5.0], [0, 0], [0, 0], [0, 0]])},
        {"intercept": np.array([30.0, -30.0]), "batch_size": None},
        {"coef": RNG.normal(size=(4, 2)), "l2": 0.5, "batch_size": None},
    ],
)
def test_each_parameter_of_a_full_step_rests_on_five_rows(change):
    """One step over all rows: what a row gave is what leaving it out changes, but for the mean."""
    hostile = Hostile(X, Y, "training", infer(X, Y), rows=range(120))
    reply = hostile.ask("linear.train", linear(**{"batch_size": None, **change}))
    if isinstance(reply, str):
        return
    assert hostile.leak().rows >= 5


def test_named_policies_say_which_of_them_lets_networks_out():
    assert [name for name, limits in POLICIES.items() if limits.trusted] == ["trusted"]
    strict = replace(find_limits("training"), allows=frozenset({"facts", "cells"}))
    assert Owner(table(X, Y), strict).ask("linear.train", linear()) == REFUSED


def test_a_row_far_out_that_several_steps_follow_does_not_decide_a_weight(monkeypatch):
    """What its errors give is small just because the weights follow it."""
    X, y, schema = rows_of("classes")
    coef = np.array([[1.304, 0.220], [0.215, -0.922], [0.640, -0.732], [-0.544, 0.412]])
    start = {"coef": coef, "intercept": np.array([-0.544, -0.654])}
    ask = linear(**start, loss="squared", lr=0.00869, epochs=30, batch_size=None)

    def fewest() -> float:
        hostile = Hostile(X, y, schema=schema)
        assert hostile.ask("linear.train", ask) != REFUSED
        return hostile.leak().rows

    assert fewest() >= 5
    monkeypatch.setattr("solera.learn.linear._leverage", lambda X, ask, steps: np.zeros(len(X)))
    assert fewest() < 5
