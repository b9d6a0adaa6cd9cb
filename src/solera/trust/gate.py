"""The gate: what may come in to an owner's rows, and what may leave them.

A task says what it takes (``ask=``, :mod:`solera.trust.declared`), and by what it returns
which rows gave what (:mod:`.contributions`). The gate stands in every engine at the same place,
right before and right after the task; at an agent always, in a simulation with
``so.simulate(…, policy=…)``. It looks at one reply: a number is withheld behind which there are
fewer than ``min_count`` persons. Answers that left before are not compared: what many answers tell
together only noise bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
import numpy as np

from solera.core.absent import Gaps, with_gaps
from solera.core.accounting import Event
from solera.core.clients import BoolArray, Client, IntArray, Part
from solera.core.errors import GateRefusal, UsageError
from solera.core.replies import map_leaves
from solera.core.schema import Schema
from solera.core.task import Task
from solera.trust.cells import Behind
from solera.trust.contributions import Contribution, Counts, Joint, Sums, Update, entries_of
from solera.trust.declared import check_payload
from solera.trust.grams import Gram
from solera.trust.noise import Ledger, SumNoise, noise_key, noise_table, spent_by, with_noise
from solera.trust.release import Cipher, Kind, OutgoingReply, Release, releases_of, with_entry


@dataclass(frozen=True)
class ReleaseLimits:
    """What an owner lets out.

    Parameters
    ----------
    allows: the kinds of releases that may leave.
    min_count: the fewest persons behind a number; smaller cells are withheld.
    min_rows: the fewest rows of a client that answers anything about its rows.
    parameters: the most parameters of a model per row it is trained on.
    gram_rows: the fewest rows per column of a Gram matrix.
    categories, category_share: the most categories or classes that are named, and per row.
    listed: categories that may be named however rare, by column; ``classes`` under "".
    bounds: the least and largest value of a column that may be told, where extremes are asked.
    trusted: the driver may read rows: replies leave as they are.
    encrypted: releases that may only leave encrypted or masked.
    unit: the column that says whose row it is; persons are counted instead of rows.
    budget: ε and δ over all jobs, for what leaves with noise (:mod:`.noise`).
    noised: releases that may only leave with noise.
    """

    allows: frozenset[Kind] = frozenset({"facts", "cells", "categories", "extremes"})
    min_count: int = 5
    min_rows: int = 10
    parameters: float = 1 / 3
    gram_rows: float = 3.0
    categories: int = 40
    category_share: float = 1 / 3
    listed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    trusted: bool = False
    encrypted: frozenset[Kind] = frozenset()
    unit: str | None = None
    budget: tuple[float, float] | None = None
    noised: frozenset[Kind] = frozenset()

    def units_of(self, client: Client, part: Part) -> IntArray | None:
        """Whose row each row of a client is, where the owner counts persons."""
        if self.unit is None:
            return None
        units = client.data.units(part)
        if units is None:
            raise GateRefusal(f"no column {self.unit!r} says whose rows these are")
        return units


_NOBODY = Behind(0)
_STATISTICS: frozenset[Kind] = frozenset({"facts", "cells", "gram", "categories", "extremes"})
_TRAINING: frozenset[Kind] = _STATISTICS | {"update", "tree", "cipher"}
POLICIES: dict[str, ReleaseLimits] = {
    "statistics": ReleaseLimits(_STATISTICS),
    "evaluation": ReleaseLimits(frozenset({"facts", "cells", "categories"})),
    "training": ReleaseLimits(_TRAINING),
    "vertical": ReleaseLimits(_TRAINING | {"rows"}),
    "upload": ReleaseLimits(_TRAINING | {"rows"}),
    "trusted": ReleaseLimits(_TRAINING, min_rows=1, trusted=True),
}
"""The named policies, from the strictest to the one that trusts the driver with rows."""


def find_limits(policy: str | ReleaseLimits) -> ReleaseLimits:
    """The limits of a named policy, or those that are given."""
    if isinstance(policy, ReleaseLimits):
        return policy
    if policy not in POLICIES:
        raise UsageError(f"there is no policy {policy!r}", hint=f"there are {', '.join(POLICIES)}")
    return POLICIES[policy]


def check_ask(limits: ReleaseLimits, task: Task, payload: Any, schema: Schema) -> None:
    """Refuse a task of which nothing may leave, and a payload that does not fit the schema."""
    for release in releases_of(task):
        if release.kind not in limits.allows:
            raise GateRefusal(f"task {task.name!r} releases {release.says}, which is not allowed")
        if release.kind in limits.noised and noise_table(payload) is None:
            raise GateRefusal(f"task {task.name!r} releases {release.says}, which need noise here")
    check_payload(task, payload, schema)


def numbers_of(task: Task, client: Client, payload: Any, reply: Any) -> Any:
    """A reply as numbers, with noise where the ask wants it, without a policy."""
    privacy = noise_table(payload)
    if privacy is None or task.spends is not None:
        return _as_numbers(reply, cache(lambda part: _whole_part(client, part, None)))
    contributions, reply = _apart(reply)
    behind = {
        entry: _behind(client, contribution, None) for entry, contribution in contributions.items()
    }
    return _put(reply, with_noise(client, contributions, behind, privacy))


def _as_numbers(reply: Any, whole: Callable[[Part], Behind]) -> Any:
    """A tree with the numbers of its contributions, which nobody judges."""
    if isinstance(reply, Contribution):
        behind = whole(reply.part) if reply.about_rows else _NOBODY
        behind = behind if reply.rows is None else behind.among(reply.rows)
        return _plain(reply.unjudged(behind))
    if isinstance(reply, Mapping):
        return {key: _as_numbers(value, whole) for key, value in reply.items()}
    return reply


def release(
    task: Task,
    client: Client,
    payload: Any,
    reply: Any,
    limits: ReleaseLimits,
    ledger: Ledger | None,
    *,
    masked: bool = False,
) -> Any:
    """The reply as it may leave; what may not is absent, or a :class:`GateRefusal`.

    One that will be ``masked`` says of every number whether it is absent: masked replies of all
    clients are of one form.
    """
    contributions, bare = _apart(reply)
    if limits.trusted:  # who may read rows is told all of a sum, too
        numbers = numbers_of(task, client, payload, reply)
        outgoing = OutgoingReply(task.name, client, payload, numbers, limits)
        nothing = _all_marks(outgoing, contributions) if masked else {}
        return with_gaps(numbers, nothing) if nothing else numbers
    outgoing = OutgoingReply(task.name, client, payload, bare, limits)
    for rule in releases_of(task):
        if rule.kind == "tree" and noise_table(payload) is None:
            rule.judge(outgoing)  # refuses
    _check_bare(outgoing, task.release or ())
    about_rows = any(one.about_rows for one in contributions.values())
    about_rows |= any(one.about_rows for one in task.release or ())
    persons = _whole_part(client, "train", limits).count_persons()
    if about_rows and persons < limits.min_rows:
        raise GateRefusal(f"there are fewer rows than min_rows = {limits.min_rows:,}")
    _check_encrypted(outgoing, contributions, task.release or (), masked)
    gaps: Gaps = {}
    if noise_table(payload) is not None:
        outgoing.reply = _noised(task, outgoing, contributions, ledger)
    else:
        outgoing.reply, gaps = judge_contributions(outgoing, contributions)
        if masked:
            gaps = {**_all_marks(outgoing, contributions), **gaps}
    for rule in task.release or ():
        outgoing.reply = rule.judge(outgoing)
    return with_gaps(outgoing.reply, gaps) if gaps else outgoing.reply


def _all_marks(outgoing: OutgoingReply, contributions: Mapping[str, Contribution]) -> Gaps:
    """Marks of every number that could be absent; none of them is."""
    return {
        entry: map_leaves(lambda leaf: np.zeros(np.shape(leaf), dtype=bool), outgoing.get(entry))
        for entry, contribution in contributions.items()
        if contribution.about_rows and not isinstance(contribution, Update)
    }


def judge_contributions(
    outgoing: OutgoingReply, contributions: Mapping[str, Contribution]
) -> tuple[Any, Gaps]:
    """The reply with the numbers of contributions, and which of them are absent."""
    limits, numbers, gaps = outgoing.limits, {}, {}
    parameters = 0
    for entry, contribution in contributions.items():
        if contribution.kind not in limits.allows:
            raise outgoing.refuse(f"{entry!r} is of a kind that may not leave, {contribution.kind}")
        behind = _behind(outgoing.client, contribution, limits)
        values = contribution.numbers(behind)
        if isinstance(contribution, Update):
            parameters += contribution.parameters
            _check_update(outgoing, contribution.persons(behind), parameters)
        absent = _absent(outgoing, contribution, behind, values)
        if absent is not None and _any(absent):
            values = map_leaves(_without, values, absent)
            gaps[entry] = absent
        numbers[entry] = values
    return _put(outgoing.reply, numbers), gaps


def _absent(
    outgoing: OutgoingReply, contribution: Contribution, behind: Behind, values: Any
) -> Any:
    """Marks of the numbers behind which there are too few persons, in the form of the numbers."""
    limits = outgoing.limits
    if not contribution.about_rows or isinstance(contribution, Update):
        return None
    persons = contribution.persons(behind)
    if isinstance(contribution, Joint):
        return [
            _few(one, count, limits.min_count)
            for one, count in zip(contribution.sums, persons, strict=True)
        ]
    if isinstance(contribution, Gram):
        return _few_in_matrices(limits, contribution, behind, persons)
    return _few(contribution, persons, limits.min_count)


def _few_in_matrices(
    limits: ReleaseLimits, contribution: Gram, behind: Behind, persons: IntArray
) -> BoolArray:
    """Matrices of too few persons for their columns, and entries of too few."""
    width = contribution.X.shape[1]
    least = max(limits.min_count, limits.gram_rows * width)
    few = np.asarray((persons > 0) & (persons < least))
    having, lacking = contribution.support(behind)
    thin = (having > 0) & (having < limits.min_count)
    if lacking is not None:
        thin |= (lacking > 0) & (lacking < limits.min_count)
        assert contribution.marks is not None
        if (contribution.marks.sum(axis=1) <= 1).all():  # the others would give it by subtraction
            table = having.reshape(-1, having.shape[-1]).T
            marks = thin.reshape(-1, having.shape[-1]).T
            thin = _with_next(table, marks, limits.min_count).T.reshape(thin.shape)
    return np.asarray(thin | few.reshape(few.shape + (1,) * (thin.ndim - few.ndim)))


def _few(contribution: Contribution, persons: IntArray, least: int) -> BoolArray:
    """Cells with fewer persons than ``least``, and the next smallest as long as it is needed.

    Where a row is in one cell of a list, all cells but those withheld would give these by
    subtraction.
    """
    few = np.asarray((persons > 0) & (persons < least))
    assert isinstance(contribution, Counts | Sums)
    cells = contribution.cells
    if cells.lists == cells.size or not few.any():
        return few
    lists = persons.reshape(cells.lists, cells.size // cells.lists, -1)
    pairs = zip(lists, few.reshape(lists.shape), strict=True)
    return np.stack([_with_next(table, small, least) for table, small in pairs]).reshape(
        persons.shape
    )


def _with_next(table: IntArray, few: BoolArray, least: int) -> BoolArray:
    """Marks of cells, and of the next smallest of their column until these have ``least``."""
    marks = few.copy()
    for column in np.flatnonzero(marks.any(axis=0)).tolist():
        for cell in np.argsort(table[:, column], kind="stable"):
            if table[marks[:, column], column].sum() >= least:
                break
            marks[cell, column] |= table[cell, column] > 0
    return marks


def _check_update(outgoing: OutgoingReply, persons: int, parameters: int) -> None:
    """Refuse updates that have too many parameters together, all of a reply."""
    limits = outgoing.limits
    if persons < limits.min_rows or parameters > limits.parameters * persons:
        needed = max(limits.min_rows, parameters / limits.parameters)
        raise outgoing.refuse(
            f"{parameters:,} parameters need {needed:,.0f} rows, since the policy's `parameters` "
            f"allows {limits.parameters:.3g} of them per row; an update of this size tells rows: "
            "it needs noise, fewer columns, or the policy 'trusted'"
        )


def _noised(
    task: Task,
    outgoing: OutgoingReply,
    contributions: Mapping[str, Contribution],
    ledger: Ledger | None,
) -> Any:
    """The reply with noise, of which the owner's budget is charged before any leaves."""
    limits, client, payload = outgoing.limits, outgoing.client, outgoing.ask
    privacy = noise_table(payload)
    assert privacy is not None
    if limits.budget is None:
        raise outgoing.refuse("it adds noise, and the policy has no budget for that: [privacy]")
    if limits.unit is not None and privacy.get("level") != "client":
        raise outgoing.refuse(f"its noise protects rows, a {limits.unit!r} may have several")
    behind = {
        entry: _behind(client, contribution, limits)
        for entry, contribution in contributions.items()
    }
    if task.spends is None:
        _check_noise(outgoing, privacy)
        events: Sequence[Event] = spent_by(privacy)
        numbers = with_noise(client, contributions, behind, privacy)
    else:
        events = task.spends(client, payload)
        numbers = {name: one.numbers(behind[name]) for name, one in contributions.items()}
    if events and ledger is not None:
        ledger.spend(noise_key(client, task.name, events), task.name, events, *limits.budget)
    return _put(outgoing.reply, numbers)


def _check_noise(outgoing: OutgoingReply, privacy: SumNoise) -> None:
    """Refuse a table of noise that is none; a task need not declare what it takes."""
    try:
        msgspec.convert(privacy, SumNoise)
    except msgspec.ValidationError as error:
        raise outgoing.refuse(f"its table `privacy`: {error}") from None


def _check_bare(outgoing: OutgoingReply, releases: Sequence[Release]) -> None:
    """Refuse a reply with an entry of which nothing says which rows gave it."""
    covered = {entry for release in releases for entry in release.entries}
    for entry, value in entries_of(outgoing.reply):
        if isinstance(value, Contribution) or _is_covered(entry, covered):
            continue
        name = f"entry {entry!r}" if entry else "the reply"
        raise outgoing.refuse(
            f"nothing says which rows gave {name}; return so.sum_by(cell, values), "
            "so.count_by(cell), or so.fact(value) where it does not depend on rows"
        )


def _check_encrypted(
    outgoing: OutgoingReply,
    contributions: Mapping[str, Contribution],
    releases: Sequence[Release],
    masked: bool,
) -> None:
    """Refuse in the clear what the owner lets out encrypted or masked only."""
    sealed = masked or any(
        isinstance(rule, Cipher) and any(map(outgoing.holds, rule.entries)) for rule in releases
    )
    for entry, contribution in contributions.items():
        if contribution.kind in outgoing.limits.encrypted and not sealed:
            raise outgoing.refuse(f"{entry!r} leaves encrypted, or in a secure sum, only")


def _is_covered(entry: str, covered: set[str]) -> bool:
    parts = entry.split(".") if entry else []
    return not covered.isdisjoint(".".join(parts[:depth]) for depth in range(len(parts) + 1))


def _apart(reply: Any) -> tuple[dict[str, Contribution], Any]:
    """The contributions of a reply, by entry, and the reply."""
    found = {name: leaf for name, leaf in entries_of(reply) if isinstance(leaf, Contribution)}
    return found, reply


def _put(reply: Any, numbers: Mapping[str, Any]) -> Any:
    for entry, value in numbers.items():
        reply = with_entry(reply, entry, _plain(value))
    return reply


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _behind(client: Client, contribution: Contribution, limits: ReleaseLimits | None) -> Behind:
    if not contribution.about_rows:
        return _NOBODY
    whole = _whole_part(client, contribution.part, limits)
    return whole if contribution.rows is None else whole.among(contribution.rows)


def _whole_part(client: Client, part: Part, limits: ReleaseLimits | None) -> Behind:
    units = None if limits is None else limits.units_of(client, part)
    return Behind(len(client.data.part(part)), units=units)


def _without(value: Any, absent: Any) -> Any:
    if np.ndim(value) == 0:
        return type(value)(0) if absent else value
    return np.where(absent, np.zeros((), np.asarray(value).dtype), value)


def _any(absent: Any) -> bool:
    return any(map(_any, absent)) if isinstance(absent, list) else bool(np.any(absent))
