"""ICDTA4FL from end to end: messages, filters, budgets, explanations, and awkward clients."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError, PayloadError, UsageError
from solera.learn.trees.fusion.federated_tree import SHOWN_RULES, filter_effect
from solera.learn.trees.fusion.rules import rules_of
from solera.learn.trees.plots import plot_filter_effect, plot_importance
from solera.study.report.blocks import Figure
from solera.study.report.outcomes import of_learner


def numeric(clients=4, rows=400, seed=0, **options):
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, 4))
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
    return so.simulate(X, y, clients=clients, seed=seed, **options), X, y


def categorical(clients=4, rows=600, seed=0):
    draw = np.random.default_rng(seed)
    X = draw.integers(0, 3, (rows, 4)).astype(float)
    y = ((X[:, 0] == 1) & (X[:, 1] != 2)).astype(int)
    features = [so.data.Feature(name, "categorical", tuple("pqr")) for name in "abcd"]
    return so.simulate(X, y, clients=clients, features=features, seed=seed), X, y


def test_four_messages_and_no_more():
    fed, X, y = numeric(test=0.2)
    model = so.FederatedTree().fit(fed)
    asked = [record.task for record in fed.meter.records]
    assert asked == ["data.flaws", "trees.grow", "trees.judge", "trees.receive"]
    assert model.score(X, y) > 0.95
    assert len(model.local_trees_) == 4
    assert {"local_accuracy", "global_accuracy", "global_macro_f1"} <= model.client_metrics_[
        0
    ].keys()


def test_clients_keep_their_own_and_the_global_tree():
    fed, _, _ = numeric()
    states = so.FederatedTree().fit(fed).at_clients(fed).states()
    assert len(states) == 4
    for state in states.values():
        assert state.keys() == {"trees.local", "trees.global"}
        assert "rules" in state["trees.global"]


@pytest.mark.parametrize("make", [numeric, categorical])
def test_the_conditions_of_an_explanation_hold(make):
    fed, X, _ = make()
    model = so.FederatedTree("cart" if make is numeric else "id3").fit(fed)
    rows = np.concatenate([X[:30], np.full((1, 4), np.nan)])
    for i, x in enumerate(rows):
        both = model.explain(x, client=i % 4)
        for found in (both.local, both.of_global):
            assert all(condition.holds(x[condition.column]) for condition in found.conditions)
            assert sum(found.probabilities.values()) == pytest.approx(1)
        assert both.of_global.prediction == model.predict(x[None])[0]
        assert str(both).startswith("local:")
    with pytest.raises(DataError, match="one row"):
        model.explain(X[:2])
    with pytest.raises(UsageError, match="sent no tree"):
        model.explain(X[0], client=9)


def test_filters():
    fed, _, _ = numeric(clients=6)
    kept = {
        str(f): so.FederatedTree(filter=f).fit(fed).kept_.tolist()
        for f in ("mean", "median", "mode", 0.0, 100.0, None)
    }
    model = so.FederatedTree().fit(fed)
    score = model.scores_["accuracy"]
    assert kept["mean"] == np.flatnonzero(score >= score.mean()).tolist()
    assert len(kept["median"]) >= 3
    per_cent, often = np.unique(np.floor(100 * score), return_counts=True)
    mode = per_cent[often.argmax()]  # the lowest of several
    assert kept["mode"] == np.flatnonzero(np.floor(100 * score) >= mode).tolist()
    assert kept["0.0"] == kept["None"] == list(range(6))
    assert kept["100.0"] == np.flatnonzero(score == score.max()).tolist()
    by_function = so.FederatedTree(filter=lambda scores: np.sort(scores)[-2]).fit(fed)
    assert len(by_function.kept_) == 2
    with pytest.raises(PayloadError, match="cannot be described"):
        by_function.save("nowhere.sol")


def test_when_all_trees_are_filtered_out_the_best_is_kept_and_said(caplog):
    fed, X, y = numeric()
    with caplog.at_level(logging.WARNING, "solera"):
        model = so.FederatedTree(filter=lambda scores: 2.0).fit(fed)
    assert model.kept_.tolist() == [int(np.argmax(model.scores_["accuracy"]))]
    assert "the best one" in caplog.text
    assert model.score(X, y) > 0.8


def test_a_budget_of_one_rule_and_a_report_of_the_rest():
    fed, X, _ = numeric()
    model = so.FederatedTree(max_rules=1, filter=None).fit(fed)
    assert len(model.tree_) == 1
    assert model.merged_["rules"] == 1
    assert model.merged_["dropped"] > 10
    assert 0 < model.merged_["dropped_share"] < 1
    assert len(np.unique(model.predict(X))) == 1


def test_rules_that_do_not_overlap_are_an_error_that_names_the_limit():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = np.digitize(X[:, 0] + X[:, 1] * X[:, 2], [-1, 0, 1])
    fed = so.simulate(X, y, clients=4, partition=so.Dirichlet(0.6), seed=4)
    with pytest.raises(so.errors.UsageError, match="max_rules = 1"):
        so.FederatedTree(max_rules=1).fit(fed)


def test_calibration_is_the_share_of_all_clients_rows():
    fed, X, y = numeric(clients=5)
    model = so.FederatedTree().fit(fed)
    at = model.tree_.apply(X)
    for leaf in np.unique(at):
        share = (y[at == leaf][:, None] == [0, 1, 2]).mean(axis=0)
        count = (at == leaf).sum()
        np.testing.assert_allclose(model.tree_.value[leaf], share, atol=1.5 / (count + 1))
    plain = so.FederatedTree(calibrate=False).fit(fed)
    assert np.array_equal(plain.tree_.feature, model.tree_.feature)
    assert not np.array_equal(plain.tree_.value, model.tree_.value)


def test_one_client_is_its_own_tree():
    fed, X, _ = numeric(clients=1)
    model = so.FederatedTree(calibrate=False).fit(fed)
    own = model.local_tree(0)
    agree = own.values(X).argmax(axis=1) == model.predict_proba(X).argmax(axis=1)
    assert agree.mean() > 0.99
    assert len(model.rule_set_) == len(rules_of(own, 4))


@pytest.mark.parametrize("kind", ["cart", "id3"])
def test_awkward_clients(kind):
    """One class, a constant feature, a category nobody else has, a single row."""
    draw = np.random.default_rng(1)
    X = draw.integers(0, 3, (120, 3)).astype(float)
    y = (X[:, 0] > 0).astype(int)
    X[:40, 1] = 2.0  # constant at client 0
    y[40:80] = 0  # one class at client 1: a tree that is one leaf
    X[80:119, 2] = 3.0  # known to client 2 alone
    features = [so.data.Feature(name, "categorical", tuple("pqrs")) for name in "abc"]
    data = so.data.FederatedData(
        X, y, np.array([0, 40, 80, 119, 120]), schema=so.simulate(X, y, features=features).schema
    )
    model = so.FederatedTree(kind, filter=None).fit(so.simulate(data))
    assert len(model.local_tree(1)) == 1
    strange = np.array([[0.0, 2.0, 3.0], [2.0, 0.0, np.nan], [9.0, 9.0, 9.0]])
    p = model.predict_proba(np.concatenate([X, strange]))
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert model.score(X, y) >= max(y.mean(), 1 - y.mean())


def test_all_rows_of_all_clients_in_one_class():
    X = np.random.default_rng(0).normal(size=(40, 2))
    model = so.FederatedTree().fit(so.simulate(X, np.zeros(40, int), clients=3))
    assert model.predict(X).tolist() == [0] * 40
    assert len(model.tree_) == 1


def test_clients_that_fail_are_left_out():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(300, 3))
    failures = so.simulation.Failures(dropout=0.3)
    fed = so.simulate(X, (X[:, 0] > 0).astype(int), clients=10, failures=failures, seed=3)
    model = so.FederatedTree().fit(fed)
    assert 0 < len(model.clients_) < 10
    assert model.score(X, (X[:, 0] > 0).astype(int)) > 0.9


def test_bad_parameters_are_named():
    fed, _, _ = numeric()
    for options, rule in (
        ({"kind": "c50"}, "'cart', 'id3' or 'c45'"),
        ({"max_depth": 0}, "max_depth"),
        ({"max_rules": 0}, "max_rules"),
        ({"filter": 101.0}, r"a number in \[0, 100\], a function or None"),
        ({"filter": "modal"}, "filter must be 'mean', 'median' or 'mode'"),
        ({"metric": "auc"}, "metric"),
        ({"on_overlap": "union"}, "on_overlap"),
    ):
        with pytest.raises(UsageError, match=rule):
            so.FederatedTree(**options).fit(fed)
    with pytest.raises(DataError, match="FedBins"):
        so.FederatedTree("id3").fit(fed)
    numbers = so.simulate(np.ones((20, 2)), np.arange(20.0), clients=2)
    with pytest.raises(DataError, match="FedHistGBDT"):
        so.FederatedTree().fit(numbers)


def test_pictures_and_tables(tmp_path):
    fed, _, _ = numeric(test=0.3)
    model = so.FederatedTree().fit(fed)
    table = model.rules_
    assert len(table) == model.merged_["rules"]
    assert table[0]["expected_rows"] >= table[-1]["expected_rows"]
    effect = filter_effect(model, fed, [0, 50, 100])
    assert [row["trees"] for row in effect] == sorted((r["trees"] for r in effect), reverse=True)
    for figure in (
        model.plot(),
        plot_importance(model.feature_importances_, model.schema_),
        plot_filter_effect(effect),
    ):
        figure.savefig(tmp_path / "picture.svg")
        assert (tmp_path / "picture.svg").stat().st_size > 1000
    assert model.feature_importances_[:2].sum() > 0.9


def test_what_trees_show_in_a_report(tmp_path):
    draw = np.random.default_rng(0)
    X = draw.normal(size=(600, 4))
    y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
    fed = so.simulate(X, y, clients=5, seed=0, test=0.3)
    model = so.FederatedTree().fit(fed)
    assert len(model.rules_) > SHOWN_RULES
    shown = of_learner(model, model.save(tmp_path / "model.sol"), "mine")
    names = [section.title.removesuffix(": mine") for section in shown]
    rules = f"{SHOWN_RULES} of {len(model.rules_):,} rules"
    assert names == ["Tree", rules, "Importance", "Filter"]
    parts = [part for section in shown for part in section.blocks]
    assert [isinstance(part, Figure) for part in parts] == [True, False, True, True]
    assert len(parts[1].rows) == SHOWN_RULES
    assert ">" in str(parts[1].rows) or "≤" in str(parts[1].rows)
    assert f"{len(model.kept_)} of {len(model.clients_)} trees kept" in parts[3].svg
    boosted = so.FedHistGBDT(rounds=3).fit(fed)
    (section,) = of_learner(boosted, boosted.save(tmp_path / "boosted.sol"))
    assert section.title == "Importance"
    assert "<svg" in section.blocks[0].svg


def test_relaxed_rules_are_no_narrower():
    fed, X, _ = numeric()
    narrow = so.FederatedTree(filter=None).fit(fed)
    wide = so.FederatedTree(filter=None, on_overlap="relax").fit(fed)
    assert wide.rule_set_.matches(X).sum() > narrow.rule_set_.matches(X).sum() == len(X)


# --- trees grown from counts ---


def test_counts_give_the_trees_that_clients_grow():
    fed, X, _ = categorical(rows=400)
    grown = so.FederatedTree("id3").fit(fed)
    counted = so.FederatedTree("id3", by_counts=True).fit(fed)
    for own, other in zip(grown.local_trees_, counted.local_trees_, strict=True):
        assert all(
            np.array_equal(a, b)
            for a, b in zip(vars(own).values(), vars(other).values(), strict=True)
        )
    assert np.array_equal(grown.predict_proba(X), counted.predict_proba(X))
    asked = [record.task for record in fed.meter.records]
    assert asked.count("trees.grow") == 1
    assert asked.count("trees.count") == 3  # two levels of splits, and the leaves


@pytest.mark.parametrize("seed", range(5))
def test_cart_of_counts_is_that_of_scikit_learn(seed):
    from sklearn.tree import DecisionTreeClassifier

    draw = np.random.default_rng(seed)
    X = draw.integers(0, 5, (500, 3)).astype(float)
    y = (X @ [1.0, 2.1, 0.3] + draw.normal(size=500) > 6).astype(int)
    features = [so.data.Feature(name, "categorical", tuple("pqrst")) for name in "abc"]
    fed = so.simulate(X, y, clients=1, features=features)
    tree = so.FederatedTree(max_depth=4, min_rows=7, by_counts=True).fit(fed).local_tree(0)
    grower = DecisionTreeClassifier(max_depth=4, min_samples_leaf=7, random_state=0).fit(X, y)
    np.testing.assert_allclose(tree.predict_proba(X), grower.predict_proba(X), atol=1e-12)
    assert len(tree) == grower.tree_.node_count


def test_trees_of_counts_need_categories_and_no_c45():
    fed, _, _ = numeric()
    with pytest.raises(DataError, match="categorical columns"):
        so.FederatedTree(by_counts=True).fit(fed)
    with pytest.raises(UsageError, match="by_counts"):
        so.FederatedTree("c45", by_counts=True)
