"""Gram matrices of FedHEONN behind the gate: what they tell, and to whom they tell nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.component import describe_fitted
from solera.core.errors import NotEnoughReplies, SoleraError
from solera.core.schema import Schema, infer
from solera.learn.base import Learner
from solera.learn.heonn.activations import layout_of
from solera.trust.declared import Fitted
from solera.trust.gate import find_limits
from solera.trust.members import symmetric

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


def one_client(X: Any, y: Any, policy: Any = "training", **more: Any) -> so.Federation:
    return so.simulate(X, y, clients=1, seed=0, policy=policy, **more)


def answer(X: Any, y: Any, ask: Any, policy: Any = "training") -> Any:
    """What the one client sends, and which numbers of it are absent."""
    (reply,) = list(one_client(X, y, policy).ask(TASK, ask))
    return reply.payload, reply.absent


def refusal(X: Any, y: Any, ask: Any, policy: Any = "training") -> str:
    replies = one_client(X, y, policy).ask(TASK, ask, quorum=0)
    assert list(replies) == []
    return replies.failures[0].reason


@pytest.mark.parametrize(
    ("target", "activation", "derivative"),
    [
        ("classes", "logistic", "exact"),
        ("labels", "logistic", "exact"),
        ("numbers", "linear", "exact"),
    ],
)
def test_every_number_that_is_told_rests_on_five_persons(target, activation, derivative):
    """Counted here by hand: rows with both columns, and rows of a column in a class and not."""
    y = TARGETS[target]
    reply, absent = answer(X, y, plan(infer(X, y), activation, derivative))
    Z = np.column_stack([np.ones(ROWS), X]) != 0
    both = Z.T.astype(int) @ Z
    missing = symmetric(absent["shape.grams"][0, 0].astype(float)).astype(bool)
    assert np.array_equal(missing, (both > 0) & (both < 5))
    assert missing.any(), "the rare marks are there to be withheld"
    assert not symmetric(reply["shape"]["grams"])[0, 0][missing].any()
    marks = y[:, None] == np.arange(3) if target == "classes" else y.reshape(ROWS, -1) != 0
    for side in (marks == 1, marks != 1):
        rows = Z.T.astype(int) @ side
        assert absent["moments"][0][(rows > 0) & (rows < 5)].all()
    assert not reply["moments"][absent["moments"]].any()


def test_a_rare_class_is_not_what_the_others_leave():
    """Σ z of all rows is told with G: were one class withheld alone, it would be the rest."""
    y = TARGETS["classes"]  # four rows have class 2
    _, absent = answer(X, y, plan(infer(X, y)))
    assert absent["moments"][0, 0].tolist() == [False, True, True]
    assert absent["squares"][0, 0].tolist() == [False, True, True]


def test_too_few_rows_per_column_get_nothing():
    rng = np.random.default_rng(0)
    y = TARGETS["numbers"]
    wide = rng.normal(size=(ROWS, 33))
    why = refusal(wide, y, plan(infer(wide, y), "linear"))
    assert "34 columns needs 102 distinct rows, here are 100" in why


@pytest.mark.parametrize("share", [1e-9, 0.05])
def test_samples_of_a_few_rows_get_nothing(share):
    y = TARGETS["classes"]
    patches = np.tile(np.arange(2), (200, 1))
    ask = plan(infer(X, y), patches=patches, row_share=share, row_replacement=False)
    assert "3 columns needs 9 distinct rows" in refusal(X, y, ask)


def test_rows_that_a_member_draws_twice_count_once():
    y = TARGETS["numbers"]
    patches = np.array([[0, 1]])
    ask = plan(infer(X, y), "linear", patches=patches, row_share=0.12, row_replacement=True)
    limits = replace(find_limits("training"), gram_rows=4.0)
    assert "12 distinct rows, here are 1" in refusal(X, y, ask, limits)
    once = {**ask, "row_replacement": False}
    assert answer(X, y, once, limits)[0]["shape"]["grams"].any()


def test_factors_leave_as_the_matrices_that_they_are_of():
    """A number of a factor is what the columns before it do not tell, perhaps of one row."""
    y, wide = TARGETS["numbers"], X[:, [0, 1, 2, 3]]
    ways = [plan(infer(wide, y), "linear", representation=way) for way in ("gram", "svd")]
    (told, _), (factored, _) = (answer(wide, y, ask) for ask in ways)
    assert np.array_equal(factored["shape"]["factors"], told["shape"]["grams"])
    open_, _ = answer(wide, y, ways[1], policy="trusted")
    R = open_["shape"]["factors"]
    G = symmetric(told["shape"]["grams"])
    np.testing.assert_allclose(R.swapaxes(-1, -2) @ R, G, atol=1e-12)
    models = [so.FedHEONN("linear", representation=way, lam=1e-3) for way in ("gram", "svd")]
    for model in models:
        model.fit(one_client(wide, y))
    np.testing.assert_allclose(models[1].predict(wide), models[0].predict(wide), atol=1e-6)


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
    assert why in refusal(X, y, {**plan(infer(X, y)), **change})


# --- encryption ---


@pytest.fixture
def key(tmp_path, monkeypatch):
    monkeypatch.setenv("SOLERA_KEYS", str(tmp_path))
    so.keys.create(tmp_path, "pair", so.keys.SMALL_CLIENT)
    return "pair"


def test_encrypted_moments_are_judged_before_they_are_sealed(key):
    """Without bounds for its columns a client does not help to encrypt; with them it does."""
    y, many = RNG.permutation(np.repeat([0, 1, 2], [40, 35, 25])), X[:, :3]
    bounds = {f"x{i}": (-20.0, 20.0) for i in range(3)}
    limits = replace(find_limits("training"), bounds=bounds, encrypted=frozenset({"gram"}))
    learner = so.FedHEONN(encrypt=so.Encryption(key))
    with pytest.raises(SoleraError, match=r'add "x0" = \[least, largest\]'):
        learner.fit(one_client(many, y))
    sealed = learner.fit(one_client(many, y, limits)).weights_
    clear = so.FedHEONN().fit(one_client(many, y)).weights_
    assert np.allclose(sealed, clear, atol=1e-3 * np.abs(clear).max())
    with pytest.raises(SoleraError, match="leave encrypted only"):
        so.FedHEONN().fit(one_client(many, y, limits))
    with pytest.raises(SoleraError, match="'moments' rests on too few rows to be encrypted"):
        learner.fit(one_client(many, TARGETS["classes"], limits))


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


def test_a_client_with_a_rare_category_is_not_in_the_model_and_the_column_is_named(caplog):
    """What is learned is right for the rows of the others, and it says who is missing."""
    draw = np.random.default_rng(0)
    rows = np.column_stack([draw.normal(size=(300, 2)), draw.random(300) < 0.5])
    rows[200:, 2] = np.arange(100) < 3  # the last client has three of this category
    y = np.arange(300) % 3
    data = so.data.FederatedData(rows, y, np.array([0, 100, 200, 300]))
    model = so.FedHEONN().fit(so.simulate(data, policy="training"))
    others = so.data.FederatedData(rows[:200], y[:200], np.array([0, 100, 200]))
    expected = so.FedHEONN().fit(so.simulate(others)).weights_
    np.testing.assert_allclose(model.weights_, expected, rtol=1e-12)
    assert "client 2 invalid: fewer persons than min_count have 'x2'; leave" in caplog.text
    assert "the model lacks client 2 (1 in all)" in model.card()
    with pytest.raises(NotEnoughReplies, match=r"have 'x2'.*FedSelect"):
        so.FedHEONN().partial_fit(so.simulate(data, policy="training"), clients=[2])
