"""``dp=`` is one mechanism: what carries noise is counted, for every learner that takes it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.privacy.dp.test_sums import DP, LEARNERS, TARGETS, X, Y, noised_asks

import solera as so
from solera.core.accounting import Event
from solera.core.errors import UsageError
from solera.privacy.dp.sums import Noise
from solera.trust.contributions import Update
from solera.trust.noise import SPENT, spent_by
from solera.trust.policy import Policy

pytest.importorskip("dp_accounting")
CLIENT = so.DP(epsilon=2.0, delta=1e-4, clip=2.0)


def network(dp):
    model = so.nn.linear(X.shape[1], 2)
    return so.FedAvg(model, rounds=2, weight=None, dp=dp, device="cpu")


MADE = {
    **{name: make for name, make in LEARNERS.items() if name not in ("describe", "FedID3")},
    "FedID3": lambda dp: so.FedID3(max_depth=1, dp=dp),
    "FedLinear of clients": lambda dp: so.FedLinear(rounds=2, dp=CLIENT),
    "FedAvg": lambda dp: network(CLIENT),
}


def fitted(name, **options):
    """A learner that was fitted with noise, and every ask of it."""
    rows, targets = X, TARGETS.get(name, Y)
    if name == "FedID3":
        pandas = pytest.importorskip("pandas")
        rows = pandas.DataFrame(np.array(["low", "high"])[(X > 0).astype(int)], columns=[*"abcd"])
    fed, asks = so.simulate(rows, targets, clients=3, seed=0, **options), []
    run = fed.engine.run

    def watched(ask, aggregation):
        asks.append(ask)
        return run(ask, aggregation)

    fed.engine.run = watched
    return MADE[name](DP).fit(fed, progress=False), asks, fed


def check_counted(name):
    """What is asked after the schema carries the table, with the clip, and is charged once."""
    model, asks, _ = fitted(name)
    noised = [ask for ask in asks if not ask.task.startswith("data.")]
    assert noised
    assert all("privacy" in ask.payload for ask in noised)
    assert {ask.payload["privacy"]["clip"] for ask in noised} == {2.0}
    assert sum(event["times"] for event in model.accounts_["events"]) == len(noised)
    assert 1.9 < model.epsilon_ <= 2.0
    assert f"ε = {model.epsilon_:.4g} at δ = 0.0001" in model.card()
    assert "ε spent" in model._repr_html_()
    for entry, last in zip(model.history_[-1:], [model.epsilon_], strict=False):
        assert entry["epsilon"] == pytest.approx(last)
        assert entry["noise"] == "simulated"


@pytest.mark.parametrize("name", MADE)
def test_all_that_is_noised_is_counted_and_said(name):
    check_counted(name)


@pytest.mark.parametrize("name", ["FedKMeans", "FedGLM", "FedHEONN", "FedBins", "FedLinear"])
@pytest.mark.parametrize("part", ["added_to", "charge"])
def test_without_the_mechanism_it_is_seen(monkeypatch, name, part):
    nothing = {
        "added_to": lambda self, task, payload: payload,
        "charge": lambda self, replies: None,
    }
    monkeypatch.setattr(Noise, part, nothing[part])
    with pytest.raises((AssertionError, KeyError, TypeError)):
        check_counted(name)


@pytest.mark.parametrize("name", [name for name in MADE if name not in ("FedAvg", "FedID3")])
def test_owners_count_what_every_reply_tells(name):
    _, asks, free = fitted(name)
    policy = Policy("noise", budget=(1e3, 1e-4))
    owners = so.simulate(free.data, seed=0, policy=policy)
    noised = [ask for ask in asks if "privacy" in (ask.payload or ())]
    for ask in noised:
        for block in owners.engine.run(ask, None):
            assert not block.failures
    spent = [ask.payload["privacy"] for ask in noised]
    for client in range(3):
        ledger = owners.engine.states(noised[0].fit)[client][SPENT]
        events = [event.to_payload() for table in spent for event in spent_by(table)]
        assert list(ledger) == events


@pytest.mark.parametrize(("level", "ball"), [("client", 1.0), ("record", 2.0)])
def test_the_noise_of_linear_models_is_a_share_of_sigma_times_clip(level, ball):
    """One row may turn an update round, so that hiding a row takes twice as much."""
    wide = np.zeros((40, 3000))
    fed = so.simulate(wide, np.arange(40.0), clients=4, seed=0)
    dp = so.DP(noise_multiplier=3.0, delta=1e-4, clip=0.5, level=level)
    model = so.FedLinear(rounds=1, lr=1e-9, dp=dp).fit(fed, progress=False)
    assert np.std(model.coef_) == pytest.approx(ball * 3.0 * 0.5 / 4, rel=0.06)
    assert model.accounts_["noise"] == 3.0


def steps(rounds=1, **dp):
    noise = so.DP(**{"noise_multiplier": 1e-3, "delta": 1e-4, "clip": 0.1, **dp})
    return so.FedLinear(rounds=rounds, lr=50.0, batch_size=None, dp=noise)


def longest():
    model = steps().fit(so.simulate(X, Y, clients=3, seed=0), progress=False)
    return math.sqrt(np.square(model.coef_).sum() + np.square(model.intercept_).sum())


def test_no_client_moves_a_linear_model_farther_than_the_clip():
    assert 0.05 < longest() <= 0.101


def test_without_the_clip_it_is_seen(monkeypatch):
    monkeypatch.setattr(Update, "bounded", lambda self, clip: self)
    assert longest() > 1.0


def test_clients_of_a_linear_model_weigh_the_same_and_tell_no_loss():
    data = so.data.FederatedData(X, Y, np.array([0, 10, 300]))
    models = [steps().fit(so.simulate(data, seed=0), progress=False) for _ in range(2)]
    alone = [
        steps().fit(so.simulate(X[rows], Y[rows], clients=1, seed=0), progress=False).coef_
        for rows in (slice(0, 10), slice(10, 300))
    ]
    assert "loss" not in models[0].history_[-1]
    np.testing.assert_allclose(models[0].coef_, np.mean(alone, axis=0), atol=2e-3)


def test_drawing_clients_of_a_linear_model_counts():
    dp = so.DP(noise_multiplier=2.0, delta=1e-4, clip=1.0)
    model = so.FedLinear(rounds=2, per_round=2, dp=dp)
    model.fit(so.simulate(X, Y, clients=4, seed=0), progress=False)
    (event,) = [Event.from_payload(event) for event in model.accounts_["events"]]
    assert event == Event(2.0, 2, rate=0.5, sampling="fixed", among=4)


def test_a_callback_that_judges_is_told_no_noise():
    fed, asks = so.simulate(X, Y, clients=3, validation=0.2, seed=0), []
    run = fed.engine.run
    fed.engine.run = lambda ask, aggregation: asks.append(ask) or run(ask, aggregation)
    so.FedLinear(rounds=1, dp=CLIENT).fit(fed, callbacks=[so.callbacks.Evaluate()], progress=False)
    assert {ask.task for ask in asks if "privacy" in (ask.payload or ())} == {"linear.train"}
    assert any(ask.task == "learner.evaluate" for ask in asks)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dp": so.DP(epsilon=1, delta=0.1)}, "clip is missing"),
        ({"dp": so.DP(epsilon=1, delta=0.1, clip=1, adaptive=0.5)}, "adaptive"),
        ({"dp": so.DP(epsilon=1, delta=0.1, clip=1, sampling="poisson")}, "sampling"),
        ({"dp": CLIENT, "aggregate": so.robust.Median()}, "leave aggregate= or dp= out"),
    ],
)
def test_what_a_linear_model_does_not_count_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        so.FedLinear(**options).fit(so.simulate(X, Y, clients=3, seed=0))


def test_descriptions_carry_it_too():
    assert len(noised_asks("describe")) == 5
