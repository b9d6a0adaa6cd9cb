"""What averaging and selectors contribute: how far a row moves it, and what is withheld."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.clients import Client, Draws
from solera.core.component import describe_fitted
from solera.core.selection import Roster
from solera.core.task import find_task
from solera.trust.cells import Behind
from solera.trust.constructors import update
from solera.trust.contributions import Contribution

RNG = np.random.default_rng(4)
X = RNG.normal(size=(40, 3))
X[0] *= 1e3  # a row far out
Y = (X[:, 0] > X[:, 1]).astype(np.int64)
CLIP = 0.3


# --- how far one row moves numbers ---


def contributions(task: str, ask: Any, X: Any, Y: Any, schema: Any) -> dict[str, Contribution]:
    """What a client with these rows gives to an ask."""
    data = so.data.FederatedData(X, Y, np.array([0, len(Y)]), schema=schema)
    client = Client(0, data, Draws(0, task, 0), {})
    given: dict[str, Contribution] = find_task(task)(client, ask)
    return given


def vector(numbers: Any) -> Any:
    if isinstance(numbers, dict):
        return np.concatenate([vector(value) for value in numbers.values()])
    return np.ravel(np.asarray(numbers, dtype=float))


def linear_ask(**change: Any) -> dict[str, Any]:
    start = {"coef": np.zeros((3, 2)), "intercept": np.zeros(2), "classes": np.array([0, 1])}
    how = {"loss": "softmax", "lr": 0.5, "epochs": 2, "batch_size": 8, "l2": 0.01}
    return {**start, **how, **change}


def model_ask(rounds: int) -> dict[str, Any]:
    model = so.FedLinear(rounds=rounds).fit(so.simulate(X, Y, clients=2), progress=False)
    return describe_fitted(model.for_prediction())


ASKS = {
    "the first training": ("linear.train", lambda: linear_ask()),
    "a later training": ("linear.train", lambda: linear_ask(coef=RNG.normal(size=(3, 2)))),
    "one step": ("linear.train", lambda: linear_ask(epochs=1, batch_size=None)),
    "values at first": ("select.value", lambda: {"model": model_ask(1)}),
    "values later": ("select.value", lambda: {"model": model_ask(5)}),
    "losses": ("select.losses", lambda: losses_ask()),
    "rows": ("select.rows", lambda: None),
}


def losses_ask() -> dict[str, Any]:
    learner = model_ask(2)
    coef = learner["learned"]["coef_"]
    states = [{"coef_": scale * coef} for scale in (0.0, 1.0, 3.0)]
    return {"learner": learner, "states": states, "part": "train"}


@pytest.mark.parametrize("name", ASKS)
def test_a_row_moves_what_is_contributed_by_its_sensitivity_at_most(name):
    task, make = ASKS[name]
    ask, schema = make(), so.simulate(X, Y, clients=1).schema
    whole = contributions(task, ask, X, Y, schema)
    for left_out in range(len(Y)):
        rest = np.delete(np.arange(len(Y)), left_out)
        without = contributions(task, ask, X[rest], Y[rest], schema)
        for entry, contribution in whole.items():
            before = vector(contribution.bounded(CLIP).numbers(Behind(40)))
            after = vector(without[entry].bounded(CLIP).numbers(Behind(39)))
            most = contribution.sensitivity("l2", CLIP)
            assert np.linalg.norm(before - after) <= most * (1 + 1e-12), (entry, left_out)


def test_a_row_may_turn_an_update_round():
    """Both ends of a diameter: to add noise for one radius would be half of what is promised."""
    one, other = update({"w": np.array([5.0, 0.0])}), update({"w": np.array([-0.4, 0.0])})
    moved = vector(one.bounded(CLIP).numbers(Behind(9))) - vector(
        other.bounded(CLIP).numbers(Behind(9))
    )
    assert np.linalg.norm(moved) == pytest.approx(2 * CLIP)
    assert one.sensitivity("l2", CLIP) == pytest.approx(2 * CLIP)


# --- what is withheld ---

SIZES = np.array([100, 60, 100])
ROWS = RNG.normal(size=(260, 3))
CLASSES = (ROWS[:, 0] + 0.4 * RNG.normal(size=260) > 0).astype(np.int64)


def federation(policy: Any, **options: Any) -> Any:
    data = so.data.FederatedData(ROWS, CLASSES, np.concatenate([[0], np.cumsum(SIZES)]))
    return so.simulate(data.split(validation=0.4), policy=policy, seed=1, **options)


def valued(fed: Any, **rows: Any) -> Any:
    selector = so.selectors.GreedyShapley(**rows)
    return so.FedLinear(rounds=2, batch_size=None, select=selector).fit(fed, progress=False)


def roster(fed: Any) -> Roster:
    model = so.FedLinear(rounds=1).fit(federation(None), progress=False)
    return Roster(3, 2, None, None, 0, fed, model)


@pytest.mark.parametrize("policy", ["trusted", None])
def test_updates_are_masked_as_in_the_open(policy):
    """Masked replies say of every number that it is there; a mean takes these."""
    pytest.importorskip("cryptography")
    models = [
        so.FedLinear(rounds=2).fit(federation(limits, secure=secure), progress=False)
        for limits, secure in ((policy, True), (None, False))
    ]
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, atol=1e-6)
