"""Laws of Shapley values, for games in general and for the updates of a round."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import solera as so
from solera.core.rounds import Round
from solera.core.selection import Roster
from solera.select.shapley import all_subsets, exact_shapley, truncated_shapley
from solera.select.valuing import RoundUtility

games = st.integers(1, 5).flatmap(
    lambda n: st.lists(st.floats(-5, 5), min_size=2**n, max_size=2**n).map(np.array)
)


def game(values):
    """A utility that looks its values up, and counts."""
    n = len(values).bit_length() - 1

    def utility(subsets):
        utility.evaluated += len(subsets)
        return values[subsets @ (1 << np.arange(n))]

    utility.evaluated = 0
    return utility, n


def by_permutations(values):
    utility, n = game(values)
    total = np.zeros(n)
    orders = list(permutations(range(n)))
    for order in orders:
        inside = np.zeros((1, n), bool)
        before = utility(inside)[0]
        for i in order:
            inside[0, i] = True
            now = utility(inside)[0]
            total[i] += now - before
            before = now
    return total / len(orders)


@settings(max_examples=60, deadline=None)
@given(values=games)
def test_exact_is_the_mean_over_permutations_and_adds_up(values):
    utility, n = game(values)
    found = exact_shapley(utility, n)
    assert utility.evaluated == 2**n
    np.testing.assert_allclose(found, by_permutations(values), atol=1e-9)
    np.testing.assert_allclose(found.sum(), values[-1] - values[0], atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(values=games, seed=st.integers(0, 9))
def test_truncated_adds_up_and_never_asks_twice(values, seed):
    utility, n = game(values)
    found = truncated_shapley(utility, n, np.random.default_rng(seed), epsilon=1e-4)
    assert utility.evaluated <= 2**n
    assert abs(found.sum() - (values[-1] - values[0])) <= 1e-4 + 1e-9


def smooth(n, seed=0):
    """A game with decreasing returns, as averages of updates have."""
    gains = np.random.default_rng(seed).uniform(0.2, 1, n)

    def utility(subsets):
        utility.evaluated += len(subsets)
        return 1 - np.exp(-(subsets @ gains))

    utility.evaluated = 0
    return utility


@pytest.mark.parametrize("n", [4, 6, 8])
def test_exact_and_truncated_agree(n):
    exact = exact_shapley(smooth(n), n)
    found = truncated_shapley(smooth(n), n, np.random.default_rng(1))
    np.testing.assert_allclose(found, exact, atol=0.1 * np.abs(exact).max())


def test_truncation_saves_evaluations_and_stops():
    n = 20
    utility = smooth(n)
    found = truncated_shapley(utility, n, np.random.default_rng(0))
    assert utility.evaluated < 30 * n * n
    assert found.sum() == pytest.approx(1 - np.exp(0) + utility(np.ones((1, n), bool))[0], abs=1e-3)


def test_a_round_without_gain_gives_zero_after_two_evaluations():
    calls = []

    def flat(subsets):
        calls.append(len(subsets))
        return np.full(len(subsets), 0.5)

    assert not truncated_shapley(flat, 12, np.random.default_rng(0)).any()
    assert sum(calls) == 2


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(-5, 5), min_size=8, max_size=8).map(np.array))
def test_null_and_symmetric_players(values):
    """Players 0 and 1 are alike, player 3 changes nothing."""
    subsets = all_subsets(4)
    alike = subsets[:, 0].astype(int) + subsets[:, 1]
    table = values[alike + 3 * subsets[:, 2]]
    found = exact_shapley(game(table)[0], 4)
    assert found[0] == pytest.approx(found[1], abs=1e-9)
    assert found[3] == pytest.approx(0, abs=1e-9)


# --- the updates of a round ---


class Keep(so.callbacks.Callback):
    def on_round(self, learner, round):
        self.round = round


def round_of(learner, X, y, assignment):
    fed = so.simulate(X, y, partition=so.partitions.ByGroup(assignment), seed=0)
    keep = Keep()
    learner.fit(fed, callbacks=[keep])
    return keep.round, learner


HOW = {"rounds": 1, "per_round": 4, "batch_size": None, "lr": 0.5}
NET = so.nn.mlp(4, 8, 2)
LEARNERS = {
    "linear": lambda select: so.FedLinear(select=select, **HOW),
    "mlp": lambda select: so.FedAvg(NET, select=select, dtype="float64", **HOW),
    "adam": lambda select: so.FedAdam(NET, select=select, dtype="float64", **HOW),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_values_of_updates(name):
    draw = np.random.default_rng(0)
    X = draw.normal(size=(80, 4))
    y = (X[:, 0] > 0).astype(int)
    X[20:40], y[20:40] = X[:20], y[:20]  # clients 0 and 1 hold the same rows
    learner = LEARNERS[name](so.selectors.GreedyShapley(X, y))
    round, learner = round_of(learner, X, y, np.arange(4).repeat(20))
    assert round.metrics["evaluations"] == 16
    utility = RoundUtility(round, X, y, "validation")
    values = exact_shapley(utility, 4)
    assert values[0] == pytest.approx(values[1], abs=1e-9)
    whole = -learner.losses(X, y).mean()
    fresh = learner.clone()
    fresh.schema_ = learner.schema_
    fresh.set_state(round.before)
    nothing = -fresh.losses(X, y).mean()
    assert values.sum() == pytest.approx(whole - nothing, abs=1e-6)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_clients_can_judge_instead_of_the_coordinator(name):
    draw = np.random.default_rng(0)
    X = draw.normal(size=(80, 4))
    y = (X[:, 0] > 0).astype(int)
    learner = LEARNERS[name](so.selectors.GreedyShapley(part="train"))
    round, _ = round_of(learner, X, y, np.arange(4).repeat(20))
    there = RoundUtility(round, None, None, "train")(all_subsets(4))
    here = RoundUtility(round, X, y, "train")(all_subsets(4))
    np.testing.assert_allclose(there, here, rtol=1e-6)


@pytest.mark.parametrize(
    "model", [so.nn.mlp(64, 40, 20, 10), so.nn.linear(64, 10), so.nn.simple_cnn((8, 8, 1))]
)
def test_many_models_at_once_have_the_losses_of_each_alone(model):
    X, y, X_test, y_test = so.datasets.digits()
    fed = so.simulate(X, y, clients=6, seed=0)
    keep = Keep()
    select = so.selectors.GreedyShapley(X_test, y_test)
    learner = so.FedAvg(model, rounds=1, per_round=6, select=select, lr=0.1)
    learner.fit(fed, callbacks=[keep])
    utility = RoundUtility(keep.round, X_test, y_test, "validation")
    together = utility(all_subsets(6))
    assert utility.evaluations == 64
    for i in (0, 1, 21, 63):
        utility._learn(all_subsets(6)[i])
        assert together[i] == pytest.approx(-learner.losses(X_test, y_test).mean(), rel=1e-4)


def test_greedy_goes_round_first_and_then_takes_the_best():
    select, roster = so.selectors.GreedyShapley(), Roster(7, 2, None, seed=3)
    chosen = [select.choose(i, roster, np.random.default_rng(i)) for i in range(4)]
    assert set(np.concatenate(chosen).tolist()) == set(range(7))
    sums, counts = np.array([1.0, 6, 0, 0, 4, 0, 0]), np.array([1, 3, 1, 1, 1, 1, 1])
    select.set_state({"sums_": sums, "counts_": counts})
    assert sorted(select.choose(4, roster, np.random.default_rng(0)).tolist()) == [1, 4]


def test_ucb_explores_first_and_values_what_is_rarely_seen():
    select, roster = so.selectors.ShapleyUCB(), Roster(4, 2, None, seed=3)
    select.set_state({"sums_": np.array([5.0, 0, 0, 0]), "counts_": np.array([5, 5, 0, 0])})
    assert sorted(select.choose(9, roster, np.random.default_rng(0)).tolist()) == [2, 3]
    select.set_state({"sums_": np.array([0.5, 0, 0, 0]), "counts_": np.array([50, 50, 50, 1])})
    assert 3 in select.choose(9, roster, np.random.default_rng(0))


def test_softmax_draws_by_exp_of_the_mean_value():
    select, roster = so.selectors.ShapleySoftmax(), Roster(3, 1, None)
    select.set_state({"sums_": np.array([0.0, 2, 6]), "counts_": np.array([1, 2, 3])})
    counts = np.zeros(3)
    for i in range(4000):
        counts[select.choose(1, roster, np.random.default_rng(i))] += 1
    weights = np.exp([0, 1, 2])
    assert chisquare(counts, 4000 * weights / weights.sum()).pvalue > 1e-3


def test_validation_rows_do_not_travel_with_the_description():
    from solera.core.component import build, describe

    select = so.selectors.GreedyShapley(np.zeros((3, 2)), np.zeros(3), epsilon=0.5)
    back = build(describe(so.FedLinear(select=select))).select
    assert back.X is None
    assert back.epsilon == 0.5


def test_without_folded_replies_there_is_no_value():
    fed = so.simulate(np.zeros((6, 1)), np.zeros(6), clients=2)
    round = Round(0, np.arange(2), fed)
    with pytest.raises(so.errors.UsageError, match="folds no replies"):
        RoundUtility(round, None, None, "train")
