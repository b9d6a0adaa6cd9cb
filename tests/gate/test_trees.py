"""Trees behind the gate: counts at nodes leave where enough rows are, all else with noise."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gate.measure import REFUSED, Owner, table

import solera as so
from solera.core.component import describe_fitted
from solera.core.errors import NotEnoughReplies, Refusal
from solera.core.schema import Feature, Schema
from solera.core.task import find_task, installed_tasks
from solera.learn.trees.boosting.histograms import HistBins, Units
from solera.learn.trees.tree import Tree, TreeBuilder, starts_of
from solera.trust.declared import build_checked, check_payload, check_state
from solera.trust.gate import find_limits
from solera.trust.release import releases_of

ROWS = 80
RNG = np.random.default_rng(11)
X = np.stack([RNG.normal(size=ROWS), RNG.normal(size=ROWS), np.exp(RNG.normal(size=ROWS))], axis=1)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)
SCHEMA = Schema((Feature("a"), Feature("b"), Feature("c")), "classes", np.array([0, 1]), 2)
CLASSES = SCHEMA.classes
GROW = {
    "kind": "cart",
    "width": 3,
    "classes": CLASSES,
    "sizes": None,
    "max_depth": 4,
    "min_rows": 1,
}
UNITS = Units(20, 20, 10, packed=False, counted=False)


def stump(cut: float, column: int = 0, outputs: int = 2) -> dict[str, Any]:
    """x ≤ cut is of the first class, the rest of the last."""
    builder = TreeBuilder(outputs)
    builder.add(np.ones(outputs), 2.0)
    builder.add(np.eye(outputs)[0], 1.0)
    builder.add(np.eye(outputs)[-1], 1.0)
    builder.split(0, column, [1, 2], threshold=cut)
    return builder.build().to_payload()


def fine_bins() -> HistBins:
    """A bin of its own for every row, as a hostile driver would choose them."""
    bins = HistBins()
    bins.schema_ = SCHEMA
    ordered = np.sort(X, axis=0)
    bins.edges_ = [np.unique(column) for column in ((ordered[1:] + ordered[:-1]) / 2).T]
    bins.starts_ = starts_of([len(edges) + 2 for edges in bins.edges_])
    return bins


def count_ask(tree: Any) -> dict[str, Any]:
    return {
        "tree": tree,
        "nodes": np.arange(3),
        "sizes": np.array([3, 3, 3]),
        "width": 3,
        "classes": CLASSES,
    }


def judge_ask(tree: Any) -> dict[str, Any]:
    return {**GROW, "trees": [tree]}


class Booster:
    """Drives ``trees.histograms`` as it likes."""

    def __init__(self) -> None:
        self.bins = fine_bins()
        self.asks = 0

    def root(self, *values: Any) -> dict[str, Any]:
        """The first level of a round; the last tree's leaves have these values."""
        return self._ask(
            0, [], [0], classes=CLASSES, initial=np.zeros(1), values=[np.array(v) for v in values]
        )

    def split(self, cut: int, column: int = 0) -> dict[str, Any]:
        """The two nodes on either side of a bin."""
        splits = np.zeros((4, 3), dtype=np.int64)
        splits[0] = -1
        splits[:, 0] = [column, self.bins.starts_[column] + cut, 1, 1]
        return self._ask(1, [splits], [1, 2])

    def _ask(self, level: int, splits: Any, wanted: Any, **more: Any) -> dict[str, Any]:
        step = np.array([self.asks, level, *UNITS])
        self.asks += 1
        return {
            "loss": "sigmoid",
            "starts": self.bins.starts_,
            "step": step,
            "splits": splits,
            "wanted": [np.array(wanted)],
            **more,
        }


# --- honest learners ---


@pytest.mark.parametrize(
    "learner",
    [
        so.FedForest(trees=3),
        so.FederatedTree("cart"),
        so.SimFL(rounds=2),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_whole_trees_leave_under_trusted_alone(learner):
    with pytest.raises(NotEnoughReplies, match=r"dp=so\.DP.* or under the policy 'trusted'"):
        learner.clone().fit(so.simulate(X, Y, clients=2, seed=0, policy="training"))
    trusted = learner.clone().fit(so.simulate(X, Y, clients=2, seed=0, policy="trusted"))
    plain = learner.clone().fit(so.simulate(X, Y, clients=2, seed=0))
    assert np.array_equal(trusted.outputs(X), plain.outputs(X))


def test_gradients_leave_under_trusted_alone():
    boosting = so.FedHistGBDT(rounds=2, max_depth=2)
    plain = boosting.clone().fit(so.simulate(X, Y, clients=2, seed=0))
    more = boosting.clone().fit(so.simulate(X, Y, clients=2, seed=0), start=plain)
    with pytest.raises(NotEnoughReplies, match=r"dp=so\.DP.* or under the policy 'trusted'"):
        boosting.clone().fit(so.simulate(X, Y, clients=2, seed=0, policy="training"), start=plain)
    open_ = so.simulate(X, Y, clients=2, seed=0, policy="trusted")
    trusted = boosting.clone().fit(open_, start=plain)
    assert np.array_equal(trusted.outputs(X), more.outputs(X))


def test_trees_do_not_leave_under_policies_of_statistics():
    for policy in ("statistics", "evaluation"):
        fed = so.simulate(X, Y, clients=1, policy=policy)
        with pytest.raises(NotEnoughReplies, match="not allowed"):
            so.FederatedTree().fit(fed)


COUNTS = ("trees.count", "trees.judge", "trees.receive")
"""Tasks that tell counts of rows along trees of others."""


def test_every_task_of_trees_but_counts_needs_noise_or_trust():
    tasks = {name: task for name, task in installed_tasks().items() if name.startswith("trees.")}
    assert len(tasks) == 12
    for name, task in tasks.items():
        releases = releases_of(task)
        assert all(release.tells_rows for release in releases) == (name not in COUNTS), name


# --- asks that single out rows ---


def owner(**changed: Any) -> Owner:
    return Owner(table(X, Y, SCHEMA), replace(find_limits("training"), **changed))


def test_cells_of_few_rows_are_absent_and_the_others_are_as_counted():
    values = np.sort(X[:, 0])
    judged = owner()
    tree = stump(float(values[2:4].mean()))  # three rows on its left
    told = judged.ask("trees.judge", judge_ask(tree))["confusion"][0]
    absent = judged.absent["confusion"][0]
    says = np.where(X[:, 0] <= values[2], 0, 1)
    counts = np.array([[((t == Y) & (says == p)).sum() for p in (0, 1)] for t in (0, 1)])
    assert absent[0].all()
    assert not absent[1].any()
    assert told.tolist() == np.where(absent, 0, counts).tolist()
    open_ = Owner(table(X, Y, SCHEMA), find_limits("trusted"))
    assert open_.ask("trees.judge", judge_ask(tree))["confusion"][0].tolist() == counts.tolist()


def test_counts_at_nodes_are_those_of_rows_where_many_are():
    counting = owner()
    told = counting.ask("trees.count", count_ask(stump(0.0)))["counts"]
    open_ = Owner(table(X, Y, SCHEMA), find_limits("trusted"))
    plain = open_.ask("trees.count", count_ask(stump(0.0)))["counts"]
    few = (plain > 0) & (plain < 5)
    assert few.sum() > 4
    assert np.array_equal(counting.absent["counts"], few)
    assert np.array_equal(told, np.where(few, 0, plain))


def test_counts_are_of_persons_where_the_owner_counts_these():
    """Ten rows of each of eight persons: a cell of ten rows may be of one."""
    data = so.data.FederatedData(X, Y, np.array([0, ROWS]), schema=SCHEMA)
    data.persons = np.arange(ROWS) // 10
    counting = Owner(data, replace(find_limits("training"), unit="person", min_rows=1))
    counting.ask("trees.count", count_ask(stump(0.0)))
    node, codes = np.where(X[:, 0] <= 0, 1, 2), np.clip(X, 0, 3).astype(int)
    for at, column, code, label in np.ndindex(3, 3, 4, 2):
        here = (node == at) & (codes[:, column] == code) & (label == Y)
        few = 0 < len(np.unique(data.persons[here])) < 5
        assert counting.absent["counts"][at, 4 * column + code, label] == few


@pytest.mark.parametrize("budget", [None, (1.0, 1e-5)], ids=["no budget", "a budget"])
def test_histograms_without_noise_do_not_leave(budget):
    booster, asked = Booster(), owner(budget=budget)
    root = booster.root()
    assert asked.ask("trees.histograms", root, [booster.bins]) == REFUSED
    assert "under the policy 'trusted'" in asked.why
    trusted = Owner(table(X, Y, SCHEMA), find_limits("trusted"))
    for ask in (root, booster.split(39), booster.root([0.0, 0.0, 0.0])):
        assert trusted.ask("trees.histograms", ask, [booster.bins]) != REFUSED


# --- trees that are none ---


def broken_trees() -> dict[str, dict[str, Any]]:
    sound = stump(0.0)
    chain = TreeBuilder(2)
    chain.add(np.ones(2), 1.0)
    for depth in range(2000):
        chain.add(np.ones(2), 1.0)
        chain.add(np.ones(2), 1.0)
        chain.split(2 * depth, 0, [2 * depth + 1, 2 * depth + 2], threshold=0.0)
    large = np.array([1 << 62, 1 << 62, 1 << 62])
    return {
        "a column too far": {**sound, "feature": np.array([3, -1, -1])},
        "a column below": {**sound, "feature": np.array([-2, -1, -1])},
        "a circle": {**sound, "branches": np.array([0, 2])},
        "a child twice": {**sound, "branches": np.array([1, 1])},
        "a child too far": {**sound, "branches": np.array([1, 9])},
        "no threshold": {**sound, "threshold": np.array([np.nan, 0.0, 0.0])},
        "no value": {**sound, "value": np.full((3, 2), np.inf)},
        "other classes": {**sound, "value": np.ones((3, 3))},
        "too many branches": {**sound, "arity": large, "start": np.cumsum(large) - large},
        "no nodes": {name: array[:0] for name, array in sound.items()},
        "lists": {name: array.tolist() for name, array in sound.items()},
        "an array less": {name: array for name, array in sound.items() if name != "arity"},
        "an array more": {**sound, "more": np.zeros(3)},
        "very deep": chain.build().to_payload(),
    }


@pytest.mark.parametrize("name", broken_trees())
def test_trees_that_are_none_are_refused_at_once(name):
    tree = broken_trees()[name]
    begin = time.process_time()
    for task, ask in (
        ("trees.count", count_ask(tree)),
        ("trees.judge", judge_ask(tree)),
    ):
        with pytest.raises(Refusal, match="tree"):
            check_payload(find_task(task), ask, SCHEMA)
    assert time.process_time() - begin < 5.0


def test_nodes_that_a_tree_does_not_have_are_refused():
    asked, ask = owner(), count_ask(stump(0.0))
    assert asked.ask("trees.count", {**ask, "nodes": np.array([3])}) == REFUSED
    assert asked.ask("trees.count", {**ask, "nodes": np.array([1 << 40])}) == REFUSED
    assert "nodes" in asked.why


@pytest.mark.parametrize(
    "splits",
    [
        np.array([[0, 0, -1], [1, 1, 0], [0, 0, 0], [1, 0, 0]]),  # 1 leads back to 0
        np.array([[0, -1, -1], [1, 0, 0], [0, 0, 0], [2, 0, 0]]),  # the right child is missing
        np.array([[3, -1, -1], [1, 0, 0], [0, 0, 0], [1, 0, 0]]),
        np.array([[0.0, -1, -1], [1, 0, 0], [0, 0, 0], [1, 0, 0]]),
        np.zeros((4, 0), dtype=np.int64),
        np.zeros((3, 3), dtype=np.int64),
    ],
)
def test_splits_without_end_are_refused(splits):
    booster = Booster()
    ask = {**booster.root(), "splits": [splits]}
    with pytest.raises(Refusal, match="splits"):
        check_payload(find_task("trees.histograms"), ask, SCHEMA)


def test_asks_for_more_sums_than_memory_holds_are_refused():
    booster = Booster()
    asked = Owner(table(X, Y, SCHEMA), find_limits("trusted"))
    wide = np.array([0, 80, 160, 1 << 24])
    ask = {**booster.root(), "starts": wide, "wanted": [np.arange(90_000)]}
    assert asked.ask("trees.histograms", ask, [booster.bins]) == REFUSED
    assert "too many" in asked.why
    count = {**count_ask(stump(0.0)), "sizes": np.full(3, 90_000), "nodes": np.zeros(1000, int)}
    assert asked.ask("trees.count", count) == REFUSED
    assert "too many" in asked.why


# --- models and transformers from the wire ---


def test_states_of_learners_of_trees_are_compared_with_the_schema():
    fed = so.simulate(X, Y, clients=2)
    wrong = Tree(**{**stump(0.0), "feature": np.array([9, -1, -1])})
    for learner, spoil in (
        (so.FedForest(trees=2), {"trees_": [wrong]}),
        (so.FedForest(trees=2), {"trees_": []}),
        (so.FederatedTree(), {"tree_": wrong}),
        (so.FedHistGBDT(rounds=1), {"trees_": [[wrong]]}),
        (so.FedHistGBDT(rounds=1), {"trees_": [[]]}),
        (so.FedHistGBDT(rounds=1), {"initial_": np.zeros(80)}),
        (so.SimFL(rounds=1), {"trees_": [[wrong]]}),
    ):
        model = learner.clone().fit(fed).for_prediction()
        build_checked(describe_fitted(model), fed.schema)
        for name, value in spoil.items():
            setattr(model, name, value)
        with pytest.raises(Refusal):
            check_state(model, fed.schema)


@pytest.mark.parametrize(
    "spoil",
    [
        {"edges_": [np.array([1.0, 0.0])] * 3},
        {"edges_": [np.array([np.nan])] * 3},
        {"edges_": [np.zeros((80, 3))] * 3},
        {"edges_": [np.array([0.0])] * 2},
        {"starts_": np.array([0, 3, 6, 9])},
        {"more_": np.zeros(80)},
    ],
)
def test_bins_of_other_columns_or_without_order_are_refused(spoil):
    bins = fine_bins()
    check_state(bins, SCHEMA)
    for name, value in spoil.items():
        setattr(bins, name, value)
    with pytest.raises(Refusal):
        check_state(bins, SCHEMA)
