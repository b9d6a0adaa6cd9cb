"""Counts of rows by node of a tree, category of every column, and class.

A driver chooses the tree, so each count is over a set of rows that it likes. What leaves of the
rows of one node and class are, for every column, counts of *intervals*: categories next to each
other that hold ``min_count`` rows together, from the first one on, or one that holds as many
itself. Its rows count as if they were spread evenly over its categories. The few rows between
intervals, after the last one or with missing values do not count. What an interval is follows
from numbers of rows alone: whichever of its rows is left out changes the same, and the rows in no
interval change nothing.

The rows of an interval are compared with those of all intervals that left before, of any column,
node, job and ask, and with those of all cells (:class:`Memory`): where the two differ in fewer than
``min_count`` rows, the earlier number is sent again (:class:`RowSets`). So no count, and no
difference of two, rests on fewer rows.

Where the owner counts persons, one row of each counts, the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from solera.core.clients import BoolArray, Client, IntArray
from solera.core.disclosure.row_sets import RowSets
from solera.core.release import Leaving, Release

_MOST = 1 << 25
"""The most counts of an ask."""


class NodeCells(NamedTuple):
    """Where every row is counted.

    ``node``: the number of its node, −1 for none. ``label``: its class. ``cell``: rows × columns,
    those of column j from ``starts[j]`` on, its missing values in the last one.
    """

    node: IntArray
    label: IntArray
    cell: IntArray
    starts: IntArray


class NodeCounts(Release):
    """An entry nodes × cells × classes; ``cells``: (client, ask) → :class:`NodeCells`."""

    kind = "tree"
    says = "counts of rows by node, column and class, in intervals of at least min_count rows"

    def __init__(self, entry: str, *, cells: Callable[[Client, Any], NodeCells]) -> None:
        super().__init__(entry)
        self.cells = cells

    def judge(self, leaving: Leaving) -> Any:
        (entry,) = self.entries
        value = leaving.get(entry)
        nodes, _, classes = value.shape
        if value.size > _MOST:
            raise leaving.refuse(f"{value.size:,} counts are too many for one ask")
        least = leaving.limits.min_count
        cells = self.cells(leaving.client, leaving.ask)
        once = leaving.gate.persons(leaving.client, "train").first_rows(len(cells.node))
        line = np.where((cells.node >= 0) & once, cells.node * classes + cells.label, -1)
        columns = [
            _Column(line, cells.cell[:, j] - first, nodes * classes, after - first, least)
            for j, (first, after) in enumerate(pairwise(cells.starts.tolist()))
        ]
        offsets = np.cumsum([0, *(column.intervals for column in columns)])
        own = np.stack([c.of_rows(at) for c, at in zip(columns, offsets, strict=False)], axis=1)
        sizes, numbers, new = _told(leaving, own, int(offsets[-1]), int(once.sum()))

        def by_cell(intervals: IntArray, otherwise: int, spread: bool) -> Any:
            found = [
                column.by_cell(intervals[at:], otherwise, spread)
                for column, at in zip(columns, offsets, strict=False)
            ]
            return np.concatenate(found, axis=1).reshape(nodes, classes, -1).transpose(0, 2, 1)

        leaving.outcome[entry] = by_cell(np.where(new, 0, 2), 1, spread=False)
        leaving.merged[entry] = by_cell(sizes, 0, spread=True)
        leaving.put(entry, by_cell(numbers, 0, spread=True).astype(value.dtype))
        return leaving.reply


class SetCounts(Release):
    """An entry of counts, each over a set of training rows that the asker chose.

    Those of at least ``min_count`` rows leave, the others are 0; they are compared with each other
    and with all that left before, as counts at nodes are. Within a margin, whose total others know,
    no or at least ``min_count`` rows are withheld.

    ``cells``: (client, ask) → rows × any number of columns, the places in the entry at which a row
    counts, −1 for none. ``margins``: (ask) → the margin of every place.
    """

    kind = "tree"
    says = "counts of rows along trees, of at least min_count rows"

    def __init__(
        self,
        entry: str,
        *,
        cells: Callable[[Client, Any], IntArray],
        margins: Callable[[Any], IntArray],
    ) -> None:
        super().__init__(entry)
        self.cells = cells
        self.margins = margins

    def judge(self, leaving: Leaving) -> Any:
        (entry,) = self.entries
        value = leaving.get(entry)
        own = self.cells(leaving.client, leaving.ask)
        once = leaving.gate.persons(leaving.client, "train").first_rows(len(own))
        own = np.where(once[:, None], own, -1)
        rows = np.bincount(own[own >= 0], minlength=value.size)
        many = _without_remainders(rows, self.margins(leaving.ask), leaving.limits.min_count)
        place = np.where(many, np.cumsum(many) - 1, -1)
        kept = np.where(own >= 0, place[own], -1)
        sizes, numbers, new = _told(leaving, kept, int(many.sum()), int(once.sum()))

        def by_cell(found: Any, otherwise: Any) -> Any:
            out = np.zeros(value.size, dtype=np.int64) + otherwise
            out[many] = found
            return out.reshape(value.shape)

        leaving.outcome[entry] = by_cell(np.where(new, 0, 2), np.where(rows > 0, 1, 2))
        leaving.merged[entry] = by_cell(sizes, 0)
        leaving.put(entry, by_cell(numbers, 0).astype(value.dtype))
        return leaving.reply


def _without_remainders(rows: IntArray, margins: IntArray, least: int) -> BoolArray:
    """Which counts are large, less the smallest of a margin where the others are too few rows."""
    many = rows >= least
    rest = np.bincount(margins, weights=np.where(many, 0, rows))
    for margin in np.flatnonzero((rest > 0) & (rest < least)).tolist():
        there = np.flatnonzero((margins == margin) & many)
        many[there[rows[there].argsort(kind="stable")][:1]] = False
    return many


def _told(
    leaving: Leaving, own: IntArray, intervals: int, everyone: int
) -> tuple[IntArray, IntArray, BoolArray]:
    """How many rows every interval has, the number that is told of it, and whether it is new.

    ``own``: in which interval of every column a row is, −1 for none. ``everyone``: the rows that
    count.
    """
    row, column = np.nonzero(own >= 0)
    of = own[row, column]
    sizes = np.bincount(of, minlength=intervals)
    now = RowSets(row[np.argsort(of, kind="stable")].astype(np.int32), np.cumsum(sizes))
    memory, limits = leaving.memory, leaving.limits
    right, counts = memory.counted()
    now = replace(now, after=np.full(intervals, len(counts), dtype=np.int32))
    cells: dict[int, tuple[int, int]] = {}
    if len(right) == len(own):
        given = leaving.gate.persons(leaving.client, "train").at_first_rows(right)
        for one, cell in now.near(given, limits.min_count):
            if not np.isnan(counts[cell]) and cell <= cells.get(one, (cell, 0))[0]:
                cells[one] = cell, int(counts[cell])
    least = limits.min_count
    kept, numbers, new = memory.sets.with_more(now, len(own), least, everyone, cells)
    values = len(own) * leaving.client.data.schema.width
    memory.spend(len(kept) - len(memory.sets), limits.numbers * max(1, values))
    memory.sets = kept
    return sizes, numbers, new


class _Column:
    """The intervals of one column, for every line: the rows of one node and class.

    ``place``: lines × cells, the interval of a cell, −1 for none.
    """

    def __init__(self, line: IntArray, cell: IntArray, lines: int, cells: int, least: int) -> None:
        self.line, self.cell = line, cell
        inside = line >= 0
        counts = np.bincount(line[inside] * cells + cell[inside], minlength=lines * cells)
        counts = counts.reshape(lines, cells)
        many = counts >= least
        self.place = np.full((lines, cells), -1)
        self.intervals = 0
        at = np.arange(cells)
        first, waiting = np.zeros((2, lines), dtype=np.int64)
        for k in range(cells):
            waiting += counts[:, k]
            alone = many[:, k]
            full = np.flatnonzero(alone if k == cells - 1 else waiting >= least)
            own = self.intervals + np.arange(len(full))
            begin = np.where(alone[full], k, first[full])
            within = (at >= begin[:, None]) & (at <= k)
            self.place[full] = np.where(within, own[:, None], self.place[full])
            self.intervals += len(full)
            first[full], waiting[full] = k + 1, 0
        self.width = np.bincount(self.place[self.place >= 0], minlength=self.intervals)

    def of_rows(self, offset: int) -> IntArray:
        """The interval of every row, counted from ``offset`` on."""
        own = self.place[self.line, self.cell]
        return np.where((self.line >= 0) & (own >= 0), own + offset, -1)

    def by_cell(self, intervals: IntArray, otherwise: int, spread: bool) -> Any:
        """Something about intervals at each of their cells, or in equal parts: lines × cells."""
        there = self.place >= 0
        own = self.place[there]
        found = np.full(self.place.shape, float(otherwise))
        found[there] = intervals[own] / self.width[own] if spread else intervals[own]
        return found
