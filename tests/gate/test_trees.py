"""Trees behind the gate: counts at nodes leave as counts of many rows, all else with noise."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gate.measure import REFUSED, Hostile, Owner, table
from tests.gate.test_hostile_driver import attack, rows_of

import solera as so
from solera.core.component import describe_fitted
from solera.core.disclosure.memory import Memory
from solera.core.errors import NotEnoughReplies, Refusal
from solera.core.payload import encode
from solera.core.schema import Feature, Schema
from solera.core.task import find_task, installed_tasks
from solera.learn.trees.boosting.histograms import HistBins, Units
from solera.learn.trees.tree import Tree, TreeBuilder, starts_of
from solera.trust.declared import build_checked, check_payload, check_state
from solera.trust.gate import find_limits

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
    return {**GROW, "owners": np.array([7]), "trees": [tree]}


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


@pytest.fixture
def unjudged(monkeypatch):
    """The mechanism taken out: trees and sums along them leave as they are."""
    monkeypatch.setattr(
        "solera.core.disclosure.trees.Trees.judge", lambda self, leaving: leaving.reply
    )


# --- honest learners ---


@pytest.mark.parametrize(
    "learner",
    [
        so.FedHistGBDT(rounds=2, max_depth=2),
        so.FedForest(trees=3),
        so.FederatedTree("cart"),
        so.SimFL(rounds=2),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_whole_trees_and_gradients_leave_under_trusted_alone(learner):
    with pytest.raises(NotEnoughReplies, match=r"dp=so\.DP.* or under the policy 'trusted'"):
        learner.clone().fit(so.simulate(X, Y, clients=2, seed=0, policy="training"))
    trusted = learner.clone().fit(so.simulate(X, Y, clients=2, seed=0, policy="trusted"))
    plain = learner.clone().fit(so.simulate(X, Y, clients=2, seed=0))
    assert np.array_equal(trusted.outputs(X), plain.outputs(X))


@pytest.mark.parametrize("kind", ["cart", "id3"])
def test_trees_of_counts_are_merged_behind_the_gate(kind):
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(900, 4))
    y = (rows[:, 0] > 0) + (rows[:, 1] > 0.5)
    learner = so.Pipeline(so.FedBins(6), so.FederatedTree(kind, max_depth=3, by_counts=True))
    gated = learner.clone().fit(so.simulate(rows, y, clients=3, policy="training"))
    plain = learner.clone().fit(so.simulate(rows, y, clients=3))
    assert (plain.predict(rows) == y).mean() > 0.85
    assert (gated.predict(rows) == y).mean() > 0.8
    assert len(gated.steps_[-1].client_metrics_) == 3  # the counts of the last message left, too


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
        assert all(r.tells_rows for r in task.release) == (name not in COUNTS), name


# --- asks that single out rows ---


def asks_along_a_column(hostile: Hostile) -> None:
    """Trees whose cuts have one row between them."""
    values = np.sort(X[:, 0])
    for place in (40, 41):
        cut = float(values[place : place + 2].mean())
        assert hostile.ask("trees.count", count_ask(stump(cut))) != REFUSED
        assert hostile.ask("trees.judge", judge_ask(stump(cut))) != REFUSED


def test_trees_that_part_one_row_from_the_others_tell_nothing_of_it():
    hostile = Hostile(X, Y, "training", SCHEMA)
    asks_along_a_column(hostile)
    assert len(hostile.answers) == 4
    assert hostile.leak().rows >= 5 - 1e-6


def cut_model(place: int) -> Any:
    """A model that says 0 of the rows above the one at a place of the first column."""
    model = so.FedLinear(rounds=1).fit(so.simulate(X, Y, clients=1, schema=SCHEMA))
    model.coef_, model.intercept_ = np.zeros_like(model.coef_), np.zeros_like(model.intercept_)
    model.coef_[0, 0] = 1e7
    model.intercept_[0] = -1e7 * cut_at(place)
    return describe_fitted(model)


def cut_at(place: int) -> float:
    return float(np.sort(X[:, 0])[place : place + 2].mean())


SLOW = pytest.mark.slow
ACROSS = {
    "trees.judge": judge_ask(stump(cut_at(41))),
    "trees.count": count_ask(stump(cut_at(41))),
    "learner.evaluate": {"model": cut_model(40), "part": "train"},
    "learner.score_counts": {
        "model": cut_model(40),
        "part": "train",
        "bins": 10,
        "threshold": 0.5,
        "quantiles": np.array([0.5]),
    },
}


@pytest.mark.parametrize("tree", ["trees.judge", pytest.param("trees.count", marks=SLOW)])
@pytest.mark.parametrize(
    "cells", ["learner.evaluate", pytest.param("learner.score_counts", marks=SLOW)]
)
def test_counts_along_trees_less_those_of_cells_tell_nothing_of_a_row(tree, cells):
    """The tree cuts after one row more than the model does, and is asked before it or after."""
    for tasks in ((tree, cells), (cells, tree)):
        hostile = Hostile(X, Y, "training", SCHEMA)
        told = [hostile.ask(task, ACROSS[task]) for task in tasks]
        assert REFUSED not in told
        assert hostile.leak().rows >= 5 - 1e-6
        again = [hostile.whole.ask(task, ACROSS[task]) for task in tasks]
        assert encode(again) == encode(told)


def test_counts_along_trees_that_are_not_compared_with_cells_tell_a_row(monkeypatch):
    monkeypatch.setattr("solera.core.disclosure.row_sets.RowSets.near", lambda *_: ())
    hostile = Hostile(X, Y, "training", SCHEMA)
    for task in ("learner.evaluate", "trees.judge"):
        hostile.ask(task, ACROSS[task])
    assert hostile.leak().rows == 1


def test_a_remainder_of_few_rows_is_not_told_by_the_others(monkeypatch):
    """Of one tree 3 and 36 rows of a class are withheld: 39, which is known, less 36 are the 3."""
    values = np.sort(X[:, 0])
    trees = [stump(float(values[place : place + 2].mean())) for place in (2, 5)]
    ask = {**GROW, "owners": np.array([7, 8]), "trees": trees}

    def told() -> Any:
        owner = Owner(table(X, Y, SCHEMA), find_limits("training"))
        reply = owner.ask("trees.judge", ask)["confusion"]
        assert owner.ungated["confusion"][0, 0].tolist() == [3, 36]
        return reply[:, 0].tolist()

    assert told() == [[0, 0], [6, 33]]
    monkeypatch.setattr(
        "solera.core.disclosure.node_counts._without_remainders",
        lambda rows, _, least: rows >= least,
    )
    assert told()[0] == [0, 36]


def asks_at_nodes(hostile: Hostile, rows: Any, seed: int, asks: int) -> None:
    """Trees of one and two splits, in this and that column, at values next to each other."""
    sizes = np.array([5, 5, 5, 3])
    draw = np.random.default_rng(seed)
    for _ in range(asks):
        builder = TreeBuilder(2)
        level = [builder.add(np.ones(2), 1.0)]
        for column in draw.integers(4, size=draw.integers(1, 3)).tolist():
            place = draw.integers(15, 25)
            cut = float(np.sort(rows[:, column])[place])
            below = [builder.add(np.ones(2), 1.0) for _ in range(2 * len(level))]
            for k, node in enumerate(level):
                builder.split(node, column, below[2 * k : 2 * k + 2], threshold=cut)
            level = below
        ask = {**count_ask(builder.build().to_payload()), "sizes": sizes, "width": 4}
        assert hostile.ask("trees.count", {**ask, "nodes": np.array(level)}) != REFUSED


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_bin_of_one_column_at_a_node_of_others_rests_on_few_rows(seed):
    rows, y, schema = rows_of("classes", seed)
    hostile = Hostile(rows, y, "training", schema)
    asks_at_nodes(hostile, rows, seed, asks=8)
    assert hostile.leak().rows >= 5 - 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 15))
def test_no_bin_at_a_node_rests_on_few_rows_however_long_one_asks(seed):
    rows, y, schema = rows_of("classes", seed)
    hostile = Hostile(rows, y, "training", schema)
    asks_at_nodes(hostile, rows, seed, asks=30)
    assert hostile.leak().rows >= 5 - 1e-6


def test_counts_at_nodes_that_are_not_compared_tell_a_few_rows(monkeypatch):
    monkeypatch.setattr("solera.core.disclosure.row_sets.RowSets._near", lambda *_: ())
    rows, y, schema = rows_of("classes", 1)
    hostile = Hostile(rows, y, "training", schema)
    asks_at_nodes(hostile, rows, 1, asks=8)
    assert hostile.leak().rows < 3


def test_counts_at_nodes_are_those_of_rows_where_many_are():
    rows, y, schema = rows_of("classes", 3)
    owner = Owner(table(rows, y, schema), find_limits("training"))
    ask = {**count_ask(stump(0.0)), "sizes": np.array([5, 5, 5, 3]), "width": 4}
    told = owner.ask("trees.count", ask)["counts"]
    plain, became = owner.ungated["counts"], owner.gate.outcome["counts"]
    many = (plain >= 5) & (became == 0)
    assert many.sum() > 4
    assert np.array_equal(told[many], plain[many])
    kinds = slice(18, 22)  # the column of categories: few rows are left over
    assert (told[:, kinds].sum(axis=1) > plain[:, kinds].sum(axis=1) - 5).all()
    assert not told[plain.sum(axis=1, keepdims=True).repeat(22, axis=1) == 0].any()


def test_more_counts_than_an_ask_may_have_are_refused(monkeypatch):
    monkeypatch.setattr("solera.core.disclosure.node_counts._MOST", 10)
    owner = Owner(table(X, Y, SCHEMA), find_limits("training"))
    assert owner.ask("trees.count", count_ask(stump(0.0))) == REFUSED
    assert "too many" in owner.why


def of_persons(rows: Any, y: Any, persons: Any, schema: Schema) -> Owner:
    """An owner who counts persons; ``persons`` says whose row each row is."""
    data = table(rows, y, schema)
    kept = data.segments(np.array([0]), "train")[0].X[:, 0]
    whose = dict(zip(rows[:, 0].tolist(), persons.tolist(), strict=True))
    data.persons = np.array([whose[value] for value in kept.tolist()])
    return Owner(data, replace(find_limits("training"), unit="person"))


def hostile_to_persons() -> Hostile:
    """The driver of a table of 40 persons with two rows each, near each other."""
    rows, y, schema = rows_of("classes", 1)
    rows, y, persons = np.tile(rows, (2, 1)), np.tile(y, 2), np.tile(np.arange(len(rows)), 2)
    rows[len(rows) // 2 :, 0] += 1e-3
    hostile = Hostile(rows, y, "training", schema, rows=[])
    hostile.whole = of_persons(rows, y, persons, schema)
    hostile.without = [
        of_persons(rows[persons != p], y[persons != p], persons[persons != p], schema)
        for p in np.unique(persons)
    ]
    hostile.twice = list  # all that rests on few persons is told
    asks_at_nodes(hostile, rows[::2], 1, asks=4)
    return hostile


def test_counts_at_nodes_are_of_persons_where_the_owner_counts_these():
    hostile = hostile_to_persons()
    assert hostile.whole.gate.memory.sets.sizes.max() <= 40
    assert hostile.leak().rows >= 5 - 1e-6


def test_rows_of_persons_that_count_as_rows_tell_of_few_persons(monkeypatch):
    monkeypatch.setattr(
        "solera.core.disclosure.evidence.Persons.first_rows", lambda self, rows: np.ones(rows, bool)
    )
    assert hostile_to_persons().leak().rows < 5


def histograms_before_and_after(hostile: Hostile) -> None:
    """Nodes that differ by a row, and a leaf of one row whose value changes its score alone."""
    booster = Booster()
    asks = [booster.root(), booster.split(39), booster.root([0.0, 0.0, 0.0])]
    asks += [booster.split(40), booster.root([0.0, 0.0, 0.0])]
    asks += [booster.split(78), booster.root([0.0, 0.0, 40.0])]
    for ask in asks:
        hostile.ask("trees.histograms", ask, [booster.bins])


@pytest.mark.parametrize("budget", [None, (1.0, 1e-5)], ids=["no budget", "a budget"])
def test_histograms_without_noise_do_not_leave(budget):
    hostile = Hostile(X, Y, replace(find_limits("training"), budget=budget), SCHEMA, rows=[])
    histograms_before_and_after(hostile)
    assert (hostile.asks, hostile.answers) == (7, [])


def test_trees_that_nobody_judges_fail_the_hostile_driver(unjudged):
    with pytest.raises(AssertionError, match="rows, ask"):
        attack("trees.grow", "classes", ["training"], payloads=2, seed=0)


def test_histograms_that_nobody_judges_tell_the_row(unjudged):
    hostile = Hostile(X, Y, "training", SCHEMA)
    histograms_before_and_after(hostile)
    assert len(hostile.answers) == 7
    assert hostile.leak(same_place=True).rows < 1.5


def test_what_a_task_answers_does_not_depend_on_how_often_it_was_asked():
    owner = Owner(table(X, Y, SCHEMA), find_limits("training"))
    counted = owner.ask("trees.count", count_ask(stump(0.0)))
    spent = owner.gate.memory.numbers
    for cut in np.linspace(-1, 1, 20):
        owner.ask("trees.count", count_ask(stump(float(cut))))
    assert owner.gate.memory.numbers > spent > 0, "counts of other rows are counted"
    kept = Memory.from_payload(owner.gate.memory.to_payload())
    owner.gate.memory = kept
    spent = kept.numbers
    again = owner.ask("trees.count", count_ask(stump(0.0)))
    assert np.array_equal(counted["counts"], again["counts"])
    assert kept.numbers == spent, "the same rows once more are not"


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
    owner = Owner(table(X, Y, SCHEMA), find_limits("training"))
    ask = count_ask(stump(0.0))
    assert owner.ask("trees.count", {**ask, "nodes": np.array([3])}) == REFUSED
    assert owner.ask("trees.count", {**ask, "nodes": np.array([1 << 40])}) == REFUSED
    assert "nodes" in owner.why


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
    owner = Owner(table(X, Y, SCHEMA), find_limits("training"))
    wide = np.array([0, 80, 160, 1 << 24])
    ask = {**booster.root(), "starts": wide, "wanted": [np.arange(90_000)]}
    assert owner.ask("trees.histograms", ask, [booster.bins]) == REFUSED
    assert "too many" in owner.why


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
