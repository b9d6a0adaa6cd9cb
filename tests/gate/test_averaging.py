"""Averaging behind the gate: models leave as their rows allow, with noise, or where rows may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.component import describe, describe_fitted
from solera.core.errors import SoleraError
from solera.core.schema import infer
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
    so.FedAvg(NET, rounds=1, update_steps=[so.updates.Clip(1.0), so.updates.TopK(0.8)]),
    so.FedProx(NET, rounds=1),
    so.Scaffold(NET, rounds=1),
    so.FedNova(NET, rounds=1),
    so.FedRep(NET, rounds=1),
    so.Ditto(NET, rounds=1),
]


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: type(learner).__name__)
def test_networks_are_trained_where_the_driver_is_trusted_or_rows_are_many(learner):
    fed = so.simulate(X, Y, clients=2, test=0.2, policy="trusted", seed=3)
    learner.fit(fed)
    free = so.simulate(X, Y, clients=2, test=0.2, seed=3)
    assert np.array_equal(learner.weights_, learner.clone().fit(free).weights_)
    if learner.is_personal:
        assert 0 <= learner.evaluate(fed)["accuracy"] <= 1
    for policy in ("training", "vertical", "upload"):
        with pytest.raises(SoleraError, match=r"it needs noise, .* or the policy 'trusted'"):
            learner.clone().fit(so.simulate(X, Y, clients=2, policy=policy))
    many, of_many = np.tile(X, (4, 1)), np.tile(Y, 4)
    allowed = learner.clone().fit(so.simulate(many, of_many, clients=2, policy="training"))
    alone = learner.clone().fit(so.simulate(many, of_many, clients=2))
    np.testing.assert_allclose(allowed.weights_, alone.weights_, atol=1e-5)


def test_all_updates_of_a_reply_are_counted_together():
    """Scaffold sends as many control variates as parameters: 74 numbers and a loss."""
    limits = replace(find_limits("training"), parameters=75 / 120)
    fed = so.simulate(X, Y, clients=1, policy=limits)
    so.Scaffold(NET, rounds=1).fit(fed)
    fed = so.simulate(X, Y, clients=1, policy=replace(limits, parameters=74 / 120))
    with pytest.raises(SoleraError, match="75 parameters need 122 rows"):
        so.Scaffold(NET, rounds=1).fit(fed)


def answer(task: str, payload: Any, policy: Any, X: Any = X, Y: Any = Y) -> Any:
    """The reply of one client, or why there is none."""
    with so.simulate(X, Y, clients=1, policy=policy) as fed:
        replies = fed.ask(task, payload, quorum=0)
        got = replies.collect()
        return got[0].payload if got else replies.failures[0].reason


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
    reply = answer("averaging.train", ask(**change), "trusted")
    if why is None:
        assert set(reply) == {"update", "loss", "rows"}
        assert reply["rows"] == 120
        return
    assert why in reply


def test_models_from_the_wire_are_of_their_architecture():
    rule, schema = Fitted(Learner), infer(X, Y)
    model = so.FedAvg(NET, rounds=1).fit(so.simulate(X, Y, clients=2))
    assert rule.objection(describe_fitted(model.for_prediction()), schema) is None
    model.weights_ = np.zeros(36, np.float32)
    assert "37 parameters" in rule.objection(describe_fitted(model.for_prediction()), schema)
    wide = so.FedAvg(so.nn.mlp(5, 2), rounds=1)
    wide.schema_, wide.weights_ = schema, np.zeros(12, np.float32)
    assert "takes rows of 5" in rule.objection(describe_fitted(wide), schema)


# --- noise ---


def private(**privacy: Any) -> Any:
    table = {"level": "client", "noise": 4.0, "clip": 0.5, "share": 1, "below": None, "rate": None}
    return ask(privacy={**table, **privacy})


WITH_BUDGET = replace(find_limits("training"), budget=(10.0, 1e-3))


@pytest.mark.parametrize("task", ["averaging.train", "averaging.ditto", "averaging.rep"])
def test_with_noise_a_network_of_any_size_leaves_within_the_budget(task):
    pytest.importorskip("dp_accounting")
    more = {"averaging.ditto": {"pull": 0.1}, "averaging.rep": {"head_epochs": 1}}.get(task, {})
    more |= {"private": ["2.weight", "2.bias"]} if task == "averaging.rep" else {}
    noised = {**private(), **more}
    reply = answer(task, noised, WITH_BUDGET)
    assert set(reply) == {"update", "rows"}
    assert reply["rows"] == 1, "the number of rows is no noised number"
    assert "no budget" in answer(task, noised, "training")
    assert "budget is ε = 0.1" in answer(task, noised, replace(WITH_BUDGET, budget=(0.1, 1e-3)))


def test_what_protects_clients_protects_persons_of_several_rows():
    pytest.importorskip("dp_accounting")
    data = so.data.FederatedData(X, Y, np.array([0, 120]))
    data.persons = np.arange(120) // 4
    fed = so.simulate(data, policy=replace(WITH_BUDGET, unit="person"))
    assert len(fed.ask("averaging.train", private()).collect()) == 1
    refused = fed.ask("averaging.train", private(level="record", rate=0.5), quorum=0)
    assert not refused.collect()
    assert "protects rows" in refused.failures[0].reason


def test_private_parts_are_not_trained_by_noised_gradients():
    """Of a part that stays with its client no gradient would be clipped."""
    by_row = private(level="record", rate=0.5)
    assert "without noise" in answer(
        "averaging.train", {**by_row, "private": ["2.weight", "2.bias"]}, None
    )
    dp = so.DP(level="record", noise_multiplier=1.0, delta=1e-3, clip=1.0, rate=0.5)
    with pytest.raises(SoleraError, match="stays with the clients"):
        so.FedPer(NET, rounds=1, weight=None, dp=dp).fit(so.simulate(X, Y, clients=2))


# --- labels ---


def test_labels_are_learnt_and_judged_where_the_driver_is_trusted():
    learner = so.MLFedAvg(
        so.nn.mlp(4, 6, 5), rounds=2, stop="patience", fine_tune=1, thresholds=True
    )
    fed = so.simulate(X, LABELS, clients=2, validation=0.2, policy="trusted")
    learner.fit(fed)
    assert learner.evaluate_clients(fed, X, LABELS)[0]["rows"] > 0
    with pytest.raises(SoleraError, match="'trusted'"):
        learner.fit(so.simulate(X, LABELS, clients=2, validation=0.2, policy="training"))


def test_scores_of_labels_are_told_of_enough_rows_and_not_given_otherwise():
    """Eight scores of a client need 24 rows; the clients have 48 and 12 validation rows."""
    rows, labels = np.tile(X, (5, 1)), np.tile(LABELS, (5, 1))
    data = so.data.FederatedData(rows, labels, np.array([0, 480, 600])).split(validation=0.1)
    fed = so.simulate(data, policy="training")
    model = so.MLFedAvg(so.nn.mlp(4, 3), rounds=1, stop="patience").fit(fed)
    told = model.evaluate_clients(fed, part="validation")
    assert set(told) == {0}
    assert model.history_[0]["validation_loss"] == told[0]["loss"]
    free = so.simulate(data)
    everyone = so.MLFedAvg(so.nn.mlp(4, 3), rounds=1, stop="patience").fit(free)
    of_both = everyone.evaluate_clients(free, part="validation")
    assert set(of_both) == {0, 1}
    assert told[0] == pytest.approx(of_both[0], rel=1e-4)


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


def test_a_linear_model_needs_rows_for_its_parameters():
    """Ten parameters and a loss: 33 rows."""
    assert answer("linear.train", linear(), "training", X[:33], Y[:33])["rows"] == 33
    few = answer("linear.train", linear(), "training", X[:32], Y[:32])
    assert "11 parameters need 33 rows" in few
    assert answer("linear.train", linear(), "trusted", X[:12], Y[:12])["rows"] == 12


@pytest.mark.parametrize(
    "change",
    [
        {"coef": np.zeros((4, 30_000)), "intercept": np.linspace(-9, 9, 30_000)},
        {"coef": np.full((4, 2), np.inf)},
        {"lr": -1.0},
        {"epochs": 10_000},
    ],
)
def test_what_no_learner_asks_is_refused(change):
    assert isinstance(answer("linear.train", linear(**change), "training"), str)


def test_owners_say_whether_updates_leave_at_all():
    strict = replace(find_limits("training"), allows=frozenset({"facts", "cells"}))
    assert "not allowed" in answer("linear.train", linear(), strict)
    assert [name for name, limits in POLICIES.items() if limits.trusted] == ["trusted"]


def test_a_client_that_may_not_send_is_named_and_the_model_is_that_of_the_others():
    data = so.data.FederatedData(X, Y, np.array([0, 50, 60, 120]))
    model = so.FedLinear(rounds=3).fit(so.simulate(data, policy="training"))
    others = np.r_[0:50, 60:120]
    rest = so.data.FederatedData(X[others], Y[others], np.array([0, 50, 110]))
    alone = so.FedLinear(rounds=3, batch_size=None)
    whole = so.FedLinear(rounds=3, batch_size=None).fit(so.simulate(data, policy="training"))
    np.testing.assert_allclose(whole.coef_, alone.fit(so.simulate(rest)).coef_, atol=1e-12)
    (warning,) = model.history_[-1]["warnings"]
    assert "the model lacks" in warning


def test_rows_that_are_withheld_turn_the_update_away():
    """``min_count`` above ``min_rows``: the weight of an update is no zero."""
    limits = replace(find_limits("training"), min_count=50)
    data = so.data.FederatedData(X, Y, np.array([0, 40, 120]))
    model = so.FedLinear(rounds=1).fit(so.simulate(data, policy=limits))
    assert model.history_[0]["failures"] == 1
    reason = dict(model.history_[0]["excluded"])[0]
    assert "'rows' is withheld" in reason
