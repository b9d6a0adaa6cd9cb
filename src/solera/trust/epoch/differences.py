"""What sums over different rows tell together: the rule that a new epoch must meet at every owner.

Whoever has the totals of one job over several sets of rows can add and subtract them. A set of rows
is a population of this epoch or of an earlier one. Rows that are in the same sets form a group, and
a combination of totals is a sum over groups. So **no combination may be left with groups of fewer
than** ``min_count`` **persons only**: the sets must be as independent in the large groups alone as
in all groups (equal rank). That covers a population, the difference of two, combinations of more,
and what changed since any earlier epoch. Folds are no sets: what changed is spread over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from solera.core.clients import Array, BoolArray
from solera.trust.epoch.populations import EVERYONE
from solera.trust.epoch.snapshot import PastSnapshot, Snapshot

REFRESH_PERSONS = 20
REFRESH_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class RowSet:
    """A set of an owner's rows that a job may sum over; each row with whose it is."""

    name: str
    persons: Array
    rows: Array


def row_sets(snapshot: Snapshot | PastSnapshot, epoch: str = "") -> list[RowSet]:
    """The populations of a snapshot; ``epoch`` is how those of an earlier one are named."""
    behind = f" of {epoch}" if epoch else ""
    return [
        RowSet(name + behind, snapshot.persons[inside], snapshot.rows[inside])
        for name, inside in zip(snapshot.populations, snapshot.marks.T, strict=True)
    ]


def too_close(sets: Sequence[RowSet], min_count: int) -> list[str]:
    """What of these sets would tell about fewer than ``min_count`` persons; empty: nothing."""
    persons, inside = _memberships(sets)
    told = []
    for i, each in enumerate(sets):
        count = _persons(persons, inside[:, i])
        if 0 < count < min_count:
            told.append(f"{each.name} holds {_of(count)}")
    for i, j in combinations(range(len(sets)), 2):
        count = _persons(persons, inside[:, i] != inside[:, j])
        if 0 < count < min_count:
            told.append(f"{sets[i].name} and {sets[j].name} differ in {_of(count)}")
    if told:
        return told
    groups, group = np.unique(inside, axis=0, return_inverse=True)
    group = group.reshape(-1)
    large = np.array([_persons(persons, group == g) >= min_count for g in range(len(groups))])
    if _rank(groups[large]) < _rank(groups):
        small = groups[~large].any(axis=0)
        names = ", ".join(each.name for each, takes in zip(sets, small, strict=True) if takes)
        return [f"sums over {names} combine to sums over fewer than {min_count} persons"]
    return []


def refresh_of(persons: int, refresh: int | None = None) -> int:
    """How many persons must change at least, where any do."""
    return max(REFRESH_PERSONS, int(REFRESH_SHARE * persons)) if refresh is None else refresh


def changed_persons(before: Snapshot | PastSnapshot, after: Snapshot | PastSnapshot) -> int:
    """Persons who came, left, or whose rows are others."""
    everyone = (row_sets(before)[0], row_sets(after)[0])
    assert everyone[0].name == EVERYONE
    persons, inside = _memberships(everyone)
    return _persons(persons, inside[:, 0] != inside[:, 1])


def _memberships(sets: Sequence[RowSet]) -> tuple[Array, BoolArray]:
    """Every distinct row with its person, and in which sets it is."""
    persons = np.concatenate([s.persons for s in sets])
    rows = np.concatenate([s.rows for s in sets])
    pairs = np.empty(len(rows), dtype=[("person", persons.dtype), ("row", rows.dtype)])
    pairs["person"], pairs["row"] = persons, rows
    distinct, place = np.unique(pairs, return_inverse=True)
    inside = np.zeros((len(distinct), len(sets)), dtype=bool)
    ends = np.cumsum([0, *(len(s.rows) for s in sets)])
    for i in range(len(sets)):
        inside[place[ends[i] : ends[i + 1]], i] = True
    return distinct["person"], inside


def _persons(persons: Array, chosen: BoolArray) -> int:
    return len(np.unique(persons[chosen]))


def _rank(groups: BoolArray) -> int:
    return int(np.linalg.matrix_rank(groups.astype(np.float64))) if groups.size else 0


def _of(count: int) -> str:
    return "1 person" if count == 1 else f"{count} persons"
