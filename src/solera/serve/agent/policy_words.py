"""A policy in words: what it allows, what leaves under it, and what remains possible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from solera.core.task import Task, installed_tasks
from solera.trust.gate import ReleaseLimits
from solera.trust.release import Kind, releases_of

if TYPE_CHECKING:
    from solera.serve.agent.policy import Policy


def describe(policy: Policy) -> str:
    """The rules of a policy, one a line."""
    approval, limits = policy.approval, policy.limits
    most, budget = policy.output.max_bytes, policy.privacy
    approvers = f"by {' or '.join(approval.approvers)}, for {approval.days:g} days"
    whose = "persons" if limits.unit else "rows"
    renamed = [f"{name} from {column.source}" for name, column in policy.columns.items()]
    lines = [
        f"policy {policy.hash()[:12]}{f', {policy.named!r}' if policy.named else ''}: "
        "what is not allowed is refused",
        f"  data      at least {limits.min_rows:,} {whose}; "
        f"columns: {', '.join(policy.data.columns) or 'all'}"
        + "".join(f"; {said}" for said in renamed),
        f"  approval  {approvers if approval.mode == 'ask' else 'not needed'}",
        f"  hours     {policy.hours or 'at any time'}",
        f"  output    {'any size' if most is None else f'at most {most:,} bytes'}; "
        + ("numbers as they are" if limits.trusted else f"numbers from {limits.min_count} {whose}")
        + ("; in secure sums only" if policy.output.only_sums else "")
        + ("; a sealed copy of each reply is kept" if policy.output.keep_copies else ""),
        "  privacy   "
        + (f"ε = {budget.epsilon:g}, δ = {budget.delta:g}" if budget else "no budget")
        + (", over all jobs, for what leaves with noise" if budget else ""),
    ]
    rules = policy.tasks or (("all that may leave",) if policy.named else ("none",))
    return "\n".join([*lines, *(f"  task      {rule}" for rule in rules)])


# --- what leaves, and what remains possible ---

_LEAVES: dict[Kind, str] = {
    "facts": "Facts that do not depend on rows, such as versions and names of columns, leave.",
    "cells": "Counts and sums leave when at least {least} {rows} stand behind every number; "
    "smaller cells are withheld with their sums, and so many others that no total of the same "
    "answer gives them back.",
    "categories": "Names of categories and classes leave when at least {least} {rows} have them, "
    "or when the policy lists them; at most {categories} of a column and {share:.0%} of the rows.",
    "extremes": "Smallest and largest values never leave; the policy's [bounds] are told instead.",
    "gram": "Gram matrices (FedHEONN, FedGLM) leave when there are {gram:g} {rows} per column, in "
    "every class and patch.",
    "update": "Models after training leave on at least {min_rows} {rows}, with at most "
    "{parameters:.0%} as many parameters as {rows}. Larger ones, such as neural networks, do not "
    "leave but with noise.",
    "tree": "Counts at the nodes of a tree leave in cells of at least {least} {rows}: FedID3, and "
    "FederatedTree(by_counts=True), whose thresholds are on an agreed grid. Trees that a client "
    "grows by itself (FederatedTree without by_counts, FedForest, SimFL) do not leave: they need "
    'policy = "trusted". Sums of gradients (FedHistGBDT) do not leave but with noise, as far as '
    "[privacy] allows.",
    "cipher": "Ciphertexts and masked shares leave when what is inside would be allowed to.",
    "rows": "ROWS LEAVE, or numbers from which they can be computed.",
}
_TRUSTED = (
    "THE DRIVER CAN READ ROWS: counts of any size, model updates, whole trees and gradients leave "
    "as they are. From the update of a neural network, or of many outputs, single rows can be "
    "computed. No number is withheld. Name this policy only "
    "for a driver who may see the rows anyway."
)
_REMAINS = (
    "What remains possible without noise: each answer is judged by itself, and answers are not "
    "compared with those that left before. WHO CHOOSES WHAT IS ASKED CAN COMPUTE SINGLE ROWS FROM "
    "THE DIFFERENCES OF A FEW ANSWERS, each of which rests on {least} {rows} or more. Only noise "
    "(differential privacy, [privacy]) closes this; let no driver ask that you would not show "
    "rows to."
)


def explain(policy: Policy) -> str:
    """In sentences: what may leave under a policy, which tasks that allows, what remains."""
    limits = policy.limits
    if limits.trusted:
        lines = [_TRUSTED]
    else:
        lines = [_sentence(_LEAVES[kind], limits) for kind in _LEAVES if kind in limits.allows]
    if limits.encrypted:
        lines.append(
            f"These leave encrypted or masked only: {', '.join(sorted(limits.encrypted))}."
        )
    lines += [_sums(policy)] if policy.output.only_sums else []
    if limits.unit:
        lines.append(f"Column {limits.unit!r} says whose row it is: persons are counted, not rows.")
    if limits.min_count < 3:
        lines.append(f"min_count = {limits.min_count} LETS SINGLE ROWS OUT.")
    for task, out in _turned_away(policy, limits):
        lines.append(f"Task {task.name} does not run here: it lets out {out}.")
    lines += [] if limits.trusted else [_sentence(_REMAINS, limits)]
    return "\n".join([describe(policy), "", *lines])


def leaves(kind: Kind, limits: ReleaseLimits) -> str:
    """When something of a kind leaves, in a sentence; that it does not, where it may not."""
    if kind not in limits.allows:
        return "This may not leave under the policy."
    if limits.trusted and kind != "facts":
        return "This leaves as it is: THE DRIVER CAN READ ROWS."
    return _sentence(_LEAVES[kind], limits)


def _sums(policy: Policy) -> str:
    whose = "that [peers] names" if policy.peers else "whose keys are known since they first met"
    return (
        "Numbers about rows leave masked, in sums with at least "
        f"{policy.output.peers_needed} other clients {whose}; names of categories and the number "
        "of rows leave as above. A model that is made for it reads rows out of such a sum, too: "
        "what may leave is judged before it is masked."
    )


def _sentence(text: str, limits: ReleaseLimits) -> str:
    return text.format(
        least=limits.min_count,
        rows="persons" if limits.unit else "rows",
        categories=limits.categories,
        share=limits.category_share,
        gram=limits.gram_rows,
        min_rows=limits.min_rows,
        parameters=limits.parameters,
    )


def _turned_away(policy: Policy, limits: ReleaseLimits) -> Iterator[tuple[Task, str]]:
    """The tasks that the file lists and the gate turns away all the same."""
    for task in installed_tasks().values():
        if policy.tasks and policy.rules_for(task.name) and not policy.lets_out(task.name):
            kinds = {release.kind for release in releases_of(task)} - limits.allows
            yield task, ", ".join(sorted(kinds)) or "what it does not say"
