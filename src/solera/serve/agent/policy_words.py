"""A policy in words: what it allows, what leaves under it, and what remains possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solera.serve.agent.policy import Policy


def describe(policy: Policy) -> str:
    """The rules of a policy, one a line."""
    approval, limits = policy.approval, policy.limits
    most, budget = policy.output.max_bytes, policy.privacy
    approvers = f"by {' or '.join(approval.approvers)}, for {approval.days:g} days"
    renamed = [f"{name} from {column.source}" for name, column in policy.columns.items()]
    lines = [
        f"policy {policy.hash()[:12]}{f', {policy.named!r}' if policy.named else ''}: "
        "what is not allowed is refused",
        f"  data      at least {limits.min_rows:,} {'persons' if limits.unit else 'rows'}; "
        f"columns: {', '.join(policy.data.columns) or 'all'}"
        + "".join(f"; {said}" for said in renamed),
        f"  approval  {approvers if approval.mode == 'ask' else 'not needed'}",
        f"  hours     {policy.hours or 'at any time'}",
        f"  output    {'any size' if most is None else f'at most {most:,} bytes'}; "
        f"numbers from {limits.min_count} {'persons' if limits.unit else 'rows'}",
        "  privacy   "
        + (f"ε = {budget.epsilon:g}, δ = {budget.delta:g}" if budget else "no budget")
        + "; no ledger yet, so tasks that spend of it are refused",
    ]
    rules = policy.tasks or (("all that may leave",) if policy.named else ("none",))
    return "\n".join([*lines, *(f"  task      {rule}" for rule in rules)])
