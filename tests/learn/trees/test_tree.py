"""Trees as arrays: walking, importing, exporting, and arrays that make no tree."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from solera.core.component import build, describe
from solera.core.errors import PayloadError, UsageError
from solera.core.payload import decode, encode
from solera.core.schema import Feature, Schema
from solera.learn.trees import export
from solera.learn.trees.explanation import explain
from solera.learn.trees.id3 import grow_id3
from solera.learn.trees.plots import plot_tree, to_svg
from solera.learn.trees.sklearn_trees import from_sklearn
from solera.learn.trees.tree import Tree

seeds = st.integers(0, 2**32 - 1)


def numeric(seed, gaps=0.0, rows=120):
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, 3)) * 10.0 ** draw.integers(-3, 4)
    y = (X[:, 0] + X[:, 1] * draw.normal() > 0) + (X[:, 2] > 0).astype(int)
    X[draw.random(X.shape) < gaps] = np.nan
    return X, y


def walk(tree, x):
    """The textbook: from node to node, one row at a time."""
    node = 0
    while tree.feature[node] >= 0:
        value, children = x[tree.feature[node]], dict(tree.children(node))
        if tree.categorical[node]:
            last = tree.arity[node] - 1
            way = int(value) if np.isfinite(value) and value < last else -1
            way = way if np.isfinite(value) else last
        elif np.isfinite(value):
            way = int(value > tree.threshold[node])
        else:
            way = 0 if tree.missing_left[node] else 1
        if way not in children:
            break
        node = children[way]
    return node


@given(seed=seeds, gaps=st.sampled_from([0.0, 0.2]))
@settings(max_examples=40, deadline=None)
def test_imported_trees_predict_as_the_original(seed, gaps):
    X, y = numeric(seed, gaps)
    for grower in (DecisionTreeClassifier, DecisionTreeRegressor):
        original = grower(max_depth=4, random_state=0).fit(X, y)
        tree = from_sklearn(original)
        near = np.where(np.isfinite(X), np.nextafter(X, np.inf), X)
        for rows in (X, near, X.astype(np.float32).astype(np.float64)):
            assert np.array_equal(tree.apply(rows), original.apply(rows))
        if grower is DecisionTreeClassifier:
            np.testing.assert_allclose(tree.predict_proba(X), original.predict_proba(X))
        else:
            np.testing.assert_allclose(tree.values(X)[:, 0], original.predict(X))


def test_thresholds_turn_where_scikit_learn_rounds():
    X = np.array([[0.0], [1.0]])
    original = DecisionTreeClassifier().fit(X, [0, 1])
    tree = from_sklearn(original)
    near = 0.5 + np.arange(-40, 40)[:, None] * 1e-9
    assert np.array_equal(tree.values(near).argmax(axis=1), original.predict(near))
    assert len(np.unique(original.predict(near))) == 2


@given(seed=seeds, kind=st.sampled_from(["cart", "id3"]))
@settings(max_examples=40, deadline=None)
def test_all_rows_together_walk_as_one_by_one(seed, kind):
    draw = np.random.default_rng(seed)
    if kind == "cart":
        X, y = numeric(seed, 0.2)
        tree = from_sklearn(DecisionTreeClassifier(max_depth=4, random_state=0).fit(X, y))
        X[0] = np.inf
    else:
        X = draw.integers(0, 3, (60, 3)).astype(float)
        X[draw.random(X.shape) < 0.1] = np.nan
        tree = grow_id3(X, draw.integers(0, 3, 60), np.array([5, 3, 3]), 3, 3)
        X = draw.integers(0, 7, (80, 3)).astype(float)
    assert np.array_equal(tree.apply(X), [walk(tree, x) for x in X])


def test_an_unknown_category_gets_the_node_and_no_other_rows_answer():
    X, y = np.array([[0.0], [1.0], [1.0]]), np.array([0, 1, 1])
    tree = grow_id3(X, y, np.array([4]), 2, 1)
    for strange in (2.0, 3.0, 4.0, -1.0, 0.5, 99.0, np.nan):
        assert tree.apply(np.array([[strange]])).tolist() == [0]
        np.testing.assert_allclose(tree.predict_proba(np.array([[strange]])), [[1 / 3, 2 / 3]])
    gap = grow_id3(np.array([[0.0], [np.nan]]), np.array([0, 1]), np.array([4]), 2, 1)
    assert gap.values(np.array([[np.nan]])).argmax() == 1


def test_importance_finds_the_telling_column():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(400, 4))
    y = (X[:, 2] > 0).astype(int)
    original = DecisionTreeClassifier(max_depth=3, random_state=0).fit(X, y)
    tree = from_sklearn(original)
    np.testing.assert_allclose(tree.importance(4), original.feature_importances_, atol=1e-9)
    leaf = from_sklearn(DecisionTreeClassifier().fit(X, np.zeros(400)))
    assert leaf.importance(4).tolist() == [0, 0, 0, 0]


def example():
    draw = np.random.default_rng(3)
    X = np.column_stack([draw.normal(size=80), draw.integers(0, 3, 80)])
    y = ((X[:, 0] > 0) & (X[:, 1] < 2)).astype(int)
    features = (Feature("a<b>"), Feature('c"', "categorical", ("x", "y & z", "w")))
    return X, y, Schema(features, "classes", np.array(["no", "yes"]), 2)


def test_exports_can_be_read_back():
    X, y, schema = example()
    for tree in (
        from_sklearn(DecisionTreeClassifier(max_depth=3).fit(X, y)),
        grow_id3(np.floor(np.clip(X, 0, 2)), y, np.array([3, 3]), 2, 2),
    ):
        names = (Feature("a<b>", "categorical", ("0", "1", "2")), schema.features[1])
        spoken = (
            schema if not tree.categorical.any() else Schema(names, "classes", schema.classes, 2)
        )
        nested = json.loads(export.to_json(tree, spoken))
        assert nested["feature"] in {"a<b>", 'c"'}
        assert sum(nested["probabilities"].values()) == pytest.approx(1)
        svg = ET.fromstring(to_svg(plot_tree(tree, spoken, max_depth=5)))
        texts = svg.findall(".//{http://www.w3.org/2000/svg}text")
        assert len(texts) == 2 * len(tree) - 1  # every node and every branch
        dot = export.to_graphviz(tree, spoken)
        assert dot.count("->") == len(tree) - 1
        text = export.to_text(tree, spoken)
        assert text.count("→") == len(tree.leaves)


def test_a_single_leaf_is_a_tree():
    X, _, schema = example()
    tree = from_sklearn(DecisionTreeClassifier().fit(X, np.zeros(80, int)), classes=np.arange(2))
    assert len(tree) == 1
    assert tree.predict_proba(X).tolist() == [[1.0, 0.0]] * 80
    assert export.to_text(tree, schema) == "→ no (1.00)\n"
    assert explain(tree, X[0], schema).conditions == ()
    ET.fromstring(to_svg(plot_tree(tree, schema)))


def test_only_single_fitted_trees_are_imported():
    with pytest.raises(UsageError, match="no fitted tree"):
        from_sklearn(DecisionTreeClassifier())
    X, y, _ = example()
    with pytest.raises(UsageError, match="estimators_"):
        from_sklearn(RandomForestClassifier(2).fit(X, y))
    with pytest.raises(UsageError, match="2 outputs"):
        from_sklearn(DecisionTreeRegressor().fit(X, np.stack([y, y], axis=1)))


def test_travels_and_saves_without_pickle():
    X, y, _ = example()
    tree = from_sklearn(DecisionTreeClassifier().fit(X, y))
    back = Tree.from_payload(decode(encode(tree.to_payload())), 2, 2)
    assert back == tree
    assert build(decode(encode(describe(tree)))) == tree


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_damaged_arrays_are_refused_or_harmless(data):
    X, y, _ = example()
    payload = dict(from_sklearn(DecisionTreeClassifier(max_depth=3).fit(X, y)).to_payload())
    name = data.draw(st.sampled_from(sorted(payload)))
    array = payload[name].copy()
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, array.size - 1))
        array.flat[place] = data.draw(st.sampled_from([-7, -1, 0, 1, 5, 10**9]))
    else:
        array = array[: data.draw(st.integers(0, len(array) - 1))]
    payload[name] = array
    try:
        tree = Tree.from_payload(payload, 2, 2)
    except PayloadError:
        return
    assert (tree.apply(X) < len(tree)).all()


def test_foreign_keys_are_refused():
    with pytest.raises(PayloadError, match="no tree"):
        Tree.from_payload({"feature": np.array([0])}, 2, 2)
    with pytest.raises(PayloadError, match="no tree"):
        Tree.from_payload({"code": "import os"}, 2, 2)
