"""A driver that writes its own asks to the tasks of generalised linear models."""

from __future__ import annotations

import numpy as np
import pytest
from tests.gate.measure import REFUSED, Hostile, Owner, table

import solera as so
from solera.trust.gate import find_limits

draw = np.random.default_rng(5)
X = draw.normal(size=(60, 2))
X[0] = [4.0, 4.0]
COUNTS = draw.poisson(1.5, 60).astype(float)
CLASSES = (draw.random(60) < 0.5).astype(int)
TARGETS = {"gaussian": X[:, 0] + draw.normal(size=60), "binomial": CLASSES, "poisson": COUNTS,
           "gamma": COUNTS + 0.5}  # fmt: skip


def payload(family, coef, **changed):
    model = {"family": family, "offset": None, "weights": None, "start": False}
    return {**model, "coef": np.array(coef, dtype=float), **changed}


@pytest.mark.parametrize("family", TARGETS)
def test_honest_steps_rest_on_enough_rows(family):
    hostile = Hostile(X[1:], TARGETS[family][1:], "statistics")
    assert hostile.ask("glm.step", payload(family, [0, 0, 0], start=True)) != REFUSED
    assert hostile.ask("glm.step", payload(family, [0.3, 0.1, -0.1])) != REFUSED
    likely = {**payload(family, [0.3, 0.1, -0.1]), "scale": 1.0}
    del likely["start"]
    assert hostile.ask("glm.likelihood", likely) != REFUSED
    assert hostile.leak().rows >= 5


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_weights_that_single_out_a_row_get_nothing(family):
    """exp(η) is largest, or μ(1 − μ) is 0 for all others, at the row that is far out."""
    hostile = Hostile(X, TARGETS[family], "statistics")
    coef = {"poisson": [-20, 5, 5], "binomial": [-320, 40, 40]}[family]
    assert hostile.ask("glm.step", payload(family, coef)) == REFUSED


def test_sums_that_one_row_makes_endless_do_not_leave():
    """exp(η) is beyond all numbers at the row that is far out, and without it is not."""
    likely = {**payload("poisson", [-500, 160, 160]), "scale": 1.0}
    del likely["start"]
    owner = Owner(table(X, COUNTS), find_limits("statistics"))
    with np.errstate(all="ignore"):
        assert owner.ask("glm.likelihood", likely) == REFUSED
    assert not np.isfinite(owner.ungated["deviance"])
    assert "too few rows" in owner.why


def test_a_column_of_one_row_gets_nothing():
    marked = np.column_stack([X, np.arange(60) == 0])
    owner = Owner(table(marked, CLASSES), find_limits("statistics"))
    assert owner.ask("glm.step", payload("binomial", [0, 0, 0, 0])) == REFUSED


@pytest.mark.parametrize("others", [[0, 0], [0, 1]])
def test_weights_that_differ_at_one_row_get_nothing(others):
    """x2 and x3 are two columns of weights that differ at row 0, whatever the other columns are."""
    weights = draw.uniform(1, 2, 60)
    wide = np.column_stack([X[:, 0], draw.normal(size=60), weights, weights + (np.arange(60) == 0)])
    owner = Owner(table(wide, TARGETS["gaussian"]), find_limits("statistics"))
    asked = []
    for other, column in zip(others, (2, 3), strict=True):
        select = so.learn.FedSelect([other, column])
        select.fit(so.simulate(wide, TARGETS["gaussian"], clients=1))
        ask = payload("gaussian", [0, 0], weights=f"x{column}", start=True)
        asked.append(owner.ask("glm.step", ask, [select]))
    assert asked[0] != REFUSED
    assert asked[1] == REFUSED
    assert "differ from earlier ones" in owner.why


def test_payloads_that_do_not_fit_get_nothing():
    owner = Owner(table(X, CLASSES), find_limits("statistics"))
    for wrong in (
        payload("binomial", [0, 0]),
        payload("binomial", np.zeros(60)),
        payload("binomial", [0, 0, np.inf]),
        payload("cauchy", [0, 0, 0]),
        payload("binomial", [0, 0, 0], offset="nobody"),
        payload("binomial", [0, 0, 0], rows=[1]),
    ):
        assert owner.ask("glm.step", wrong) == REFUSED
    more = np.column_stack([X[:14], X[:14] ** 2])
    few = Owner(table(more, CLASSES[:14]), find_limits("statistics"))
    assert few.ask("glm.step", payload("binomial", np.zeros(5), start=True)) == REFUSED
    assert "distinct rows" in few.why


def test_evaluation_does_not_let_matrices_out():
    fed = so.simulate(X, TARGETS["gaussian"], clients=2, policy="evaluation")
    with pytest.raises(so.errors.SoleraError, match="not allowed"):
        so.FedGLM().fit(fed)
