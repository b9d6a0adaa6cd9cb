"""What becomes of an ask that a driver chose freely, by the policy of the client.

Under ``sums`` nothing: nobody asks, every owner runs the approved job itself. Under ``noise`` a
task runs whose contributions are all bounded, and leaves with the noise that the ask states and the
client's ledger counts. Under ``trusted`` and in a simulation without a policy a reply leaves as it
is. No answer is compared with another: what many exact answers tell together only noise bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from solera.core.accounting import Event
from solera.core.clients import Client, Part
from solera.core.errors import PolicyRefusal, UsageError
from solera.core.task import Task
from solera.trust.cells import Behind
from solera.trust.contributions import Contribution, entries_of
from solera.trust.noise import Ledger, SumNoise, noise_key, noise_table, spent_by, with_noise
from solera.trust.policy import Policy

NO_OPEN_ASKS = 'owners whose policy is "sums" answer no open ask'
FIT_INSTEAD = (
    "learner.fit(federation) and model.evaluate(federation) run as closed jobs, of which every "
    "owner works out the questions by itself"
)


def check_open_ask(policy: Policy | None, task: Task) -> None:
    """Refuse before anything is sent or run what the policy lets nobody ask."""
    if policy is None:
        return
    if policy.policy == "sums":
        raise PolicyRefusal(f"{NO_OPEN_ASKS}, here for {task.name!r}", hint=FIT_INSTEAD)
    if task.sealed and "vertical" not in policy.jobs:
        raise PolicyRefusal(
            f"task {task.name!r} exchanges messages between clients, which is no sum: it runs "
            'under the policy "trusted" with jobs = ["vertical"]'
        )


def answer(
    policy: Policy | None,
    task: Task,
    client: Client,
    payload: Any,
    reply: Any,
    ledger: Ledger | None = None,
) -> Any:
    """The reply of a task as numbers, as it may leave, or a :class:`PolicyRefusal`."""
    check_open_ask(policy, task)
    if policy is None or policy.trusts_the_driver:
        return numbers_of(task, client, payload, reply)
    return _noised(policy, task, client, payload, reply, ledger)


def numbers_of(task: Task, client: Client, payload: Any, reply: Any) -> Any:
    """A reply as numbers, with noise where the ask wants it, without a policy."""
    privacy = noise_table(payload)
    if privacy is None or task.spends is not None:
        return _as_numbers(reply, cache(lambda part: _whole_part(client, part, None)))
    contributions = _contributions(reply)
    noised = with_noise(client, contributions, _behind(client, contributions, None), privacy)
    return _put(reply, noised)


def _as_numbers(reply: Any, whole: Callable[[Part], Behind]) -> Any:
    """A tree with the numbers of its contributions."""
    if isinstance(reply, Contribution):
        behind = whole(reply.part) if reply.about_rows else Behind(0)
        behind = behind if reply.rows is None else behind.among(reply.rows)
        return _plain(reply.unjudged(behind))
    if isinstance(reply, Mapping):
        return {key: _as_numbers(value, whole) for key, value in reply.items()}
    return reply


def _noised(
    policy: Policy, task: Task, client: Client, payload: Any, reply: Any, ledger: Ledger | None
) -> Any:
    """The reply with noise, of which the owner's budget is charged before any leaves."""
    contributions = _contributions(reply)
    _check_only_contributions(task, reply)
    behind = _behind(client, contributions, policy.unit)
    if not any(one.about_rows for one in contributions.values()):
        return _put(reply, {name: one.numbers(behind[name]) for name, one in contributions.items()})
    privacy = noise_table(payload)
    if privacy is None:
        raise _refusal(task, "what is asked freely here leaves with noise, and the ask states none")
    if policy.budget is None:
        raise _refusal(task, "it adds noise, and the policy has no budget for that: [privacy]")
    if policy.unit is not None and privacy.get("level") != "client":
        raise _refusal(task, f"its noise protects rows, a {policy.unit!r} may have several")
    if task.spends is None:
        _check_noise(task, privacy)
        events: Sequence[Event] = spent_by(privacy)
        try:
            numbers = with_noise(client, contributions, behind, privacy)
        except UsageError as error:
            raise _refusal(task, error.message) from None
    else:
        events = task.spends(client, payload)
        numbers = {name: one.numbers(behind[name]) for name, one in contributions.items()}
    if events and ledger is not None:
        ledger.spend(noise_key(client, task.name, events), task.name, events, *policy.budget)
    return _put(reply, numbers)


def _check_noise(task: Task, privacy: SumNoise) -> None:
    """Refuse a table of noise that is none."""
    try:
        msgspec.convert(privacy, SumNoise)
    except msgspec.ValidationError as error:
        raise _refusal(task, f"its table `privacy`: {error}") from None


def _check_only_contributions(task: Task, reply: Any) -> None:
    """Refuse a reply with an entry of which nothing says how far a row moves it."""
    for entry, value in entries_of(reply):
        if isinstance(value, Contribution):
            continue
        name = f"entry {entry!r}" if entry else "the reply"
        raise _refusal(
            task,
            f"nothing says which rows gave {name}; return so.sum_by(cell, values, bound=…), "
            "so.count_by(cell), or so.fact(value) where it does not depend on rows",
        )


def _refusal(task: Task, why: str) -> PolicyRefusal:
    return PolicyRefusal(f"task {task.name!r}: {why}")


def _contributions(reply: Any) -> dict[str, Contribution]:
    """The contributions of a reply, by entry."""
    return {entry: leaf for entry, leaf in entries_of(reply) if isinstance(leaf, Contribution)}


def _behind(
    client: Client, contributions: Mapping[str, Contribution], unit: str | None
) -> dict[str, Behind]:
    """The rows that each contribution is about."""
    return {entry: behind(client, one, unit) for entry, one in contributions.items()}


def behind(client: Client, contribution: Contribution, unit: str | None = None) -> Behind:
    """The rows that a contribution is about; with ``unit`` and whose each of them is."""
    if not contribution.about_rows:
        return Behind(0)
    whole = _whole_part(client, contribution.part, unit)
    return whole if contribution.rows is None else whole.among(contribution.rows)


def _whole_part(client: Client, part: Part, unit: str | None) -> Behind:
    units = None
    if unit is not None:
        units = client.data.units(part)
        if units is None:
            raise PolicyRefusal(f"no column {unit!r} says whose rows these are")
    return Behind(len(client.data.part(part)), units=units)


def with_entry(tree: Any, entry: str, value: Any) -> Any:
    """The tree with another value at an entry, ``"a.b"`` for nested tables."""
    return _with(tree, entry.split(".") if entry else [], value)


def _with(tree: Any, keys: Sequence[str], value: Any) -> Any:
    if not keys:
        return value
    return {**tree, keys[0]: _with(tree[keys[0]], keys[1:], value)}


def _put(reply: Any, numbers: Mapping[str, Any]) -> Any:
    for entry, value in numbers.items():
        reply = with_entry(reply, entry, _plain(value))
    return reply


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
