"""The laws of rules: they say what their trees say, and merging does not care about order."""

from __future__ import annotations

from functools import reduce

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings
from sklearn.tree import DecisionTreeClassifier

from solera.core.replies import Reply
from solera.learn.trees.fusion.rule_merging import RuleFold, merge, prune
from solera.learn.trees.fusion.rule_tree import tree_of_rules
from solera.learn.trees.fusion.rules import RuleSet, rules_of
from solera.learn.trees.id3 import entropy, grow_id3
from solera.learn.trees.sklearn_trees import from_sklearn
from solera.learn.trees.tree import shares

WIDTH, CLASSES = 3, 3
seeds = st.integers(0, 2**32 - 1)
kinds = st.sampled_from(["cart", "cart with gaps", "id3"])


def rows(draw, kind, count):
    if kind == "id3":
        X = draw.integers(0, 3, (count, WIDTH)).astype(float)
    else:
        X = np.round(draw.normal(size=(count, WIDTH)), 1)
    if kind != "cart":
        X[draw.random(X.shape) < 0.1] = np.nan
    return X


def grown(seed, kind, trees):
    """Trees of different rows, and rows to try them on."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(trees):
        X = rows(draw, kind, int(draw.integers(1, 40)))
        y = draw.integers(0, CLASSES, len(X))
        if kind == "id3":
            found.append(grow_id3(X, y, np.full(WIDTH, 3), CLASSES, 2))
        else:
            cart = DecisionTreeClassifier(max_depth=3, random_state=0).fit(X, y)
            found.append(from_sklearn(cart, classes=np.arange(CLASSES), rows=X))
    return found, rows(draw, kind, 60)


def same(a, b):
    a, b = a.ordered(), b.ordered()
    assert a.get_params(deep=False).keys() == b.get_params(deep=False).keys()
    for name, value in a.get_params(deep=False).items():
        assert np.array_equal(value, b.get_params(deep=False)[name]), name


@given(seed=seeds, kind=kinds)
@settings(max_examples=40, deadline=None)
def test_the_fold_does_not_care_about_order(seed, kind):
    trees, _ = grown(seed, kind, 3)
    a, b, c = (rules_of(tree, WIDTH, client) for client, tree in enumerate(trees))
    same(merge(a, b), merge(b, a))
    same(merge(merge(a, b), c), merge(a, merge(b, c)))
    wide = [merge(merge(a, b), c), merge(c, merge(b, a))]
    (left, _), (right, _) = (r.ordered().relaxed(np.ones(len(r))) for r in wide)
    assert np.array_equal(left.lower, right.lower)
    assert np.array_equal(left.weights, right.weights)


def predicted(rules, X):
    """Probabilities of the rule that a row satisfies, the mean of several."""
    return shares(rules.matches(X) @ rules.probabilities)


@given(seed=seeds, kind=kinds)
@settings(max_examples=40, deadline=None)
def test_rules_predict_exactly_as_their_tree(seed, kind):
    (tree,), X = grown(seed, kind, 1)
    rules = rules_of(tree, WIDTH)
    known = rules.matches(X).any(axis=1)
    assert known.all() or kind == "id3"  # ID3: a gap where no gap was seen
    found = predicted(rules, X)[known]
    wanted = tree.predict_proba(X)[known]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.array_equal(found.argmax(axis=1), wanted.argmax(axis=1)) or kind == "id3"


@given(seed=seeds, kind=kinds)
@settings(max_examples=40, deadline=None)
def test_merging_a_tree_with_itself_changes_no_prediction(seed, kind):
    (tree,), X = grown(seed, kind, 1)
    once = rules_of(tree, WIDTH)
    twice = merge(once, rules_of(tree, WIDTH, 1))
    assert len(twice) == len(once)
    assert np.array_equal(predicted(once, X), predicted(twice, X))
    sizes = np.full(WIDTH, 3) if kind == "id3" else None
    one, two = (tree_of_rules(r, r.expected_rows(), 10, sizes=sizes) for r in (once, twice))
    np.testing.assert_allclose(one.predict_proba(X), two.predict_proba(X))


def divided(rules, budget, *weigh):
    """The rules that are kept, those that are not, and what these have of the expected rows."""
    kept, share = prune(rules, budget, *weigh)
    others = np.setdiff1d(np.arange(len(rules)), kept)
    return rules.take(kept), rules.take(others), share


@given(seed=seeds, kind=kinds, budget=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_every_row_matches_exactly_one_rule_pruned_ones_counted(seed, kind, budget):
    trees, X = grown(seed, kind, 4)
    sets = [rules_of(tree, WIDTH, client) for client, tree in enumerate(trees)]
    for rules in sets:
        hits = rules.matches(X).sum(axis=1)
        assert (hits == 1).all() or (kind == "id3" and (hits <= 1).all())
    merged = reduce(merge, sets)
    hits = merged.matches(X).sum(axis=1)
    alone = np.all([rules.matches(X).any(axis=1) for rules in sets], axis=0)
    assert np.array_equal(hits, alone.astype(int))
    pruned_hits = np.zeros(len(X), dtype=int)
    rules = None
    for step in sets:
        whole = step if rules is None else merge(rules, step)
        rules, dropped, _ = divided(whole, budget)
        assert len(rules) <= budget
        pruned_hits += dropped.matches(X).sum(axis=1)
    total = rules.matches(X).sum(axis=1) + pruned_hits
    assert (total[alone] == 1).all()
    assert (total <= 1).all()


@given(seed=seeds, kind=kinds)
@settings(max_examples=40, deadline=None)
def test_merged_probabilities_are_the_support_weighted_mean(seed, kind):
    trees, X = grown(seed, kind, 3)
    sets = [rules_of(tree, WIDTH, client) for client, tree in enumerate(trees)]
    merged = reduce(merge, sets)
    found = merged.matches(X)
    for x in range(len(X)):
        if found[x].any():
            (i,) = np.flatnonzero(found[x])
            parts = [rules.weights[rules.matches(X[x : x + 1])[0]][0] for rules in sets]
            np.testing.assert_allclose(merged.weights[i], np.sum(parts, axis=0))
    np.testing.assert_allclose(merged.probabilities.sum(axis=1), 1)


@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_expected_rows_agree_with_every_leaf(seed):
    draw = np.random.default_rng(seed)
    X = rows(draw, "cart", 200)  # the same rows for all: a distribution that agrees with all exists
    trees = [
        from_sklearn(
            DecisionTreeClassifier(max_depth=3, random_state=0).fit(X, draw.integers(0, 3, 200))
        )
        for _ in range(3)
    ]
    merged = reduce(merge, [rules_of(tree, WIDTH, c) for c, tree in enumerate(trees)])
    expected = merged.expected_rows(sweeps=1000)
    for t, tree in enumerate(trees):
        held = np.bincount(merged.leaf[:, t], expected, minlength=len(tree.leaves))
        np.testing.assert_allclose(held, tree.support[tree.leaves], atol=2)


def test_conditions_of_the_thesis():
    """x > 32.5 and x > 35: intersected x > 35, relaxed x > 32.5; x ≤ 32.5 excludes x > 35."""

    def one_split(cut):
        X = np.array([[cut - 1], [cut + 1]])
        cart = DecisionTreeClassifier().fit(X.astype(float), [0, 1])
        return rules_of(from_sklearn(cart), 1)

    merged = merge(one_split(32.5), one_split(35.0)).ordered()
    lower, upper = merged.bounds()
    assert len(merged) == 3
    bounds = sorted(zip(lower[:, 0].round(3), upper[:, 0].round(3), strict=True))
    assert bounds == [(-np.inf, 32.5), (32.5, 35.0), (35.0, np.inf)]
    relaxed, _ = merged.relaxed(np.ones(3))
    low, high = relaxed.bounds()
    found = sorted(zip(low[:, 0].round(3), high[:, 0].round(3), strict=True))
    assert found == [(-np.inf, 35.0), (32.5, 35.0), (32.5, np.inf)]


def test_a_budget_keeps_the_fullest_and_says_what_was_dropped():
    trees, _ = grown(5, "cart", 4)
    free, tight = RuleFold(WIDTH, CLASSES), RuleFold(WIDTH, CLASSES, max_rules=1)
    replies = [Reply(c, {"tree": tree.to_payload()}) for c, tree in enumerate(trees)]
    everything, one = (f.finish(f.fold_one_by_one(replies)) for f in (free, tight))
    assert everything["dropped"] == 0
    assert len(one["rules"]) == 1
    assert one["dropped"] > 0
    assert 0 < one["dropped_share"] < 1
    assert isinstance(one["rules"], RuleSet)


def test_pruning_by_purity_keeps_the_rules_of_least_entropy_whatever_their_rows():
    trees, _ = grown(3, "cart", 3)
    merged = reduce(merge, [rules_of(tree, WIDTH, c) for c, tree in enumerate(trees)])
    kept, dropped, share = divided(merged, 4, "rules")
    assert len(kept) == 4
    assert 0 < share < 1
    assert entropy(kept.probabilities).max() <= entropy(dropped.probabilities).min() + 1e-12
    by_rows, _, _ = divided(merged, 4)
    assert by_rows.expected_rows().sum() >= kept.expected_rows().sum() - 1e-9


def test_a_rule_set_without_rules_has_nothing_to_merge():
    trees, _ = grown(3, "cart", 2)
    one, other = (rules_of(tree, WIDTH, c) for c, tree in enumerate(trees))
    assert len(merge(one.take(slice(0, 0)), other)) == 0
    assert len(merge(one, other.take(slice(0, 0)))) == 0
