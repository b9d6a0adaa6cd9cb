"""Sums of generalised linear models behind the gate: all of them, or an error that says what."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import NotEnoughReplies

draw = np.random.default_rng(5)
X = np.column_stack([draw.normal(size=(200, 2)), draw.random(200) < 0.5])
COUNTS = draw.poisson(1.5, 200).astype(float)
CLASSES = (draw.random(200) < 0.5).astype(int)
TARGETS = {"gaussian": X[:, 0] + draw.normal(size=200), "binomial": CLASSES, "poisson": COUNTS,
           "gamma": COUNTS + 0.5}  # fmt: skip


def payload(family, coef, **changed):
    model = {"family": family, "offset": None, "weights": None, "start": False}
    return {**model, "coef": np.array(coef, dtype=float), **changed}


def fed(rows=X, y=CLASSES, clients=2, policy="statistics"):
    return so.simulate(rows, y, clients=clients, seed=0, policy=policy)


def refusal(rows, y, ask):
    replies = fed(rows, y, clients=1).ask("glm.step", ask, quorum=0)
    assert list(replies) == []
    return replies.failures[0].reason


@pytest.mark.parametrize("family", TARGETS)
def test_estimates_leave_whole_or_not_at_all(family):
    """A mark that three rows of a client have is not told, and nothing is estimated without it."""
    y = TARGETS[family]
    plain = so.FedGLM(family).fit(so.simulate(X, y, clients=2, seed=0))
    gated = so.FedGLM(family).fit(fed(y=y))
    assert np.array_equal(gated.params_, plain.params_)
    rare = X.copy()
    rare[:, 2] = np.arange(200) < 6
    with pytest.raises(
        NotEnoughReplies, match=r"fewer persons than min_count have 'x2'.*FedSelect"
    ):
        so.FedGLM(family).fit(fed(rare, y))


def test_two_columns_that_few_have_together_are_named():
    rare = np.column_stack([X[:, :1], X[:, 2], (X[:, 2] == 0) | (np.arange(200) < 5)])
    with pytest.raises(NotEnoughReplies, match="min_count have both 'x1' and 'x2'"):
        so.FedGLM().fit(fed(rare, TARGETS["gaussian"], clients=1))


@pytest.mark.parametrize("few", [0, 1])
def test_a_few_events_are_not_told(few):
    """Nor a few rows without: Σ z (y − μ) counts them."""
    y = np.where(np.arange(200) % 50 == 0, few, 1 - few)
    with pytest.raises(NotEnoughReplies, match="min_count have '1' or the others"):
        so.FedGLM("binomial").fit(fed(y=y, clients=1))


def test_payloads_that_do_not_fit_get_nothing():
    for wrong in (
        payload("binomial", [0, 0]),
        payload("binomial", np.zeros(60)),
        payload("binomial", [0, 0, 0, np.inf]),
        payload("cauchy", [0, 0, 0, 0]),
        payload("binomial", [0, 0, 0, 0], offset="nobody"),
        payload("binomial", [0, 0, 0, 0], rows=[1]),
    ):
        assert refusal(X, CLASSES, wrong)


def test_few_rows_for_the_columns_tell_nothing():
    ask = payload("binomial", np.zeros(4), start=True)
    for rows in (11, 12):
        (reply,) = list(fed(X[:rows], CLASSES[:rows], clients=1).ask("glm.step", ask))
        assert ("gram" in reply.absent and reply.absent["gram"].all()) == (rows == 11)
    with pytest.raises(NotEnoughReplies, match="fewer persons than min_count have"):
        so.FedGLM("binomial").fit(fed(X[:11], CLASSES[:11], clients=1))


def test_evaluation_does_not_let_matrices_out():
    with pytest.raises(so.errors.SoleraError, match="not allowed"):
        so.FedGLM().fit(fed(y=TARGETS["gaussian"], policy="evaluation"))
