"""Every learner with honest parameters works under the policy it belongs to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import TOPOLOGIES, learner_cases

import solera as so
from solera.core.errors import SoleraError
from solera.core.schema import Feature, Schema, infer_target
from solera.learn.averaging.base import Averaging
from solera.trust.gate import POLICIES

CASES = {name: (make, target) for name, make, target in learner_cases()}
TRUSTED = [
    *(
        name
        for name in CASES
        if name.startswith(("FedBagging", "FedForest", "FederatedTree", "SimFL"))
        and "counts" not in name
    ),
    "FedHistGBDT-classes",
    "FedHistGBDT-numbers",
    "FedKMeans-classes",
    "FedKMeans-numbers",
    "FedKMeans-batches-labels",
    "FedKMeans-local-classes",
]
"""Trees, gradients and seeds drawn from rows, which without noise need trust."""
CLIENTS = 3


def rows(target: str, number: int) -> tuple[Any, Any, Schema]:
    """Like the rows of the other laws, but as many as the rules need."""
    draw = np.random.default_rng(5)
    X = draw.normal(size=(number, 5))
    X[:, 4] = draw.integers(0, 2, number)
    scores = X[:, :3] + 0.3 * draw.normal(size=(number, 3))
    y: Any = scores[:, 0]
    if target == "tokens":
        X[:, :4] = np.floor(np.abs(X[:, :4]) * 6)
    if target in ("classes", "tokens"):
        y = np.array(["no", "maybe", "yes"])[scores.argmax(axis=1)]
    if target == "labels":
        y = (scores > 0.2).astype(np.int64)
    if target == "survival":
        y = np.column_stack([draw.exponential(np.exp(X[:, 0] / 4)), draw.integers(0, 2, number)])
    features = (
        *(Feature(f"x{i}") for i in range(4)),
        Feature("c", "categorical", ("False", "True")),
    )
    kind, classes, outputs = infer_target(y)
    return X, y, Schema(features, "numbers" if target == "survival" else kind, classes, outputs)


def fitted(name: str, policy: str | None) -> tuple[Any, Any]:
    """The learner fitted under a policy, and the rows it learned from."""
    make, target = CASES[name]
    X, y, schema = rows(target, 900 if policy == "training" else 120)
    learner = make()
    topology = TOPOLOGIES.get(type(learner), lambda: None)()
    options = {} if topology is None else {"topology": topology}
    limits = None if policy is None else replace(POLICIES[policy], budget=(50.0, 1e-3))
    with so.simulate(X, y, clients=CLIENTS, seed=0, schema=schema, policy=limits, **options) as fed:
        model = learner.fit(fed, progress=False)
    return (model.at(min(model._client_parts.parts)) if model.is_personal else model), X


@pytest.mark.parametrize("name", CASES)
def test_learners_work_behind_the_gate(name):
    trusted = name in TRUSTED or isinstance(CASES[name][0](), Averaging)
    model, X = fitted(name, "trusted" if trusted else "training")
    if not hasattr(model, "predict"):
        return
    answers = model.predict(X)
    assert len(answers) == len(X)
    if trusted:  # who may read rows gets replies as they are
        np.testing.assert_array_equal(answers, fitted(name, None)[0].predict(X))
    elif np.asarray(answers).dtype.kind == "f":
        assert np.isfinite(answers).all()


@pytest.mark.parametrize("name", TRUSTED)
def test_what_needs_trust_is_refused_without(name):
    with pytest.raises(SoleraError):
        fitted(name, "training")


@pytest.mark.parametrize("name", CASES)
def test_what_is_withheld_is_said_or_ends_the_fit(name):
    """Cells of up to 24 rows are withheld: the result says so, or there is none."""
    make, target = CASES[name]
    X, y, schema = rows(target, 240)
    limits = replace(
        POLICIES["training"], min_count=25, min_rows=1, parameters=1e6, gram_rows=0.1, categories=99
    )
    learner = make()
    topology = TOPOLOGIES.get(type(learner), lambda: None)()
    options = {} if topology is None else {"topology": topology}
    with so.simulate(X, y, clients=CLIENTS, seed=0, schema=schema, policy=limits, **options) as fed:
        try:
            model = learner.fit(fed, progress=False)
        except SoleraError:
            return
        withheld = [record.task for record in fed.meter.records if record.absent]
    said = [line for line in (model._trained_with or {}).get("warnings", ()) if "withh" in line]
    assert bool(withheld) == bool(said), withheld
    for line in said:
        assert line in model.card()
        history = model.history_
        assert not history or line in history[-1]["warnings"]
