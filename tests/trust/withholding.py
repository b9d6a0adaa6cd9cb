"""Clients that withhold numbers of few persons, for tests of what learners make of gaps.

No policy of the library does so: what rests on few persons is judged at the sum over all owners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.absent import with_gaps
from solera.core.replies import map_leaves
from solera.engines import blocks
from solera.trust.contributions import Contribution, Counts, Joint, Sums, Update, entries_of
from solera.trust.grams import Gram
from solera.trust.open_asks import answer, behind, with_entry
from solera.trust.policy import Policy


@dataclass(frozen=True)
class Withholding(Policy):
    """Withholds every number of fewer than ``min_count`` persons, and what would give it back."""

    policy: Any = "trusted"
    masked: bool = False
    """Whether replies are to be masked: every number says then whether it is absent."""


def install(monkeypatch: Any) -> None:
    """Let clients of simulations whose policy is :class:`Withholding` withhold."""
    at_once = blocks.Runner._at_once

    def one_by_one(runner, task, ask):
        return not isinstance(runner.policy, Withholding) and at_once(runner, task, ask)

    monkeypatch.setattr(blocks, "answer", _answer)
    monkeypatch.setattr(blocks.Runner, "_at_once", one_by_one)


def _answer(policy, task, client, payload, reply, ledger=None):
    if not isinstance(policy, Withholding):
        return answer(policy, task, client, payload, reply, ledger)
    numbers, gaps = answer(None, task, client, payload, reply, ledger), {}
    for entry, one in entries_of(reply):
        if not isinstance(one, Contribution) or not one.about_rows or isinstance(one, Update):
            continue
        marks = _marks(policy, one, behind(client, one))
        value = _at(numbers, entry)
        if _any(marks):
            numbers = with_entry(numbers, entry, map_leaves(_without, value, marks))
            gaps[entry] = marks
        elif policy.masked:
            gaps[entry] = map_leaves(lambda leaf: np.zeros(np.shape(leaf), dtype=bool), value)
    return with_gaps(numbers, gaps) if gaps else numbers


def _at(tree: Any, entry: str) -> Any:
    for key in entry.split(".") if entry else ():
        tree = tree[key]
    return tree


def _marks(policy: Withholding, one: Contribution, rows: Any) -> Any:
    persons = one.persons(rows)
    if isinstance(one, Joint):
        pairs = zip(one.sums, persons, strict=True)
        return [_few(each, count, policy.min_count) for each, count in pairs]
    if isinstance(one, Gram):
        least = max(policy.min_count, 3 * one.X.shape[1])
        few = np.asarray((persons > 0) & (persons < least))
        having, lacking = one.support(rows)
        thin = (having > 0) & (having < policy.min_count)
        if lacking is not None:
            thin |= (lacking > 0) & (lacking < policy.min_count)
        return np.asarray(thin | few.reshape(few.shape + (1,) * (thin.ndim - few.ndim)))
    return _few(one, persons, policy.min_count)


def _few(one: Contribution, persons: Any, least: int) -> Any:
    """Cells with fewer persons, and the next smallest as long as the others would give them."""
    few = np.asarray((persons > 0) & (persons < least))
    assert isinstance(one, Counts | Sums)
    cells = one.cells
    if cells.lists == cells.size or not few.any():
        return few
    lists = persons.reshape(cells.lists, cells.size // cells.lists, -1)
    marks = few.reshape(lists.shape).copy()
    for table, small in zip(lists, marks, strict=True):
        for column in np.flatnonzero(small.any(axis=0)).tolist():
            for cell in np.argsort(table[:, column], kind="stable"):
                if table[small[:, column], column].sum() >= least:
                    break
                small[cell, column] |= table[cell, column] > 0
    return marks.reshape(persons.shape)


def _without(value: Any, absent: Any) -> Any:
    if np.ndim(value) == 0:
        return type(value)(0) if absent else value
    return np.where(absent, np.zeros((), np.asarray(value).dtype), value)


def _any(absent: Any) -> bool:
    return any(map(_any, absent)) if isinstance(absent, list) else bool(np.any(absent))
