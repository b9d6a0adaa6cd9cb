"""Gram matrices of FedHEONN behind the gate: what they tell, and to whom they tell nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gate.measure import REFUSED, Owner, table

import solera as so
from solera.core.clients import Client, Draws
from solera.core.component import describe_fitted
from solera.core.disclosure.small_entries import too_near
from solera.core.errors import SoleraError
from solera.core.schema import Feature, Schema, infer
from solera.core.task import find_task
from solera.learn.base import Learner
from solera.learn.heonn.activations import layout_of
from solera.learn.heonn.statistics import unpack
from solera.trust.declared import Fitted
from solera.trust.gate import find_limits

TASK = "heonn.statistics"
ROWS = 100


def mixed(seed: int = 3) -> Any:
    """Numbers, the marks of a category of which two are rare, and a sparse column."""
    rng = np.random.default_rng(seed)
    category = rng.permutation(np.repeat(np.arange(5), [50, 25, 15, 7, 3]))
    sparse = np.where(rng.random((ROWS, 1)) < 0.12, rng.gamma(2, size=(ROWS, 1)), 0)
    return np.concatenate([rng.normal(size=(ROWS, 2)), np.eye(5)[category], sparse], axis=1)


X = mixed()
RNG = np.random.default_rng(4)
TARGETS = {
    "classes": RNG.permutation(np.repeat([0, 1, 2], [55, 41, 4])),
    "labels": (RNG.random((ROWS, 2)) < [0.5, 0.1]).astype(np.int64),
    "numbers": RNG.random(ROWS) * 0.98 + 0.01,
}


def plan(
    schema: Schema, activation: str = "logistic", derivative: str = "exact", **more: Any
) -> Any:
    hidden = more.get("hidden")
    return {
        "width": schema.width,
        "columns": 1 + (schema.width if hidden is None else hidden["width"]),
        "outputs": schema.outputs,
        "target": schema.target,
        "classes": schema.classes,
        "layout": layout_of(schema.target, activation, derivative),
        "activation": activation,
        "derivative": derivative,
        "representation": "gram",
        "hidden": None,
        "patches": None,
        "row_share": None,
        "row_replacement": None,
        "min_rows": 1,
        "encrypt": None,
        **more,
    }


def owner(X: Any, y: Any, schema: Schema | None = None, policy: Any = "training") -> Owner:
    return Owner(table(X, y, schema or infer(X, y)), find_limits(policy))


def ungated(X: Any, y: Any, schema: Schema, ask: Any) -> Any:
    reply = find_task(TASK).one(Client(0, table(X, y, schema), Draws(0, TASK, 0), {}), ask)
    numbers = {"shape.grams": reply["shape"]["grams"], **reply}
    return {name: np.ravel(numbers[name]) for name in ("shape.grams", "moments", "squares")}


def fewest(X: Any, y: Any, ask: Any) -> tuple[float, Any, int]:
    """Fewest effective rows of a number that leaves as it is, by leaving rows out; the reply."""
    schema = infer(X, y)
    asked = owner(X, y)
    reply = asked.ask(TASK, ask)
    assert not isinstance(reply, str), asked.why
    now = ungated(X, y, schema, ask)
    without = [ungated(np.delete(X, i, 0), np.delete(y, i, 0), schema, ask) for i in range(len(X))]
    leaves = {"shape.grams": reply["shape"]["grams"], **reply}
    worst, changed = np.inf, 0
    for name, value in now.items():
        same = np.isclose(np.ravel(leaves[name]), value, rtol=1e-12, atol=1e-12)
        changed += int((~same).sum())
        e = np.stack([value - other[name] for other in without])[:, same]
        e[np.abs(e) < 1e-9 * np.abs(value[same])] = 0
        squares = (e**2).sum(axis=0)
        n = np.abs(e).sum(axis=0)[squares > 0] ** 2 / squares[squares > 0]
        worst = min(worst, n.min(initial=np.inf))
    return worst, reply, changed


@pytest.mark.parametrize(
    ("target", "activation", "derivative"),
    [
        ("classes", "logistic", "exact"),
        ("classes", "logistic", "thesis"),
        ("labels", "logistic", "exact"),
        ("labels", "softplus", "exact"),
        ("numbers", "linear", "exact"),
        ("numbers", "logistic", "exact"),
    ],
)
def test_every_number_rests_on_five_rows_and_matrices_stay_semidefinite(
    target, activation, derivative
):
    y = TARGETS[target]
    schema = infer(X, y)
    rows, reply, changed = fewest(X, y, plan(schema, activation, derivative))
    assert rows >= 5
    assert changed > 0, "the rare marks are there to be withheld"
    values = np.linalg.eigvalsh(unpack(reply["shape"]["grams"], schema.width + 1))
    assert (values[..., 0] >= -1e-9 * values[..., -1]).all()


def test_without_the_rule_of_entries_a_rare_mark_is_told(monkeypatch):
    monkeypatch.setattr(
        "solera.core.disclosure.gram.small_entries", lambda Z, w, rows, *_: rows < 0
    )
    y = TARGETS["numbers"]
    assert fewest(X, y, plan(infer(X, y), "linear"))[0] < 5


def grams(reply: Any, width: int) -> Any:
    return unpack(reply["shape"]["grams"], width + 1)[0, 0]


def test_marks_of_one_category_do_not_give_a_rare_one_back():
    """All marks add up to the ones: the one of three rows is not what is missing from the sum."""
    y = TARGETS["numbers"]
    G = grams(owner(X, y).ask(TASK, plan(infer(X, y), "linear")), X.shape[1])
    counts = X[:, 2:7].sum(axis=0)
    told = G[0, 3:8]
    assert told[4] == 0
    missing = G[0, 0] - told.sum()
    assert missing >= 5
    assert missing != counts[4]
    assert missing == pytest.approx(counts[told == 0].sum())


def test_a_shifted_mark_tells_no_more_than_the_mark():
    """A scaler that takes ½ from a mark makes all rows count, and the ones undo it."""
    y = TARGETS["numbers"]
    schema = infer(X, y)
    scaler = so.FedScaler()
    scaler.schema_, scaler.mean_, scaler.scale_ = schema, np.full(8, 0.5), np.ones(8)
    reply = owner(X, y).ask(TASK, plan(schema, "linear"), [scaler])
    G = grams(reply, 8)
    rare = X[:, 6] == 1
    undone = 0.5 * G[0] + G[7]  # Σ (z + ½) z of the rare mark, which is the sum over its rows
    truth = (X[rare] - 0.5).sum(axis=0)
    assert not np.isclose(undone[1:3], truth[:2]).any()
    assert not np.isclose(undone[0], 3)


@pytest.mark.parametrize("share", [1e-9, 0.05, 0.99])
def test_samples_of_a_few_rows_and_all_but_a_few_get_nothing(share):
    y = TARGETS["classes"]
    patches = np.tile(np.arange(2), (200, 1))
    asked = owner(X, y)
    ask = plan(infer(X, y), patches=patches, row_share=share, row_replacement=False)
    assert asked.ask(TASK, ask) == REFUSED
    assert "distinct rows" in asked.why


def test_a_sample_leaves_once_and_a_similar_one_does_not():
    y = TARGETS["classes"]
    asked = owner(X[:, :2], y)
    ask = plan(infer(X[:, :2], y), patches=np.array([[0, 1]]), row_share=0.5, row_replacement=False)
    assert asked.ask(TASK, ask) != REFUSED
    assert asked.ask(TASK, ask) != REFUSED, "the same again tells nothing new"
    assert asked.ask(TASK, ask, round=1) != REFUSED, "another half differs in many rows"
    assert asked.ask(TASK, {**ask, "row_share": 0.52}) == REFUSED, "two rows more"


def test_too_few_rows_per_column_get_nothing():
    rng = np.random.default_rng(0)
    y = TARGETS["numbers"]
    wide = rng.normal(size=(ROWS, 33))
    asked = owner(wide, y)
    assert asked.ask(TASK, plan(infer(wide, y), "linear")) == REFUSED
    assert "34 columns needs 102 distinct rows" in asked.why
    again = np.repeat(rng.normal(size=(10, 4)), 10, axis=0)
    assert owner(again, y).ask(TASK, plan(infer(again, y), "linear")) == REFUSED


def test_factors_leave_as_the_matrices_that_they_are_of():
    """A number of a factor is what the columns before it do not tell, perhaps of one row."""
    y = TARGETS["numbers"]
    asks = [plan(infer(X, y), "linear", representation=way) for way in ("gram", "svd")]
    told, factored = (owner(X, y).ask(TASK, ask) for ask in asks)
    assert list(factored["shape"]) == ["grams"]
    np.testing.assert_allclose(factored["shape"]["grams"], told["shape"]["grams"], atol=1e-9)
    fed = so.simulate(X, y, clients=1, policy="training")
    models = [so.FedHEONN("linear", representation=way, lam=1e-3) for way in ("gram", "svd")]
    for model in models:
        model.fit(fed)
    np.testing.assert_allclose(models[1].predict(X), models[0].predict(X), atol=1e-6)


def test_steep_hidden_features_that_single_out_rows_are_withheld():
    """tanh of a steep layer is ±1: which side of a line a row is on, and how many are."""
    rng = np.random.default_rng(1)
    points, y = rng.normal(size=(200, 4)) + 2, rng.random(200)
    alone = told = 0
    for seed in range(6):
        hidden = {"kind": "random_layer", "width": 12, "scale": 1e6, "seed": seed}
        ask = plan(infer(points, y), "linear", hidden=hidden)
        raw = ungated(points, y, infer(points, y), ask)["shape.grams"]
        sides = unpack(raw, 13)[0, 1:]  # the ones with each feature
        alone += int(((200 - np.abs(sides) > 0) & (200 - np.abs(sides) < 10)).sum())
        reply = owner(points, y).ask(TASK, ask)
        if isinstance(reply, str):
            continue
        sides = unpack(reply["shape"]["grams"], 13)[0, 0, 0, 1:]
        few = (200 - np.abs(sides)) / 2
        assert ((few < 1e-6) | (few >= 5)).all()
        told += 1
    assert told
    assert alone, "there are lines with fewer than five rows on one side"


def test_columns_that_differ_in_a_few_rows_are_found():
    marks = (np.arange(50)[:, None] < [20, 22, 30]).astype(float)
    near = [[False, True, False], [True, False, False], [False, False, False]]
    assert too_near(marks, marks, 5).tolist() == near
    assert too_near(marks, -marks, 5).tolist() == near
    y = TARGETS["numbers"][:50]
    noise = np.random.default_rng(0).normal(size=(50, 1))
    both = np.concatenate([noise, marks[:, :2]], axis=1)
    G = grams(owner(both, y).ask(TASK, plan(infer(both, y), "linear")), 3)
    assert G[2].any()
    assert not G[3].any()
    asked = owner(both[:, :2], y)
    assert grams(asked.ask(TASK, plan(infer(both[:, :2], y), "linear")), 2)[2].any()
    asked.data = table(both[:, [0, 2]], y)
    asked.gate.memory.rows = None
    assert not grams(asked.ask(TASK, plan(infer(both[:, :2], y), "linear")), 2)[2].any()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"layout": "outputs"}, "layout is outputs"),
        ({"columns": 40}, "columns is 40"),
        ({"outputs": 7}, "outputs is 7"),
        ({"target": "labels"}, "target is labels"),
        ({"row_share": 0.5}, "belong together"),
        ({"patches": np.array([[8]]), "row_share": 0.5, "row_replacement": True}, "beyond the 8"),
        ({"row_share": 0.0}, "row_share"),
        ({"activation": "step"}, "activation"),
        ({"hidden": {"kind": "fourier", "width": 10**6, "scale": 1.0, "seed": 1}}, "hidden"),
    ],
)
def test_plans_that_do_not_fit_are_refused(change, why):
    y = TARGETS["classes"]
    asked = owner(X, y)
    assert asked.ask(TASK, {**plan(infer(X, y)), **change}) == REFUSED
    assert why in asked.why


# --- encryption ---


@pytest.fixture
def key(tmp_path, monkeypatch):
    monkeypatch.setenv("SOLERA_KEYS", str(tmp_path))
    so.keys.create(tmp_path, "pair", so.keys.SMALL_CLIENT)
    return "pair"


def test_encrypted_moments_are_judged_before_they_are_sealed(key):
    """Without bounds for its columns a client does not help to encrypt; with them it does."""
    y = TARGETS["classes"]
    bounds = {f"x{i}": (-20.0, 20.0) for i in range(8)}
    limits = replace(find_limits("training"), bounds=bounds, encrypted=frozenset({"gram"}))
    learner = so.FedHEONN(encrypt=so.Encryption(key))
    refused = so.simulate(X, y, clients=1, policy="training")
    with pytest.raises(SoleraError, match=r'add "x0" = \[least, largest\]'):
        learner.fit(refused)
    sealed = learner.fit(so.simulate(X, y, clients=1, policy=limits)).weights_
    clear = so.FedHEONN().fit(so.simulate(X, y, clients=1, policy="training")).weights_
    assert np.allclose(sealed, clear, atol=1e-3 * np.abs(clear).max())
    open_ = so.FedHEONN().fit(so.simulate(X, y, clients=1)).weights_
    assert not np.allclose(sealed, open_, atol=1e-3 * np.abs(open_).max()), "small ones withheld"
    with pytest.raises(SoleraError, match="leave encrypted only"):
        so.FedHEONN().fit(so.simulate(X, y, clients=1, policy=limits))


# --- models from the wire, and what is left to learn from ---


def test_models_from_the_wire_are_of_the_rows():
    y = TARGETS["classes"]
    schema = infer(X, y)
    rule = Fitted(Learner)
    patched = so.FedHEONN(ensemble=so.RandomPatches(3)).fit(so.simulate(X, y, clients=2))
    deep = so.FedHEONN(features="fourier", hidden=20).fit(so.simulate(X, y, clients=2))
    for model in (patched, deep):
        assert rule.objection(describe_fitted(model.for_prediction()), schema) is None
    patched.patches_ = patched.patches_ + 5
    assert "beyond" in rule.objection(describe_fitted(patched.for_prediction()), schema)
    deep.hidden_ = {**deep.hidden_, "width": 21}
    assert "hidden_" in rule.objection(describe_fitted(deep.for_prediction()), schema)
    plain = so.FedHEONN().fit(so.simulate(X, y, clients=2)).for_prediction()
    plain.solution_ = np.zeros((ROWS, 9, 3))
    assert "solution_" in rule.objection(describe_fitted(plain), schema)


def test_sparse_columns_are_learnt_from_behind_the_gate():
    data = so.datasets.digits()
    scores = {}
    for policy in (None, "training"):
        fed = so.simulate(data.X, data.y, clients=4, policy=policy)
        scores[policy] = so.FedHEONN(lam=1.0).fit(fed).score(data.X_test, data.y_test)
    assert scores["training"] > scores[None] - 0.04


def test_schema_names_are_what_bounds_are_given_for():
    named = Schema(tuple(Feature(f"c{i}") for i in range(8)), "numbers", np.empty(0), 1)
    asked = owner(X, TARGETS["numbers"], named)
    assert asked.ask("heonn.agree_key", {**plan(named, "linear"), "key": "absent"}) == REFUSED


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_ask_gets_the_same_matrices_again(target):
    """Columns of which only one left, for the others are too near, are withheld again as before."""
    twin = X.copy()
    twin[:3, 0] += 1.0
    Z = np.concatenate([X, twin], axis=1)
    schema = infer(Z, TARGETS[target])
    one = Owner(table(Z, TARGETS[target], schema), replace(find_limits("training"), gram_rows=0.5))
    first, again = (one.ask(TASK, plan(schema)) for _ in range(2))
    assert first != REFUSED, one.why
    assert (first["shape"]["grams"] == 0).any()
    for name in ("moments", "squares"):
        assert np.array_equal(first[name], again[name])
    assert np.array_equal(first["shape"]["grams"], again["shape"]["grams"])
