"""FedHistGBDT with noise: a row is bounded, every ask is counted, and trees still learn."""

from __future__ import annotations

import math

import numpy as np
import pytest

import solera as so
from solera.core.accounting import Event, epsilon_of
from solera.core.clients import Client, Draws
from solera.core.component import build_fitted
from solera.core.errors import GateRefusal, NotEnoughReplies, UsageError
from solera.core.task import find_task
from solera.trust.open_asks import numbers_of

pytest.importorskip("dp_accounting")
rng = np.random.default_rng(0)
ROWS = rng.normal(size=(4000, 3))
CLASSES = (ROWS[:, 0] + ROWS[:, 1] * ROWS[:, 2] > 0).astype(np.int64)


def boosted(epsilon, targets=CLASSES, **options):
    dp = so.DP(epsilon=epsilon, delta=1e-5, clip=2.0, level="record")
    return so.FedHistGBDT(rounds=6, max_depth=3, bins=8, lr=0.5, l2=1.0, dp=dp, **options)


def test_noise_decides_how_good_boosted_trees_are():
    fed = so.simulate(ROWS, CLASSES, clients=4, seed=0)
    much, little = boosted(0.05).fit(fed), boosted(20.0).fit(fed)
    assert little.score(ROWS, CLASSES) > 0.75 > 0.65 > much.score(ROWS, CLASSES)
    plain = so.FedHistGBDT(rounds=6, max_depth=3, bins=8, lr=0.5, l2=1.0).fit(fed)
    assert little.score(ROWS, CLASSES) > plain.score(ROWS, CLASSES) - 0.1
    numbers = boosted(20.0).fit(so.simulate(ROWS, ROWS[:, 0] * 1.5, clients=4, seed=0))
    assert numbers.score(ROWS, ROWS[:, 0] * 1.5) > 0.7


def test_boosting_counts_bins_first_scores_and_every_level():
    fed = so.simulate(ROWS, CLASSES, clients=4, seed=0)
    model = boosted(20.0).fit(fed)
    asked = [r.task for r in fed.meter.records]
    noised = [t for t in asked if t.startswith(("preprocess.count", "trees."))]
    assert asked.count("preprocess.count") == 2
    assert sum(event["times"] for event in model.accounts_["events"]) == len(noised)
    assert {e["noise"] for e in model.accounts_["events"]} == {model.accounts_["noise"]}
    assert epsilon_of([Event(model.accounts_["noise"], 3 + 6 * 3)], 1e-5) <= 20.0
    assert not any("loss" in entry for entry in model.history_)
    assert "for one record, by FedHistGBDT" in model.card()


def test_a_client_that_drops_out_takes_its_noise_and_catches_up():
    failures = so.simulation.Failures(dropout=0.3)
    fed = so.simulate(ROWS, CLASSES, clients=6, failures=failures, seed=3)
    model = boosted(20.0).fit(fed)
    assert any(r.task == "trees.catch_up" for r in fed.meter.records)
    noises = {event["noise"] for event in model.accounts_["events"]}
    assert min(noises) < max(noises) <= model.accounts_["noise"]
    assert model.history_[-1]["epsilon"] > boosted(20.0).fit(clients_of(6)).history_[-1]["epsilon"]


def clients_of(number):
    return so.simulate(ROWS, CLASSES, clients=number, seed=3)


def test_numbers_need_a_bound_of_their_gradients():
    dp = so.DP(epsilon=1.0, delta=1e-5, level="record")
    with pytest.raises(UsageError, match="clip is missing, the bound of a gradient"):
        so.FedHistGBDT(dp=dp).fit(so.simulate(ROWS, ROWS[:, 0], clients=2))


def first_histograms(targets):
    """The first ask for histograms with noise, as clients get it."""
    fed, asks = so.simulate(ROWS[:300], targets, clients=2, seed=0), []
    run = fed.engine.run

    def watched(ask, aggregation):
        asks.append(ask)
        return run(ask, aggregation)

    fed.engine.run = watched
    dp = so.DP(epsilon=2.0, delta=1e-4, level="record", clip=2.0)
    so.FedHistGBDT(rounds=1, max_depth=1, bins=4, dp=dp).fit(fed)
    return next(ask for ask in asks if ask.task == "trees.histograms")


def test_an_ask_that_changes_loss_or_bound_between_levels_gets_no_more_of_a_row():
    """Gradients of a far target are kept from the first level; the second says they are small."""
    ask = first_histograms(ROWS[:300, 0])
    task, targets = find_task(ask.task), np.append(np.zeros(39), 1e6)

    def second_level(rows, y, **changes):
        source = so.simulate(rows, y, clients=1, seed=0).engine.source
        source = source.prepared([build_fitted(step.description) for step in ask.prepare])
        state = {}
        for number, more in enumerate([{"clip": 1e9}, {"clip": 2.0}]):
            client = Client(0, source, Draws(0, ask.task, 0, b"s" * 32), state)
            privacy = {**ask.payload["privacy"], "noise": 1e-9, "share": 1, **more}
            step = np.array([number, number, *ask.payload["step"][2:]])
            payload = {**ask.payload, "privacy": privacy, "step": step}
            if number:
                payload |= changes
            reply = numbers_of(task, client, payload, task.one(client, payload))
        return reply["trees"][0]

    for changes in ({}, {"loss": "sigmoid"}):
        whole = second_level(ROWS[:40], targets, **changes)
        less = second_level(ROWS[:39], targets[:39], **changes)
        for part in range(2):  # of Σg and Σh, each in units of the most of a row
            moved = np.linalg.norm((whole - less)[..., part])
            assert moved == pytest.approx(math.sqrt(3), rel=1e-6)


def test_a_level_with_noise_does_not_go_on_from_one_without():
    """Gradients without noise are kept in other units."""
    fed = clients_of(3)
    model = so.FedHistGBDT(rounds=1, max_depth=2, bins=4).fit(fed)
    noise = {"mechanism": "gaussian", "noise": 5.0, "share": 1}
    binned = fed.prepared(model.bins_)
    step = np.array([model.progress_["asks"], 1, 20, 20, 0, 0, 0])
    ask = {"loss": "sigmoid", "starts": model.bins_.starts_, "step": step, "privacy": noise}
    ask |= {"wanted": [np.array([1])], "splits": model.progress_["splits"]}
    with pytest.raises(NotEnoughReplies, match="missed an earlier ask"):
        binned.ask("trees.histograms", ask).collect()


def test_boosting_with_noise_is_priced_as_a_whole():
    limits = {"policy": "noise", "privacy": {"epsilon": 8.0, "delta": 1e-5}}
    make = lambda dp: so.FedHistGBDT(rounds=3, max_depth=2, bins=4, dp=dp)  # noqa: E731
    dp = so.DP(epsilon=8.0, delta=1e-5, level="record")
    owners = so.simulate(ROWS, CLASSES, clients=3, seed=3, policy=limits)
    assert 7.9 < make(dp).fit(owners).epsilon_ <= 8.0
    with pytest.raises(GateRefusal, match="privacy budget"):
        make(dp.clone().set_params(epsilon=8.5)).fit(owners)
    without = so.simulate(ROWS, CLASSES, clients=3, seed=3, policy="noise")
    with pytest.raises(GateRefusal, match="no budget"):
        make(dp).fit(without)
