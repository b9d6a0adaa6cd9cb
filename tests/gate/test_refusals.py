"""What a refusal may say: the gate's own words leave an agent, those of a task do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.gate.test_rules import SCHEMA, X, Y

import solera as so
from solera.core.component import describe_fitted
from solera.core.errors import GateRefusal, NotEnoughReplies, Refusal
from solera.core.task import task
from solera.serve.agent.error_codes import code_of
from solera.trust.declared import build_checked


@task("gate.quotes")
def quotes(client: Any, ask: Any) -> Any:
    raise Refusal(f"the first row is {client.data.X[0, 0]}")


def refused(policy: str, task: Any, payload: Any = None) -> BaseException:
    with (
        so.simulate(X, Y, clients=1, schema=SCHEMA, policy=policy) as fed,
        pytest.raises(NotEnoughReplies) as caught,
    ):
        fed.ask(task, payload).collect()
    (failure,) = caught.value.failures
    assert failure.kind == "refused"
    return failure.error


def test_a_task_that_refuses_is_not_quoted():
    error = refused("training", quotes)
    assert "the first row is" in str(error)
    assert code_of(error, "gate.quotes", SCHEMA).startswith("declined: ")


def test_the_gate_is_quoted():
    error = refused("evaluation", "linear.train", {})
    assert isinstance(error, GateRefusal)
    assert code_of(error, "linear.train", SCHEMA) == str(error)


def test_a_component_that_refuses_its_state_is_quoted_for_it_knows_no_rows():
    model = so.FedHEONN().fit(so.simulate(X, Y, clients=1, schema=SCHEMA))
    model.solution_ = np.zeros((7, 7))
    with pytest.raises(GateRefusal, match="solution_"):
        build_checked(describe_fitted(model), SCHEMA)
