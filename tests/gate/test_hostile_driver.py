"""A driver that wants rows, with every installed task and every named policy but ``trusted``.

It sends payloads made from the declarations, payloads that break them, transformers and models with
states of its choice, and subtracts what it gets. No number, and no difference of two, may rest on
fewer than ``min_count`` rows, measured by leaving every row out in turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.gate.hostile_payloads import Payloads
from tests.gate.measure import REFUSED, Hostile

import solera as so
from solera.core.gate import POLICIES
from solera.core.schema import Feature, Schema
from solera.core.task import installed_tasks

ROWS = 40
TASKS = sorted(
    name for name, task in installed_tasks().items() if task.one.__module__.startswith("solera.")
)
NAMED = [name for name in POLICIES if name not in ("trusted", "upload", "vertical")]
CUTS = [18, 19, 21, ROWS - 2]
"""After which row of the first column models cut: some of them differ in one row or two."""
ASKED = {"asks": 0, "answers": 0}


def rows_of(target: str, seed: int = 0) -> tuple[Any, Any, Schema]:
    """A small table with a numeric, a rare, a skewed and a categorical column."""
    rng = np.random.default_rng(seed)
    X = np.stack(
        [
            rng.normal(size=ROWS),
            (rng.random(ROWS) < 0.06).astype(float),
            np.exp(2 * rng.normal(size=ROWS)),
            rng.integers(3, size=ROWS).astype(float),
        ],
        axis=1,
    )
    features = (
        Feature("age"),
        Feature("rare"),
        Feature("cost"),
        Feature("kind", "categorical", ("a", "b", "c")),
    )
    score = X[:, 0] + 0.3 * X[:, 3] + rng.normal(size=ROWS)
    if target == "classes":
        y: Any = (score > 0.3).astype(np.int64)
        return X, y, Schema(features, "classes", np.array([0, 1]), 2)
    if target == "labels":
        y = np.stack([score > 0, score > 0.8], axis=1).astype(np.int64)
        return X, y, Schema(features, "labels", np.array(["l0", "l1"]), 2)
    return X, score, Schema(features, "numbers", np.empty(0, np.int64), 1)


def steps_of(schema: Schema, X: Any, rng: Any) -> list[Any]:
    """No preparation, or a scaler with a state of the driver's choice."""
    if rng.random() < 0.6:
        return []
    scaler = so.FedScaler()
    scaler.schema_ = schema
    row = X[rng.integers(len(X))]
    scaler.mean_ = np.where(rng.random(4) < 0.5, row, 0.0)
    scaler.scale_ = 10.0 ** rng.uniform(-8, 3, size=4)
    return [scaler]


def models_of(X: Any, y: Any, schema: Schema) -> list[Any]:
    """Models to send, with states that single out rows where that can be declared."""
    fed = so.simulate(X, y, clients=1, schema=schema)
    models = [so.FedLinear(rounds=1, lr=0.01).fit(fed) for _ in range(1 + len(CUTS))]
    values = np.sort(X[:, 0])
    for sharp, cut in zip(models[1:], CUTS, strict=True):
        sharp.coef_ = np.zeros_like(sharp.coef_)
        sharp.coef_[0, 0] = 1e7
        sharp.intercept_ = np.zeros_like(sharp.intercept_)
        sharp.intercept_[0] = -1e7 * values[cut : cut + 2].mean()
    return models


@pytest.mark.parametrize("target", ["classes", "labels", "numbers"])
@pytest.mark.parametrize("name", TASKS)
def test_no_answer_rests_on_a_few_rows(name, target):
    payloads = 3 if target == "classes" else 2
    attack(name, target, ["training"], payloads, seed=sum(map(ord, name)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("target", ["classes", "labels", "numbers"])
@pytest.mark.parametrize("name", TASKS)
def test_no_answer_rests_on_a_few_rows_however_long_one_asks(name, target, seed):
    attack(name, target, NAMED, payloads=12, seed=1000 * seed + sum(map(ord, name)))


def attack(name: str, target: str, policies: list[str], payloads: int, seed: int) -> None:
    task = installed_tasks()[name]
    X, y, schema = rows_of(target)
    rng = np.random.default_rng(seed)
    makes = Payloads(X, y, schema, models_of(X, y, schema), seed)
    for policy in policies:
        hostile = Hostile(X, y, policy, schema)
        while len(hostile.answers) < payloads and hostile.asks < 10 * payloads:
            broken = hostile.asks % 4 == 3
            payload = makes.broken(task.ask) if broken else makes.draw(task.ask)
            hostile.ask(name, payload, steps_of(schema, X, rng))
        ASKED["asks"] += hostile.asks
        ASKED["answers"] += len(hostile.answers)
        leak = hostile.leak()
        assert leak.rows >= 5 - 1e-6, f"{name} under {policy!r}: {leak.rows:.2f} rows, {leak.where}"


def test_every_task_says_what_it_takes_and_what_leaves():
    silent = [name for name in TASKS if installed_tasks()[name].release is None]
    assert not silent, f"add release=[…] to {silent}"


def test_how_many_asks_were_tried(record_property):
    """Printed with ``-s`` or ``-rP``; a suite that asked nothing proves nothing."""
    record_property("asks", ASKED["asks"])
    print(f"{ASKED['asks']} asks, {ASKED['answers']} answered")


def test_refusals_are_named():
    X, y, schema = rows_of("classes")
    hostile = Hostile(X, y, "training", schema)
    assert hostile.ask("linear.train", {"coef": np.zeros((ROWS, 2))}) == REFUSED
    assert "coef has 40 where the columns are 4" in hostile.whole.why
