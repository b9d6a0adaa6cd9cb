"""Every ask is compared with the description of its job: that, and only that, was approved."""

from __future__ import annotations

from typing import Any

from solera.core.engine import Ask
from solera.core.errors import Refusal
from solera.core.plan import PREPARE, Plan, objection
from solera.serve import wire
from solera.serve.agent.policy_rules import components_in
from solera.serve.description import Description

_SAID = ("job", "kind", "owner", "seed")
"""What the coordinator says of a job with each ask, and the description once for all."""


def check_said(pending: wire.PendingAsk, description: Description, federation: str) -> None:
    """Refuse an ask of a job that is not the one described."""
    if description.federation != federation:
        raise Refusal("the job's description is of another federation")
    for name in _SAID:
        if getattr(description, name) != getattr(pending, name):
            raise Refusal(f"the job's description names another {name}")


def check_planned(ask: Ask, client: int, plan: Plan) -> int:
    """Refuse an ask that the plan does not announce; the most asks for its task."""
    for step in ask.prepare:
        for name, params in components_in(step.description):
            _check(plan, f"{PREPARE}{name}", 1, params)
    _check(plan, ask.task, ask.version, ask.payload_for(client))
    return next(entry.most for entry in plan if entry.task == ask.task)


def _check(plan: Plan, task: str, version: int, payload: Any) -> None:
    if departs := objection(plan, {}, task, version, payload):
        raise Refusal(f"not what the job's description says: {departs}")
