"""C4.5: Quinlan's own example, what pruning does, and the trees of many clients merged."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.learn.trees.c45 import grow_c45
from solera.learn.trees.export import to_text
from solera.learn.trees.tree import Tree

OUTLOOK, WINDY = ("sunny", "overcast", "rain"), ("no", "yes")
# outlook, temperature, humidity, windy, play: the 14 days of Quinlan (1993), Table 2.1
DAYS = np.array(
    [
        [0, 85, 85, 0, 0], [0, 80, 90, 1, 0], [1, 83, 78, 0, 1], [2, 70, 96, 0, 1],
        [2, 68, 80, 0, 1], [2, 65, 70, 1, 0], [1, 64, 65, 1, 1], [0, 72, 95, 0, 0],
        [0, 69, 70, 0, 1], [2, 75, 80, 0, 1], [0, 75, 70, 1, 1], [1, 72, 90, 1, 1],
        [1, 81, 75, 0, 1], [2, 71, 80, 1, 0],
    ], dtype=float,
)  # fmt: skip
X, PLAY = DAYS[:, :4], DAYS[:, 4].astype(int)
SIZES = np.array([3, 0, 0, 2])


def grow(X=X, y=PLAY, sizes=SIZES, depth=10, least=2) -> Tree:
    return grow_c45(X, y, sizes, int(y.max()) + 1, depth, least)


def test_the_tree_that_quinlan_prints():
    """Outlook first; when sunny, humidity up to 75; when it rains, wind."""
    tree = grow()
    tree.check(4, 2)
    assert (tree.feature[0], bool(tree.categorical[0])) == (0, True)
    (_, sunny), (_, overcast), (_, rain) = tree.children(0)
    assert (tree.feature[sunny], bool(tree.categorical[sunny])) == (2, False)
    assert 70 <= tree.threshold[sunny] < 85
    assert tree.feature[overcast] < 0
    assert tree.feature[rain] == 3
    assert len(tree.leaves) == 5
    assert (tree.values(X).argmax(axis=1) == PLAY).all()


def test_gain_ratio_turns_many_branches_down():
    """A column with a category per row has the largest gain and is not taken."""
    number = np.arange(14.0)[:, None]
    tree = grow(np.hstack([number, X]), sizes=np.array([14, *SIZES]), least=1)
    assert tree.feature[0] != 0


def test_noise_is_pruned_away():
    draw = np.random.default_rng(0)
    noise = draw.normal(size=(300, 3))
    labels = (draw.random(300) < 0.2).astype(int)
    assert len(grow(noise, labels, np.zeros(3, int))) <= 5
    signal = (noise[:, 1] > 0.3).astype(int)
    tree = grow(noise, signal, np.zeros(3, int))
    assert (tree.feature[0], len(tree)) == (1, 3)


def test_missing_values_follow_a_branch():
    rows = np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)
    tree = grow(rows, least=1)
    tree.check(4, 2)
    assert len(tree.values(np.full((1, 4), np.nan))) == 1


@pytest.mark.parametrize("least", [1, 5, 40])
def test_two_branches_have_the_rows_that_are_asked_for(least):
    draw = np.random.default_rng(2)
    rows = np.stack([draw.normal(size=200), draw.integers(0, 4, 200)], axis=1)
    labels = ((rows[:, 0] > 0) ^ (rows[:, 1] == 2)).astype(int)
    tree = grow(rows, labels, np.array([0, 4]), least=least)
    for node in np.flatnonzero(tree.feature >= 0):
        below = [tree.support[child] for _, child in tree.children(node)]
        assert sorted(below)[-2] >= least
        assert sum(below) == tree.support[node]


def mixed(clients=4, rows=600):
    draw = np.random.default_rng(0)
    kind, size = draw.integers(0, 3, rows), draw.normal(size=rows)
    y = np.where(kind == 1, size > 0, kind == 2).astype(int)
    features = [so.data.Feature("kind", "categorical", tuple("pqr")), so.data.Feature("size")]
    rows = np.stack([kind, size], axis=1)
    return so.simulate(rows, y, clients=clients, features=features, test=0.2, seed=0), rows, y


def test_trees_of_categories_and_numbers_are_merged():
    fed, rows, y = mixed()
    model = so.FederatedTree("c45").fit(fed)
    assert model.score(rows, y) > 0.97
    assert any(tree.categorical.any() for tree in model.local_trees_)
    assert not all(tree.categorical.all() for tree in model.local_trees_)
    text = str(model.explain(np.array([1.0, -2.0])))
    assert "kind = q" in text
    assert "size" in text
    assert "kind" in to_text(model.tree_, model.schema_)
    assert so.FederatedTree("c45").fit(mixed(1)[0]).score(rows, y) > 0.97


@pytest.mark.data("car")
def test_categories_alone_make_a_tree_of_categories():
    data = so.datasets.car()
    fed = so.simulate(data, clients=3, seed=0)
    model = so.FederatedTree("c45", max_depth=6).fit(fed)
    assert model.tree_.categorical[model.tree_.feature >= 0].all()
    assert model.score(data.X_test, data.with_class_names().y_test) > 0.85
