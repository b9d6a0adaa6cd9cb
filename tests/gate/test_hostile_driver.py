"""A driver that wants rows, with every installed task and every named policy but ``trusted``.

It sends payloads made from the declarations, payloads that break them, transformers and models with
states of its choice, and subtracts what it gets. No number, and no difference of two, may rest on
fewer than ``min_count`` rows, measured by leaving every row out in turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gate.fitting_payloads import KEY
from tests.gate.hostile_payloads import Payloads
from tests.gate.measure import REFUSED, Hostile

import solera as so
from solera.trust.gate import POLICIES
from solera.core.schema import Feature, Schema
from solera.core.task import installed_tasks
from solera.privacy.he import keys

ROWS = 40
TASKS = sorted(
    name for name, task in installed_tasks().items() if task.one.__module__.startswith("solera.")
)
NAMED = [name for name in POLICIES if name not in ("trusted", "upload", "vertical")]
CUTS = [18, 19, 21, ROWS - 2]
"""After which row of the first column models cut: some of them differ in one row or two."""
EXACT = {"glm.step", "glm.likelihood", "cox.step", "heonn.statistics"}
"""Tasks that answer of columns alone in which many rows differ."""
EVEN = [0, 3]
SURVIVAL = {"cox.step", "survival.counts"}
"""Tasks whose target is a time and an event."""
OTHERS = ("boost.", "regression.", "secure.", "split.", "vertical.")
"""Steps that go on from what other parties sent: without any they have nothing to say."""
ASKED: dict[str, list[int]] = {}
"""By task, how many asks were tried and answered."""


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
    if target == "survival":
        times = np.round(np.exp(rng.normal(size=ROWS) - 0.5 * X[:, 0]), 1) + 0.1
        y = np.stack([times, rng.random(ROWS) < 0.7], axis=1).astype(float)
        return X, y, Schema(features, "numbers", np.empty(0, np.int64), 2)
    if target == "labels":
        y = np.stack([score > 0, score > 0.8], axis=1).astype(np.int64)
        return X, y, Schema(features, "labels", np.array(["l0", "l1"]), 2)
    return X, score, Schema(features, "numbers", np.empty(0, np.int64), 1)


def steps_of(name: str, schema: Schema, X: Any, rng: Any) -> list[Any]:
    """No preparation, a scaler with a state of the driver's choice, or some columns alone."""
    if name in EXACT and rng.random() < 0.8:
        select = so.learn.FedSelect(sorted(rng.choice(EVEN, rng.integers(1, 3), replace=False)))
        return [select.fit(so.simulate(X, X[:, 0], clients=1, schema=schema))]
    if rng.random() < 0.6:
        return []
    scaler = so.FedScaler()
    scaler.schema_ = schema
    row = X[rng.integers(len(X))]
    scaler.mean_ = np.where(rng.random(4) < 0.5, row, 0.0)
    scaler.scale_ = 10.0 ** rng.uniform(-8, 3, size=4)
    return [scaler]


def models_of(name: str, X: Any, y: Any, schema: Schema) -> list[Any]:
    """Models to send, with states that single out rows where that can be declared."""
    numbers = tuple(Feature(feature.name) for feature in schema.features)
    fed = so.simulate(X, y, clients=1, schema=replace(schema, features=numbers))
    models = [so.FedLinear(rounds=1, lr=0.01).fit(fed) for _ in range(1 + len(CUTS))]
    for model in models:
        model.schema_ = schema  # a driver writes what it likes
    values = np.sort(X[:, 0])
    for sharp, cut in zip(models[1:], CUTS, strict=True):
        sharp.coef_ = np.zeros_like(sharp.coef_)
        sharp.coef_[0, 0] = 1e7
        sharp.intercept_ = np.zeros_like(sharp.intercept_)
        sharp.intercept_[0] = -1e7 * values[cut : cut + 2].mean()
    return models


def targets_of(name: str) -> list[str]:
    return ["survival"] if name in SURVIVAL else ["classes", "labels", "numbers"]


@pytest.fixture(scope="module", autouse=True)
def owner_files(tmp_path_factory):
    """A key pair and what the machine can do, as owners have them."""
    folder = tmp_path_factory.mktemp("owner")
    (folder / "resources.toml").write_text("samples_per_second = 10.0\nbits_per_second = 10.0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOLERA_KEYS", str(folder / "keys"))
        patch.setenv("SOLERA_RESOURCES", str(folder / "resources.toml"))
        keys.create(folder / "keys", KEY)
        yield


@pytest.mark.parametrize(
    ("name", "target"), [(name, target) for name in TASKS for target in targets_of(name)]
)
def test_no_answer_rests_on_a_few_rows(name, target):
    payloads = 3 if target == "classes" else 2
    attack(name, target, ["training"], payloads, seed=sum(map(ord, name)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("name", "target"), [(name, target) for name in TASKS for target in targets_of(name)]
)
def test_no_answer_rests_on_a_few_rows_however_long_one_asks(name, target, seed):
    attack(name, target, NAMED, payloads=12, seed=1000 * seed + sum(map(ord, name)))


def attack(name: str, target: str, policies: list[str], payloads: int, seed: int) -> None:
    X, y, schema = rows_of(target)
    for number, policy in enumerate(policies):
        hostile = Hostile(X, y, policy, schema)
        drive(hostile, name, X, y, schema, seed + 100 * number, payloads, 10 * payloads)
        tried = ASKED.setdefault(name, [0, 0])
        tried[0] += hostile.asks
        tried[1] += len(hostile.answers)
        leak = hostile.leak()
        assert leak.rows >= 5 - 1e-6, f"{name} under {policy!r}: {leak.rows:.2f} rows, {leak.where}"


def drive(
    hostile: Hostile, name: str, X: Any, y: Any, schema: Schema, seed: int, answers: int, asks: int
) -> None:
    """Ask until there are so many answers, or so many asks."""
    task, rng = installed_tasks()[name], np.random.default_rng(seed)
    makes = Payloads(X, y, schema, models_of(name, X, y, schema), seed)
    while len(hostile.answers) < answers and hostile.asks < asks:
        steps = steps_of(name, schema, X, rng)
        prepared = steps[-1].transform_schema(schema) if steps else schema
        broken = hostile.asks % 4 == 3
        payload = makes.broken(task, prepared) if broken else makes.draw(task, prepared)
        hostile.ask(name, payload, steps)


def test_every_task_says_what_it_takes_and_what_leaves():
    silent = [name for name in TASKS if installed_tasks()[name].release is None]
    assert not silent, f"add release=[…] to {silent}"


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_every_task_that_a_named_policy_lets_out_is_answered(name):
    """A fuzz that a task never answers measures nothing of it."""
    task = installed_tasks()[name]
    allowed = [
        policy
        for policy in NAMED
        if all(release.can_leave(POLICIES[policy]) for release in task.release)
    ]
    if name.startswith(OTHERS) and name != "secure.keys":
        allowed = []
    answered = {
        policy: sum(answers(name, t, policy) for t in targets_of(name)) for policy in allowed
    }
    assert all(answered.values()), f"{name} was never answered under one of {answered}"


def answers(name: str, target: str, policy: str) -> int:
    """How many of fifty asks are answered."""
    X, y, schema = rows_of(target)
    hostile = Hostile(X, y, policy, schema, rows=[])
    drive(hostile, name, X, y, schema, seed=0, answers=50, asks=50)
    return len(hostile.answers)


def test_how_many_asks_were_tried(record_property):
    """Printed with ``-s`` or ``-rP``; a suite that asked nothing proves nothing."""
    record_property("asks", sum(asks for asks, _ in ASKED.values()))
    for name, (asks, answers) in sorted(ASKED.items()):
        print(f"{name:30} {asks:6,} asks, {answers:6,} answered")


def test_refusals_are_named():
    X, y, schema = rows_of("classes")
    hostile = Hostile(X, y, "training", schema)
    assert hostile.ask("linear.train", {"coef": np.zeros((ROWS, 2))}) == REFUSED
    assert "coef has 40 where the columns are 4" in hostile.whole.why
