"""Which sets of persons closed jobs tell of exactly, and whom combinations of them single out.

A sum over a set of persons is told exactly or not at all; what follows from several are the sums
over every combination of their indicator vectors. A person is singled out where the person's own
indicator is in the span of those that were told.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.simulate.owners import SimulatedOwners
from solera.trust.board import judge as judging
from solera.trust.board.supports import Support, support_of
from solera.trust.contributions import Joint, Sums
from solera.trust.merging import Neighbours

PRIME = 2_147_483_629


class Recorder:
    """Writes down the persons behind every exact number of the jobs that run meanwhile."""

    def __init__(self, monkeypatch: Any) -> None:
        self.sets: set[frozenset[int]] = set()
        self.cells: list[frozenset[int]] = []
        """Of cells that data made, as often as they were told."""
        self._of_ask: dict[Any, set[int]] = {}
        self._behind: dict[int, Any] = {}
        self._entry = 0
        total, told = SimulatedOwners.total, Support.told

        def total_of(exchange: Any, *ask: Any) -> Any:
            self._of_ask, self._behind = {}, {}
            found = total(exchange, *ask)
            cells = [frozenset(one) for one in self._of_ask.values() if one]
            self.cells += cells
            self.sets |= set(cells)
            return found

        def support_with(leaf: Any, behind: Any, keys: Any, *rest: Any) -> Any:
            support = support_of(leaf, behind, keys, *rest)
            parts = zip(leaf.sums, support, strict=True) if isinstance(leaf, Joint) else (
                (leaf, support),)  # fmt: skip
            for i, (one, of_one) in enumerate(parts):
                own = keys if one.rows is None else keys[one.rows]
                self._behind[id(of_one)] = ((self._entry, i), of_one, behind, own)
            self._entry += 1
            return support

        def told_with(support: Any, numbers: Any, total: Any, min_count: int) -> Any:
            result = told(support, numbers, total, min_count)
            if not result.noised:
                self._add(support, np.asarray(result.absent))
            return result

        def judge_with(task: Any, client: Any, payload: Any, reply: Any, *rest: Any) -> Any:
            self._entry = 0
            judged = judge(task, client, payload, reply, *rest)
            for part in ("train", "validation", "test"):
                keys = client.data.keys(part)
                self._of_ask.setdefault(("all", part), set()).update(keys.tolist())
            return judged

        judge = judging.judge
        monkeypatch.setattr(SimulatedOwners, "total", total_of)
        monkeypatch.setattr(Support, "told", told_with)
        monkeypatch.setattr(judging, "support_of", support_with)
        monkeypatch.setattr("solera.engines.owner.judge", judge_with)

    def _add(self, support: Any, absent: Any) -> None:
        leaf = support.leaf
        entry, _, behind, keys = self._behind[id(support)]
        cells = leaf.cells
        row, cell = cells.pairs(behind.rows)
        row = np.arange(behind.rows)[row]
        if isinstance(cells, Neighbours):
            ends = ~_of_cells(absent, cells).astype(bool)
            by_grouping = ends.reshape(cells.groupings, cells.siblings, -1)[:, 0]
            cell = cells._places_of(by_grouping)[cell]
        tail = leaf.values.shape[1:] if isinstance(leaf, Sums) else ()
        where = getattr(leaf, "where", None)
        marks = absent.reshape(cells.size, -1)
        columns = marks.shape[1] if where is not None else 1
        for j in range(columns):
            inside = np.ones(behind.rows, dtype=bool)
            if where is not None:
                wide = np.broadcast_to(where, (behind.rows, *tail)).reshape(behind.rows, -1)
                inside = wide[:, j]
            for c in np.flatnonzero(marks[:, j] == 0):
                of_cell = self._of_ask.setdefault((entry, j, int(c)), set())
                of_cell.update(keys[row[(cell == c) & inside[row]]].tolist())


def _of_cells(absent: Any, cells: Any) -> Any:
    return absent.reshape(*cells.shape, -1)[..., 0]


def singled_out(sets: Any) -> list[int]:
    """The persons whose indicator is a combination of those of the sets."""
    persons = sorted(set().union(*sets)) if sets else []
    place = {person: i for i, person in enumerate(persons)}
    basis = np.zeros((0, len(persons)), dtype=np.int64)
    pivots: list[int] = []
    for one in sets:
        vector = np.zeros(len(persons), dtype=np.int64)
        vector[[place[p] for p in one]] = 1
        for line, pivot in zip(basis, pivots, strict=True):
            if vector[pivot]:
                vector = (vector - vector[pivot] * line) % PRIME
        lead = np.flatnonzero(vector)
        if not len(lead):
            continue
        pivot = int(lead[0])
        vector = vector * pow(int(vector[pivot]), -1, PRIME) % PRIME
        above = basis[:, pivot] != 0
        basis[above] = (basis[above] - basis[above, pivot][:, None] * vector) % PRIME
        basis = np.vstack([basis, vector])
        pivots.append(pivot)
    alone = np.count_nonzero(basis, axis=1) == 1
    return [persons[pivot] for pivot, is_alone in zip(pivots, alone, strict=True) if is_alone]
