"""Laws of selectors: how many, seeded, what their parameters do, and what bad reports do."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import solera as so
from solera.core.errors import NotFitted, UsageError
from solera.core.selection import Poisson, Roster, Selector
from solera.core.task import _tasks, find_task
from solera.select.draw import by_weight, highest
from solera.select.reports import with_default

COUNTED = {
    "Uniform": so.selectors.Uniform,
    "RoundRobin": so.selectors.RoundRobin,
    "ActiveSampling": so.ActiveSampling,
    "ActiveSampling-explore": lambda: so.ActiveSampling(explore=True),
    "PowerOfChoice": so.selectors.PowerOfChoice,
    "GreedyShapley": lambda: so.selectors.GreedyShapley(part="train"),
    "ShapleyUCB": lambda: so.selectors.ShapleyUCB(part="train"),
    "ShapleySoftmax": lambda: so.selectors.ShapleySoftmax(part="train"),
}
TIMED = {
    "FedCS": so.selectors.FedCS,
    "HybridFL": so.selectors.HybridFL,
    "DynHybridFL": so.selectors.DynHybridFL,
}
every = pytest.mark.parametrize("make", [*COUNTED.values(), *TIMED.values()],
                                ids=[*COUNTED, *TIMED])  # fmt: skip


def rows(clients=8, each=12, seed=0):
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(clients * each, 4))
    y = (X @ draw.normal(size=4) + 0.3 * draw.normal(size=len(X)) > 0).astype(int)
    return X, y


def federation(clients=8, *, seed=3, clock=True, engine="local", **options):
    X, y = rows(clients)
    clock = (
        so.simulation.VirtualClock(so.simulation.Resources(upload=0.5)) if clock is True else clock
    )
    return so.simulate(X, y, clients=clients, seed=seed, clock=clock, engine=engine, **options)


class Watch(so.callbacks.Callback):
    def __init__(self):
        self.chosen = []

    def on_round(self, learner, round):
        self.chosen.append(round.chosen.tolist())


def fit(select, fed, rounds=6, per_round=3, **options):
    watch = Watch()
    with fed:
        model = so.FedLinear(rounds=rounds, per_round=per_round, select=select, **options)
        model.fit(fed, callbacks=[watch])
    return model, watch.chosen


@pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
@settings(max_examples=8, deadline=None)
@given(clients=st.integers(1, 9), budget=st.integers(1, 12), seed=st.integers(0, 5))
def test_exactly_min_m_k_distinct_clients(make, clients, budget, seed):
    _, chosen = fit(make(), federation(clients, seed=seed), rounds=4, per_round=budget)
    for ids in chosen:
        assert len(set(ids)) == len(ids) == min(budget, clients)
        assert set(ids) <= set(range(clients))


@every
def test_seeded(make):
    one, first = fit(make(), federation())
    two, second = fit(make(), federation())
    _, other = fit(make(), federation(seed=4))
    assert first == second
    assert np.array_equal(one.coef_, two.coef_)
    if make not in TIMED.values():
        assert first != other


@every
@pytest.mark.parametrize("engine", ["processes"])
def test_processes_choose_the_same(make, engine):
    one, first = fit(make(), federation())
    two, second = fit(make(), federation(engine=engine, workers=2))
    assert first == second
    np.testing.assert_allclose(one.coef_, two.coef_, rtol=1e-9)


class Interrupt(so.callbacks.Callback):
    def __init__(self, at):
        self.at = at

    def on_round(self, learner, round):
        if round.index == self.at:
            raise KeyboardInterrupt


@every
def test_interrupted_and_resumed_is_the_same(make, tmp_path):
    plain, _ = fit(make(), federation())
    model = so.FedLinear(rounds=6, per_round=3, select=make())
    with pytest.raises(KeyboardInterrupt):
        model.fit(federation(), checkpoint=tmp_path / "c", callbacks=[Interrupt(3)])
    resumed = model.clone().fit(federation(), checkpoint=tmp_path / "c")
    assert np.array_equal(resumed.coef_, plain.coef_)
    assert resumed.history_ == plain.history_


@every
def test_unavailable_clients_are_never_chosen(make):
    clock = so.simulation.VirtualClock(
        so.simulation.Resources(upload=0.5), availability=so.simulation.Availability(12)
    )
    watch = Watch()

    class There(so.callbacks.Callback):
        def on_round(self, learner, round):
            time = round.metrics["time"] - round.metrics["seconds"]
            there = clock.available(3, time, 8)
            assert set(round.chosen.tolist()) <= set(there.tolist())

    with federation(clock=clock) as fed:
        so.FedLinear(rounds=6, per_round=3, select=make()).fit(fed, callbacks=[watch, There()])
    assert any(watch.chosen)


# --- the dice ---


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.integers(0, 3), min_size=1, max_size=20), count=st.integers(0, 25))
def test_highest_takes_the_highest(values, count):
    values = np.array(values, float)
    found = highest(values, count, np.random.default_rng(0))
    expected = np.sort(values)[::-1][: min(count, len(values))]
    assert len(set(found.tolist())) == len(found)
    assert np.array_equal(np.sort(values[found])[::-1], expected)


def test_by_weight_draws_as_one_after_the_other():
    weights = np.array([0.5, 0.3, 0.2])
    pairs = {}
    for i in range(6000):
        pair = frozenset(by_weight(np.log(weights), 2, np.random.default_rng(i)).tolist())
        pairs[pair] = pairs.get(pair, 0) + 1
    expected = {
        frozenset(p): sum(weights[a] * weights[b] / (1 - weights[a]) for a, b in (p, p[::-1]))
        for p in ((0, 1), (0, 2), (1, 2))
    }
    counts = [pairs[p] for p in expected]
    assert chisquare(counts, 6000 * np.array(list(expected.values()))).pvalue > 1e-3


def frequencies(selector, values, budget, draws=4000):
    counts = np.zeros(len(values))
    for i in range(draws):
        counts[selector.draw(np.array(values, float), budget, np.random.default_rng(i))] += 1
    return counts


def test_alpha3_one_makes_active_sampling_uniform():
    selector = so.ActiveSampling(alpha1=0.5, alpha2=5.0, alpha3=1.0)
    counts = frequencies(selector, np.arange(10), 2)
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("alpha2", [1e6, np.inf])
def test_alpha2_to_infinity_is_greedy(alpha2):
    selector = so.ActiveSampling(alpha1=0.0, alpha2=alpha2, alpha3=0.0)
    counts = frequencies(selector, np.arange(10), 3, draws=200)
    assert counts[7:].tolist() == [200, 200, 200]


def test_active_sampling_draws_by_exp_of_the_valuation():
    selector = so.ActiveSampling(alpha1=0.0, alpha2=1.0, alpha3=0.0)
    values = np.array([0.0, 1.0, 2.0])
    counts = frequencies(selector, values, 1)
    assert chisquare(counts, 4000 * np.exp(values) / np.exp(values).sum()).pvalue > 1e-3


def test_alpha1_sets_the_lowest_aside():
    selector = so.ActiveSampling(alpha1=0.5, alpha2=0.0, alpha3=0.0)
    counts = frequencies(selector, np.arange(10), 2, draws=500)
    assert not counts[:5].any()
    assert counts[5:].all()


def test_nan_valuations_count_as_the_median():
    assert with_default(np.array([1.0, np.nan, 5.0, 2.0])).tolist() == [1, 2, 5, 2]
    assert with_default(np.full(3, np.nan)).tolist() == [0, 0, 0]
    selector = so.ActiveSampling(alpha1=0.0, alpha2=np.inf, alpha3=0.0)
    drawn = selector.draw(np.array([np.nan, 9.0, np.nan, 1.0]), 1, np.random.default_rng(0))
    assert drawn.tolist() == [1]
    assert len(selector.draw(np.full(4, np.nan), 2, np.random.default_rng(0))) == 2


def test_round_robin_serves_everyone_before_anyone_twice():
    selector, roster = so.selectors.RoundRobin(), Roster(10, 4, None, seed=5)
    dice = np.random.default_rng(0)
    seen = np.concatenate([selector.choose(i, roster, dice) for i in range(5)])
    assert np.bincount(seen).tolist() == [2] * 10


def test_power_of_choice_takes_the_highest_loss_of_its_candidates():
    X = np.array([[0.0], [0], [1], [1]]).repeat(10, axis=0)
    y = np.array([0.0, 1.0, 5.0, 9.0]).repeat(10)
    fed = so.simulate(
        X, y, clients=4, partition=so.partitions.ByGroup(np.arange(4).repeat(10)), seed=0
    )
    select = so.selectors.PowerOfChoice(candidates=4)
    _, chosen = fit(select, fed, rounds=1, per_round=2)
    assert chosen == [[2, 3]]


def test_active_sampling_reports_the_loss_of_the_model_that_was_sent():
    fed = federation(clock=None)
    selector = so.ActiveSampling()
    learner = so.FedLinear(rounds=1, per_round=3)
    learner.schema_ = fed.schema
    learner.set_model(learner.first_model(0))
    roster = Roster(8, 3, fed.engine.sizes("train"), None, 3, fed, learner)
    selector.choose(0, roster, np.random.default_rng(0))
    np.testing.assert_allclose(selector.values_, np.log(2) * np.sqrt(12))


# --- clients that decline, and bad input ---


@pytest.mark.parametrize("make", [so.ActiveSampling, so.selectors.PowerOfChoice])
def test_everyone_may_decline_to_report_and_the_model_says_so(make, monkeypatch):
    def refuse(*_):
        raise so.errors.Refusal("not here")

    value = find_task("select.value")
    monkeypatch.setitem(_tasks, "select.value", replace(value, one=refuse, many=None))
    model, chosen = fit(make(), federation())
    assert all(len(ids) == 3 for ids in chosen)
    assert model.history_[-1]["warnings"] == [
        "FedLinear: nobody ever answered 'select.value': the selector had nothing to go by"
    ]


@pytest.mark.parametrize("make", TIMED.values(), ids=TIMED)
def test_without_a_clock_there_is_nothing_to_choose_by(make):
    with pytest.raises(UsageError, match="without a clock") as error:
        fit(make(), federation(clock=None), rounds=2)
    assert type(make()).__name__ in error.value.message
    assert "clock=so.simulation.VirtualClock()" in error.value.hint


@pytest.mark.parametrize("make", TIMED.values(), ids=TIMED)
def test_nobody_meets_the_deadline(make, caplog):
    with caplog.at_level(logging.WARNING, "solera"):
        _, chosen = fit(make().set_params(deadline=1e-3), federation(), rounds=2)
    assert chosen == [[], []]
    assert "meets the deadline" in caplog.text


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_below_one_is_an_error(budget):
    with pytest.raises(UsageError, match="per_round must be a whole number of at least 1"):
        fit(so.selectors.Uniform(), federation(), per_round=budget)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: so.ActiveSampling(alpha1=1.5), "alpha1 must be a number in"),
        (lambda: so.ActiveSampling(alpha2=-1), "alpha2 must be a number of at least 0"),
        (lambda: so.ActiveSampling(alpha3=float("nan")), "alpha3 must be a number in"),
        (
            lambda: so.selectors.PowerOfChoice(candidates=0),
            "candidates must be a whole number of at least 1",
        ),
        (lambda: so.selectors.GreedyShapley(np.zeros((2, 4))), "validation rows and their target"),
        (lambda: so.selectors.ShapleyUCB(epsilon=-1), "epsilon must be a number of at least 0"),
        (lambda: so.selectors.FedCS(deadline=0), "deadline must be a number > 0"),
        (lambda: so.selectors.FedCS(overhead=-1), "overhead must be a number of at least 0"),
        (lambda: so.selectors.HybridFL(term="mean"), "term must be"),
        (lambda: so.selectors.DynHybridFL(reference="first"), "reference must be"),
        (lambda: so.selectors.DynHybridFL(lower=5, upper=1), "lower must be"),
    ],
)
def test_bad_parameters_are_named(make, words):
    with pytest.raises(UsageError, match=words):
        make()


def test_a_selector_changed_for_the_worse_is_checked_when_it_is_used():
    with pytest.raises(UsageError, match="deadline must be"):
        fit(so.selectors.FedCS().set_params(deadline=0), federation())


def test_every_selector_is_tried_here():
    tried = {type(make()) for make in [*COUNTED.values(), *TIMED.values()]}
    ours = {c for c in Selector.registry.values() if issubclass(c, Selector)}
    assert {c for c in ours if c.__module__.startswith("solera.")} <= tried | {Poisson}


def test_poisson_asks_as_many_as_chance_wants():
    """A binomial number of clients, each as often as any other."""
    roster = Roster(40, 10, None)
    rng = np.random.default_rng(0)
    asked = np.zeros(40)
    counts = []
    for round in range(400):
        chosen = Poisson().choose(round, roster, rng)
        assert len(set(chosen.tolist())) == len(chosen)
        counts.append(len(chosen))
        asked[chosen] += 1
    assert np.mean(counts) == pytest.approx(10, abs=4 * np.sqrt(40 * 0.25 * 0.75 / 400))
    assert np.var(counts) == pytest.approx(40 * 0.25 * 0.75, rel=0.4)
    assert asked.min() > 60


@pytest.mark.parametrize(
    ("alpha3", "count", "uniform"),
    [(0.1, 3, 1), (0.3, 3, 1), (0.3, 6, 2), (0.3, 10, 3), (0.7, 10, 7), (0.0, 4, 0), (1.0, 4, 4)],
)
def test_active_sampling_explores_at_least_one_client(alpha3, count, uniform):
    """⌈α3·M⌉ of a round come uniformly from all: those of low value too."""
    values = np.arange(40.0)
    selector = so.ActiveSampling(alpha1=0.0, alpha2=np.inf, alpha3=alpha3)
    best = set(range(40 - (count - uniform), 40))
    for seed in range(20):
        drawn = set(selector.draw(values, count, np.random.default_rng(seed)).tolist())
        assert len(drawn) == count
        assert best <= drawn
    if uniform:
        assert any(
            not set(selector.draw(values, count, np.random.default_rng(seed)).tolist())
            <= set(range(40 - count, 40))
            for seed in range(20)
        )


def test_what_a_selector_learned_can_be_read_after_fit():
    X, y, X_test, y_test = so.datasets.digits()
    fed = so.simulate(X / 16, y, clients=8, seed=0)
    rows = X_test[:100] / 16, y_test[:100]
    chosen = {"rounds": 6, "per_round": 3}
    greedy = so.FedLinear(**chosen, select=so.selectors.GreedyShapley(*rows)).fit(fed).selector_
    assert greedy.counts_.sum() == 18
    assert (greedy.means > 0).any()
    np.testing.assert_array_equal(greedy.scores, greedy.means)
    bounds = so.FedLinear(**chosen, select=so.selectors.ShapleyUCB(*rows)).fit(fed).selector_
    seen = bounds.counts_ > 0
    assert (bounds.scores[seen] > bounds.means[seen]).all()
    assert np.isinf(bounds.scores[~seen]).all()
    soft = so.FedLinear(**chosen, select=so.selectors.ShapleySoftmax(*rows)).fit(fed).selector_
    assert soft.probabilities.sum() == pytest.approx(1)
    assert soft.probabilities.argmax() == soft.means.argmax()
    active = so.FedLinear(**chosen, select=so.ActiveSampling(alpha2=5.0)).fit(fed).selector_
    assert not np.isnan(active.values_).any()
    assert (active.probabilities > 0).sum() == 8 - 6
    assert active.probabilities.argmax() == active.values_.argmax()


def test_nothing_was_learned_before_fit():
    for selector in (so.selectors.GreedyShapley(), so.selectors.ShapleyUCB()):
        with pytest.raises(NotFitted):
            selector.means  # noqa: B018
        with pytest.raises(NotFitted):
            selector.scores  # noqa: B018
    with pytest.raises(NotFitted):
        so.ActiveSampling().probabilities  # noqa: B018
    with pytest.raises(NotFitted):
        so.FedLinear().selector_  # noqa: B018


def test_a_saved_model_is_the_same_whoever_was_selected(tmp_path):
    X, y, *_ = so.datasets.digits()
    fed = so.simulate(X / 16, y, clients=6, seed=0)
    model = so.FedLinear(rounds=3, per_round=2, select=so.ActiveSampling()).fit(fed)
    again = so.load(model.save(tmp_path / "model.solera"))
    assert set(again.get_state()) == set(model.get_state())
    with pytest.raises(NotFitted):
        again.selector_  # noqa: B018
