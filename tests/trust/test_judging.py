"""Evaluations and descriptions: what a row changes, and what is said where numbers are withheld."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.clients import Client, Draws
from solera.core.component import describe_fitted
from solera.core.schema import Feature, Schema
from solera.core.task import find_task
from solera.trust.cells import Behind
from solera.trust.contributions import entries_of
from solera.trust.policy import Policy

RNG = np.random.default_rng(5)
ROWS = 60
X = RNG.normal(size=(ROWS, 3))
Y = (X[:, 0] + RNG.normal(size=ROWS) > 0).astype(np.int64)
LEAST = 5
TARGETS: dict[str, Any] = {
    "classes": Y,
    "labels": (X[:, :2] + RNG.normal(size=(ROWS, 2)) > 0).astype(np.uint8),
    "numbers": X[:, 0] + RNG.normal(size=ROWS),
}


def fitted(y: Any) -> Any:
    learner = so.FedHEONN(activation="linear") if y.dtype.kind == "f" else so.FedLinear(rounds=2)
    return learner.fit(so.simulate(X, y, clients=1), progress=False)


def payload(model: Any, **more: Any) -> dict[str, Any]:
    return {"model": describe_fitted(model.for_prediction()), "part": "train", **more}


GRID = {"bins": 200, "threshold": 0.5, "quantiles": np.array([0.5])}
TOWNS = ("Lugo", "Ourense", "Vigo")
PLACES = Schema(
    (Feature("a"), Feature("b"), Feature("town", "categorical", TOWNS)), "classes", np.arange(2), 2
)
PEOPLE = np.column_stack([X[:, :2], np.repeat([1, 0, 2], [3, 27, 30])])
PEOPLE[5:8, 0] = np.nan


def cells(*towns: str) -> dict[str, Any]:
    edges = np.array([-1.0, 0.0, 1.0])
    columns = [{"categories": [], "edges": edges}] * 2
    columns = [*columns, {"categories": list(towns), "edges": np.empty(0)}]
    return {"columns": columns, "classes": np.array([0, 1])}


def asks() -> dict[str, tuple[str, Any, Any, Any, Any]]:
    """Task, payload, rows, target and schema of every task here whose reply rows give."""
    made = {}
    for kind, y in TARGETS.items():
        model = fitted(y)
        made[f"evaluate {kind}"] = ("learner.evaluate", payload(model), X, y, None)
        made[f"scores {kind}"] = ("learner.score_counts", payload(model, **GRID), X, y, None)
    made["describe"] = ("describe.counts", cells(*TOWNS), PEOPLE, Y, PLACES)
    return made


ASKS = asks()


def contributions(task: str, ask: Any, rows: Any, y: Any, schema: Any) -> dict[str, Any]:
    fed = so.simulate(rows, y, clients=1, schema=schema)
    client = Client(0, fed.engine.source, Draws(0, task, 0), {})
    return dict(entries_of(find_task(task)(client, ask)))


@pytest.mark.parametrize("name", ASKS)
def test_a_row_changes_no_more_than_is_derived(name):
    """Each row taken out in turn, with noise's bounds on rows; counts and sums, in both norms."""
    task, ask, rows, y, schema = ASKS[name]
    clip = 0.7

    def numbers(kept: Any) -> dict[str, Any]:
        leaves = contributions(task, ask, rows[kept], y[kept], schema)
        behind = Behind(len(kept))
        return {
            entry: np.asarray(leaf.bounded(clip).numbers(behind), float)
            for entry, leaf in leaves.items()
        }

    everyone = np.arange(ROWS)
    whole = numbers(everyone)
    others = [numbers(np.delete(everyone, i)) for i in everyone]
    derived = contributions(task, ask, rows, y, schema)
    for entry, leaf in derived.items():
        changes = [(whole[entry] - fewer[entry]).ravel() for fewer in others]
        for norm, order in (("l1", 1), ("l2", 2)):
            most = max(np.linalg.norm(change, order) for change in changes)
            assert most <= 1.000 * leaf.sensitivity(norm, clip) + 1e-9, (entry, norm)
        if entry == "rows":
            assert most == 1


# --- withheld on purpose ---


@so.metrics.row_metric("tests_ones")
def ones(y: Any, predicted: Any) -> Any:
    return np.ones(len(y))


# --- descriptions ---


def test_noise_on_counts_is_charged_and_worth_what_it_says():
    fed = so.simulate(PEOPLE, Y, clients=1, schema=PLACES)
    privacy = {"mechanism": "gaussian", "noise": 3.0, "share": 1}
    noisy = [
        fed.ask("describe.counts", cells(*TOWNS) | {"privacy": privacy}, round=i).collect()[0]
        for i in range(200)
    ]
    right = fed.ask("describe.counts", cells(*TOWNS)).collect()[0]
    off = np.array([reply["columns"]["2"] - right["columns"]["2"] for reply in noisy])
    entries = 5  # rows, three columns and classes, each of which a row changes by one
    assert off.std() == pytest.approx(3.0 * np.sqrt(entries), rel=0.1)
    limited = Policy("noise", budget=(0.5, 1e-5))
    policed = so.simulate(PEOPLE, Y, clients=3, schema=PLACES, policy=limited)
    with pytest.raises(so.errors.NotEnoughReplies, match="the privacy budget is"):
        policed.ask("describe.counts", cells(*TOWNS) | {"privacy": privacy}).collect()


# --- sealed messages ---
