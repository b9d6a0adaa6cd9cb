"""Counts, quantiles, clusters, evaluations and reports: what honest asks get, and what attacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gate.measure import REFUSED, Hostile, Owner, table

import solera as so
from solera.core.component import describe_fitted
from solera.core.errors import DataError, SoleraError
from solera.core.schema import Feature, Schema, class_codes, infer
from solera.trust.gate import find_limits

RNG = np.random.default_rng(11)
ROWS = 60
X = np.stack([RNG.normal(size=ROWS) * 10, np.exp(2 * RNG.normal(size=ROWS))], axis=1)
Y = (X[:, 0] + RNG.normal(size=ROWS) > 0).astype(np.int64)
TRAINING = find_limits("training")


def owner(X: Any = X, y: Any = Y, policy: Any = TRAINING, schema: Schema | None = None) -> Owner:
    return Owner(table(X, y, schema), find_limits(policy))


# --- missing values ---


def test_a_few_missing_values_are_not_told():
    few, many = X.copy(), X.copy()
    few[:2, 0], many[:8, 0] = np.nan, np.nan
    for rows, known in ((few, ROWS), (many, ROWS - 8)):
        one = owner(rows)
        described = one.ask("data.describe", None)
        assert described["gaps"] == ([] if known == ROWS else [0])
        assert bool(one.ask("data.flaws", None)["gaps"]) == (known < ROWS)


def test_missing_values_are_a_clear_error_all_the_same():
    few, many = X.copy(), X.copy()
    few[:2, 0], many[:, 0] = np.nan, np.nan
    for rows in (few, many):
        fed = so.simulate(rows, Y, clients=2, policy="training")
        with pytest.raises(SoleraError, match="missing or infinite values in x0"):
            so.FedLinear(rounds=1).fit(fed)


# --- categories and classes ---

CATEGORIES = Schema(
    (Feature("u"), Feature("v", "categorical", ("p", "q", "r", "rare"))),
    "classes",
    np.array(["a", "b", "zz"]),
    3,
)


def with_rare() -> tuple[Any, Any]:
    codes = np.resize([0.0, 1.0, 2.0], 40)
    codes[0] = 3.0
    return np.stack([X[:40, 0], codes], axis=1), np.array(["a"] * 20 + ["b"] * 18 + ["zz"] * 2)


def test_rare_categories_and_classes_are_not_named():
    described = owner(*with_rare(), schema=CATEGORIES).ask("data.describe", None)
    assert described["features"][1] == ["v", "categorical", ["p", "q", "r"]]
    assert described["classes"].tolist() == ["a", "b"]
    assert described["outputs"] == 2
    assert described["rows"] == 40


def test_listed_categories_and_classes_are_named():
    limits = replace(TRAINING, listed={"v": ["rare"], "": ["zz"]})
    described = owner(*with_rare(), policy=limits, schema=CATEGORIES).ask("data.describe", None)
    assert described["features"][1][2] == ["p", "q", "r", "rare"]
    assert described["classes"].tolist() == ["a", "b", "zz"]


def test_too_many_categories_are_refused():
    names = tuple(f"c{i}" for i in range(50))
    schema = Schema((Feature("v", "categorical", names),), "none")
    one = owner(np.resize(np.arange(50.0), (300, 1)), np.zeros(300, np.int64), schema=schema)
    assert one.ask("data.describe", None) == REFUSED
    assert "more than 40 categories" in one.why


def test_an_unknown_class_is_not_quoted():
    with pytest.raises(DataError) as error:
        class_codes(np.array(["secret diagnosis"]), np.array(["a", "b"]))
    assert "secret" not in str(error.value)


# --- evaluation ---


def model_of(X: Any, y: Any, **learned: Any) -> dict[str, Any]:
    """A linear model whose state the driver chose."""
    schema = infer(X, y)
    model = so.FedLinear()
    model.schema_ = schema
    model.coef_ = np.zeros((schema.width, schema.outputs))
    model.intercept_ = np.zeros(schema.outputs)
    for name, value in learned.items():
        setattr(model, name, value)
    return describe_fitted(model)


def singling_out(row: int, outputs: int) -> dict[str, Any]:
    """Weights that answer otherwise for the rows with the largest values than for all others."""
    order = np.sort(X[:, 0])
    coef = np.zeros((2, outputs))
    coef[0, -1] = 1e6
    return {"coef_": coef, "intercept_": np.r_[np.zeros(outputs - 1), -1e6 * order[-row]]}


TARGETS = {
    "classes": Y,
    "labels": np.stack([Y, X[:, 1] > 1], axis=1).astype(np.int64),
    "numbers": Y.astype(float),
}


@pytest.mark.parametrize("target", TARGETS)
def test_models_that_single_out_rows_get_nothing(target):
    y = TARGETS[target]
    outputs = infer(X, y).outputs
    hostile = Hostile(X, y, "evaluation")
    for row in (1, 2, 3):
        ask = {"model": model_of(X, y, **singling_out(row, outputs)), "part": "train"}
        assert hostile.ask("learner.evaluate", ask) != REFUSED
    assert hostile.leak().rows >= 5


def test_the_error_of_a_model_that_is_half_but_at_one_row_is_withheld():
    """Where y is 0 or 1, every other row adds ½, which the driver knows."""
    y = Y.astype(float)
    coef = np.zeros((2, 1))
    far = int(np.argmax(X[:, 1]))
    coef[1, 0] = 1e-3
    rows = X.copy()
    rows[np.arange(ROWS) != far, 1] = 0.0
    model = model_of(rows, y, coef_=coef, intercept_=np.array([0.5]))
    reply = owner(rows, y).ask("learner.evaluate", {"model": model, "part": "train"})
    assert reply["error"] == 0
    assert reply["error2"] == 0


@pytest.mark.parametrize(
    "learned",
    [
        {"intercept_": np.zeros((ROWS, 2))},
        {"coef_": np.zeros((2, 30_000)), "intercept_": np.zeros(30_000)},
        {"coef_": np.full((2, 2), np.nan)},
        {"more_": np.zeros(3)},
    ],
)
def test_models_of_other_shapes_are_refused(learned):
    ask = {"model": model_of(X, Y, **learned), "part": "train"}
    assert owner().ask("learner.evaluate", ask) == REFUSED
    assert owner().ask("select.value", {"model": ask["model"], "power": 1.0}) == REFUSED


def test_margins_do_not_give_a_small_cell_back():
    """Of each true class at least five rows are withheld, or none."""
    ask = {"model": model_of(X, Y, **singling_out(3, 2)), "part": "train"}
    confusion = owner().ask("learner.evaluate", ask)["confusion"]
    hidden = np.bincount(Y) - confusion.sum(axis=1)
    assert ((hidden == 0) | (hidden >= 5)).all()
    assert hidden.any()


def test_an_evaluation_behind_the_gate_is_nearly_that_without():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1000, 3))
    y = (rows[:, 0] + 0.5 * rng.normal(size=1000) > 0).astype(np.int64)
    found = []
    for policy in (None, "training"):
        fed = so.simulate(rows, y, clients=5, test=0.3, policy=policy)
        found.append(so.FedLinear(rounds=5).fit(fed).evaluate(fed)["accuracy"])
    assert abs(found[0] - found[1]) < 0.03


# --- fitted transformers ---


def fitted(step: Any, rows: Any = X) -> Any:
    return step.fit(so.simulate(rows, Y, clients=2))


def test_states_of_transformers_are_compared_with_the_rows():
    imputer, bins = fitted(so.FedImputer()), fitted(so.FedBins(4))
    one = owner()
    assert one.ask("preprocess.moments", None, [imputer, bins]) != REFUSED
    imputer.fill_ = np.zeros((ROWS, 2))
    assert owner().ask("preprocess.moments", None, [imputer]) == REFUSED
    for edges in ([np.zeros(1)], [np.array([2.0, 1.0]), np.zeros(1)], [np.zeros((2, 2))] * 2):
        bins.edges_ = edges
        assert owner().ask("preprocess.moments", None, [bins]) == REFUSED


def test_an_encoder_of_other_columns_is_refused():
    encoder = fitted(so.FedEncoder())
    assert owner().ask("preprocess.moments", None, [encoder]) != REFUSED
    encoder.schema_ = replace(
        encoder.schema_, features=(Feature("x0", "categorical", ("a",)), Feature("x1"))
    )
    assert owner().ask("preprocess.moments", None, [encoder]) == REFUSED


def test_every_step_of_a_pipeline_is_compared():
    pipeline = so.Pipeline(so.FedBins(4), so.FedEncoder(), so.FedLinear(rounds=1))
    pipeline.fit(so.simulate(X, Y, clients=2))
    ask = {"model": describe_fitted(pipeline), "part": "train"}
    assert owner().ask("learner.evaluate", ask) != REFUSED
    pipeline.steps_[2].intercept_ = np.zeros((ROWS, 2))
    ask = {"model": describe_fitted(pipeline), "part": "train"}
    assert owner().ask("learner.evaluate", ask) == REFUSED
    pipeline.steps_ = pipeline.steps_[:1]
    ask = {"model": describe_fitted(pipeline), "part": "train"}
    assert owner().ask("learner.evaluate", ask) == REFUSED


# --- reports to selectors ---


def test_losses_of_models_that_differ_at_one_row_do_not_tell_it():
    hostile = Hostile(X, Y, "training")
    for row in (1, 2):
        model = model_of(X, Y, **singling_out(row, 2))
        for power in (0.0, 0.5, 1.0):
            assert hostile.ask("select.value", {"model": model, "power": power}) != REFUSED
        states = [{"intercept_": np.zeros(2)}, {"intercept_": model["learned"]["intercept_"]}]
        ask = {"learner": model, "states": states, "part": "train"}
        assert hostile.ask("select.losses", ask) != REFUSED
    assert hostile.leak().rows >= 5


def test_states_of_losses_are_compared_with_the_rows():
    ask = {"learner": model_of(X, Y), "states": [{"intercept_": np.zeros(ROWS)}], "part": "train"}
    one = owner()
    assert one.ask("select.losses", ask) == REFUSED
    assert "states[0]" in one.why


def test_rows_are_uploaded_under_no_other_policy():
    ask = {"classes": np.array([0, 1]), "first": np.zeros(2, int), "take": np.ones(2, int)}
    for policy in ("statistics", "evaluation", "training", "trusted"):
        one = owner(policy=policy)
        assert one.ask("select.upload", ask) == REFUSED
        assert "which is not allowed" in one.why


def test_classes_of_resources_are_counted_as_cells(monkeypatch, tmp_path):
    stated = tmp_path / "resources.toml"
    stated.write_text("samples_per_second = 10\nbits_per_second = 100\n")
    monkeypatch.setenv("SOLERA_RESOURCES", str(stated))
    y = np.array([0] * 40 + [1] * 17 + [2] * 3)
    reply = owner(y=y).ask("select.resources", {"classes": np.arange(3)})
    assert reply["rows"] == ROWS
    assert reply["counts"].tolist() == [40, 0, 0]
    numbers = owner(y=X[:, 0].copy())
    assert numbers.ask("select.resources", {"classes": np.array([0, 1])}) == REFUSED
