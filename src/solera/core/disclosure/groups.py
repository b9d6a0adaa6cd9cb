"""Rows in groups: what a task of trees sees of an owner's rows when a gate stands before them.

Trees ask the same rows again and again: every node, every round and every job sends them down other
splits, and two answers that differ in one row tell this row. Judging every answer against all
earlier ones would soon withhold everything, but for plain counts (:mod:`.node_counts`). Instead the
rows are grouped once, and tasks see a *table of groups* in their place. Whatever they answer, to
however many asks, with whatever nodes, leaf values or trees the asker chose, follows from this
table.

A group has rows of one class that are near each other, cut at medians (Mondrian: LeFevre, DeWitt &
Ramakrishnan 2006). Its part of the table are blocks of at least ``min_count`` equal rows, with the
medians of as many sorted values of each column (microaggregation: Domingo-Ferrer & Mateo-Sanz
2002). Which medians of different columns are in the same block says nothing: every column of a
group is shuffled by itself. So

- every count of rows, at a node, in a bin or of a class, is none or at least ``min_count``, and two
  sets of rows differ by whole blocks; leaves of trees have at least ``min_count`` rows;
- a value has at least ``min_count`` values of its group at or beyond it on either side: a row left
  out moves it by one place at most, and all rows on its side do the same. Values of numeric columns
  lie on a grid of a power of two near σ/8;
- a category is that of at least ``min_count`` rows of the group, or the most common one of all.

What this does not give: a count over several columns (a bin of one column at a node of another) can
change only when a row is left out that moves values of all of them, and such rows can be fewer than
``min_count``, even one. Measured by leaving rows out, 0 to 9 % of these counts rest on fewer than
``min_count`` effective rows, in tables of 40 to 320 rows; they change by whole blocks then. A grid
of σ in place of σ/8 closes this for nodes of one split (0 % in twelve tables) but not for two (up
to 7 %), and costs a point of accuracy on Adult (benchmarks/RESULTS.md). It is the price of values:
a table that every one of ``min_count`` rows changes in the same way follows from how many rows are
in agreed cells, since any two sets of rows of a cell must give the same.

Rows of classes that are too rare for a group are not in the table, nor, where these are few, those
of the next class. Where the owner counts persons, groups and blocks have that many persons, and
each counts once for a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from solera.core.clients import IntArray, Part, Rows, Segments, Source
from solera.core.disclosure.grouping import Groups, group_rows
from solera.core.disclosure.noised import is_noised
from solera.core.errors import GateRefusal
from solera.core.release import Leaving, Release

if TYPE_CHECKING:
    from solera.core.gate import ReleaseLimits
    from solera.core.task import Task


class Trees(Release):
    """What follows from the table of groups: trees, and counts, sums and scores along trees."""

    kind = "tree"
    says = "trees, and sums along trees or around points, of rows in groups"

    def sees_groups(self, unit: str | None) -> bool:
        """Whether the task sees the table of groups, for an owner with that unit."""
        return True

    def judge(self, leaving: Leaving) -> Any:
        if leaving.limits.trusted:
            return leaving.reply
        source = leaving.client.data._source
        if not isinstance(source, GroupedSource):
            raise leaving.refuse("its rows are not in groups")
        if not leaving.memory.grouped:
            leaving.memory.grouped = True
            values = len(leaving.client.data) * source.schema.width
            numbers = source.numbers(leaving.client.id)
            leaving.memory.spend(numbers, leaving.limits.numbers * max(1, values))
        return leaving.reply


def needs_groups(task: Task, limits: ReleaseLimits | None, payload: Any = None) -> bool:
    """Whether a task sees the table of groups in place of the rows.

    Not where it adds noise: one row may change many groups, for which noise is not made.
    """
    if limits is None or limits.trusted or task.release is None:
        return False
    inside = [getattr(release, "inside", release) for release in task.release]
    grouped = any(isinstance(r, Trees) and r.sees_groups(limits.unit) for r in inside)
    return grouped and not is_noised(payload, limits)


class GroupedSource:
    """The tables of groups of all clients of a source; transformers see these tables, too."""

    def __init__(self, source: Source, limits: ReleaseLimits) -> None:
        self.schema = source.schema
        self._source = source
        self._limits = limits
        self._steps: tuple[Any, ...] = ()
        self._tables: dict[tuple[int, Part], Groups] = {}
        self._prepared: dict[tuple[int, Part], Rows] = {}
        self._last: tuple[tuple[bytes, Part], Segments] | None = None

    @property
    def clients(self) -> int:
        return self._source.clients

    @property
    def resources(self) -> Any:
        return getattr(self._source, "resources", None)

    def sizes(self, part: Part) -> IntArray | None:
        """Only grouping would tell."""
        return None

    def units(self, client: int, part: Part) -> IntArray | None:
        """Whose row each row is."""
        units = self._units(client, part)
        return None if units is None else units[self._table(client, part).rows]

    def numbers(self, client: int) -> int:
        """How many numbers the table of a client has."""
        return len(self._table(client, "train").rows) * (self._source.schema.width + 1)

    def segments(self, clients: IntArray, part: Part) -> Segments:
        key = (clients.tobytes(), part)
        if self._last is None or self._last[0] != key:
            self._last = key, _joined([self._ready(c, part) for c in clients.tolist()])
        return self._last[1]

    def prepared(self, steps: Sequence[Any]) -> GroupedSource:
        view = GroupedSource(self._source, self._limits)
        view._tables = self._tables
        view._steps = (*self._steps, *steps)
        for step in view._steps:
            view.schema = step.transform_schema(view.schema)
        return view

    def _ready(self, client: int, part: Part) -> Rows:
        if (client, part) not in self._prepared:
            rows, schema = self._table(client, part).table, self._source.schema
            X = rows.X
            for step in self._steps:
                X, schema = step.transform_rows(X, schema), step.transform_schema(schema)
            self._prepared[client, part] = Rows(X, rows.y)
        return self._prepared[client, part]

    def _table(self, client: int, part: Part) -> Groups:
        if (client, part) not in self._tables:
            rows = self._source.segments(np.array([client]), part)[0]
            units = self._units(client, part)
            if units is None and self._limits.unit is not None:
                raise GateRefusal(f"no column {self._limits.unit!r} says whose rows these are")
            groups = group_rows(rows, self._source.schema, self._limits.min_count, units)
            self._tables[client, part] = groups
        return self._tables[client, part]

    def _units(self, client: int, part: Part) -> IntArray | None:
        known = getattr(self._source, "units", None)
        if self._limits.unit is None or known is None:
            return None
        units: IntArray | None = known(client, part)
        return units


def _joined(rows: Sequence[Rows]) -> Segments:
    sizes = np.array([len(r) for r in rows], dtype=np.int64)
    X = rows[0].X if len(rows) == 1 else np.concatenate([r.X for r in rows])
    y = rows[0].y
    if y is not None and len(rows) > 1:
        y = np.concatenate([r.y for r in rows])
    return Segments(X, y, np.cumsum(sizes) - sizes, sizes)
