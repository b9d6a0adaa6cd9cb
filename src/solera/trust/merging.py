"""Which cells are told, by how many persons stand behind each of them.

The support of a cell carries noise of deviation 1 (:mod:`solera.trust.board.cell_keys`), so that a
cell is told from ``min_count`` + 5 on, and a group of k cells from ``min_count`` + 5√k: then fewer
than ``min_count`` persons are five deviations away.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray, IntArray
from solera.core.errors import UsageError
from solera.trust.cells import Behind, Cells

SAFETY = 5.0
"""Deviations of the noise between ``min_count`` and what is told."""


def least_support(min_count: int, cells: Any = 1) -> Any:
    """The support from which so many cells together are told."""
    return min_count + SAFETY * np.sqrt(cells)


def withheld(support: FloatArray, min_count: int) -> BoolArray:
    """The cells of a list that are not told.

    Those with too little support, and so many of the smallest others that all of these together
    have enough: they are what is left when the told ones are taken from the sum over all rows.
    """
    flat = support.ravel()
    order = np.argsort(flat, kind="stable")
    few = int(np.count_nonzero(flat < least_support(min_count)))
    while 0 < few < len(flat) and flat[order[:few]].sum() < least_support(min_count, few):
        few += 1
    marks = np.zeros(len(flat), dtype=bool)
    marks[order[:few]] = True
    return marks.reshape(support.shape)


class Neighbours(Cells):
    """Cells of which those next to each other on the last axis may be told together.

    Parameters
    ----------
    cells: the cells of every row.
    lines: for every cell of the last axis the number of its line (its column), in rising order;
        only cells of one line are merged. One line by default.
    siblings: so many entries of the axis before the last, one after the other, have one grouping:
        the children of a split. A group is told where it passes for all of them.
    groups: cells of a line with the same number are one cell already, as they were in the parent;
        a row for every grouping. By default every cell is one of its own.

    The sum of a group is in its last cell, and the others are absent; where all of a line together
    have too few persons, all of it is absent.
    """

    def __init__(
        self,
        cells: Cells,
        lines: IntArray | None = None,
        *,
        siblings: int = 1,
        groups: Array | None = None,
    ) -> None:
        self.cells = cells
        self.shape = cells.shape
        self.most = cells.most
        self.siblings = siblings
        width = self.shape[-1]
        self.lines = (
            np.zeros(width, dtype=np.int64) if lines is None else np.asarray(lines, dtype=np.int64)
        )
        self.groupings = cells.size // (width * siblings)
        if self.groupings * width * siblings != cells.size or len(self.lines) != width:
            raise UsageError(f"cells of shape {self.shape} are no {siblings} siblings of lines")
        own = np.arange(width) if groups is None else np.asarray(groups)
        labels = np.broadcast_to(own, (self.groupings, width))
        ends = np.ones((self.groupings, width), dtype=bool)
        ends[:, :-1] = (labels[:, 1:] != labels[:, :-1]) | (self.lines[1:] != self.lines[:-1])
        self.ends = ends
        """Which cells hold the sum of their group before anything is merged."""
        self._place = None if ends.all() else self._places_of(ends)

    def pairs(self, rows: int) -> tuple[Any, IntArray]:
        row, cell = self.cells.pairs(rows)
        return row, cell if self._place is None else self._place[cell]

    def count(self, behind: Behind) -> IntArray:
        counts: IntArray = self._gathered(self.cells.count(behind))
        return counts

    def sum(self, values: Array, behind: Behind) -> FloatArray:
        sums: FloatArray = self._gathered(self.cells.sum(values, behind))
        return sums

    def told(self, support: FloatArray, min_count: int) -> BoolArray:
        """The last cells of the groups that are told, after as few merges as will do."""
        width = self.shape[-1]
        by_line = support.reshape(self.groupings, self.siblings, width)
        known = by_line.tobytes(), self.ends.tobytes(), self.lines.tobytes()
        ends = _merged_once(*known, by_line.shape, min_count)
        return np.repeat(ends, self.siblings, axis=0).reshape(self.shape)

    def gathered(self, numbers: Array, told: BoolArray) -> Array:
        """Numbers by cell, where each that is told holds the sum of its group."""
        ends = told.reshape(self.groupings, self.siblings, -1)[:, 0]
        place = self._places_of(ends)
        return np.asarray(_moved(numbers, place))

    def _gathered(self, numbers: Any) -> Any:
        return numbers if self._place is None else _moved(numbers, self._place)

    def _places_of(self, ends: BoolArray) -> IntArray:
        """For every cell the number of the cell that holds the sum of its group.

        What is after the last told cell of a line stays in its place.
        """
        width = ends.shape[1]
        place = np.where(ends, np.arange(width), width)
        following = np.minimum.accumulate(place[:, ::-1], axis=1)[:, ::-1]
        inside = np.minimum(following, width - 1)
        same = (following < width) & (self.lines[inside] == self.lines)
        following = np.where(same, inside, np.arange(width))
        first = np.arange(self.groupings * self.siblings)[:, None] * width
        places: IntArray = (first + np.repeat(following, self.siblings, axis=0)).ravel()
        return places


def _moved(numbers: Any, place: IntArray) -> Any:
    """The numbers of all cells, added up where the cells have gone."""
    flat = numbers.reshape(len(place), -1)
    moved = np.zeros_like(flat)
    np.add.at(moved, place, flat)
    return moved.reshape(numbers.shape)


@lru_cache(maxsize=32)
def _merged_once(
    support: bytes, ends: bytes, lines: bytes, shape: tuple[int, ...], min_count: int
) -> BoolArray:
    """:func:`_merged` of arrays as bytes: simulated owners all work out the same."""
    groupings, _, width = shape
    by_line = np.frombuffer(support).reshape(shape)
    each = np.frombuffer(ends, dtype=bool).reshape(groupings, width)
    return _merged(by_line, each, np.frombuffer(lines, dtype=np.int64), min_count)


def _merged(support: FloatArray, ends: BoolArray, lines: IntArray, min_count: int) -> BoolArray:
    """The last cells of told groups, groupings × cells; support is groupings × siblings × cells.

    As long as a group of a line has too little support, the smallest such is merged with the
    smaller of its neighbours. All lines take a step at the same time.
    """
    _, line, length = np.unique(lines, return_inverse=True, return_counts=True)
    place = np.arange(len(lines)) - np.repeat(np.cumsum(length) - length, length)
    groupings, siblings, _ = support.shape
    shape = groupings, len(length), int(length.max())
    alive = np.zeros(shape, dtype=bool)
    alive[:, line, place] = ends
    size = np.zeros((*shape, siblings))
    size[:, line, place] = support.transpose(0, 2, 1)
    groups = _Groups(size.reshape(-1, shape[2], siblings), alive.reshape(-1, shape[2]))
    while groups.merge_smallest(min_count):
        pass
    told: BoolArray = groups.told(min_count).reshape(shape)[:, line, place]
    return told


class _Groups:
    """Groups of cells in lines: their support (lines × cells × siblings), and which there are."""

    def __init__(self, support: FloatArray, alive: BoolArray) -> None:
        self.support = support
        self.least = support.min(axis=-1)
        """The smallest support of every group among its siblings."""
        self.alive = alive
        self.cells = np.ones(alive.shape)
        self.before, self.after = _links(alive)
        self.open = np.arange(len(alive))
        """The lines in which something may have to be merged."""

    def merge_smallest(self, min_count: int) -> bool:
        """Merge one group of every line that needs it; whether there was any."""
        few = self._too_few(self.open, min_count)
        needed = few.any(axis=1) & (self.alive[self.open].sum(axis=1) > 1)
        self.open, few = self.open[needed], few[needed]
        if not len(self.open):
            return False
        line = self.open
        smallest = np.where(few, self.least[line], np.inf).argmin(axis=1)
        before, after = self.before[line, smallest], self.after[line, smallest]
        to_left = self._size_at(line, before) <= self._size_at(line, after)
        into_before = to_left & (before >= 0)
        first = np.where(into_before, before, smallest)
        last = np.where(into_before, smallest, after)
        self.support[line, last] += self.support[line, first]
        self.least[line, last] = self.support[line, last].min(axis=-1)
        self.cells[line, last] += self.cells[line, first]
        self.alive[line, first] = False
        further = self.before[line, first]
        self.before[line, last] = further
        linked = further >= 0
        self.after[line[linked], further[linked]] = last[linked]
        return True

    def told(self, min_count: int) -> BoolArray:
        """The groups with enough support."""
        return self.alive & ~self._too_few(np.arange(len(self.alive)), min_count)

    def _too_few(self, line: IntArray, min_count: int) -> BoolArray:
        few = self.least[line] < least_support(min_count, self.cells[line])
        return np.asarray(few & self.alive[line])

    def _size_at(self, line: IntArray, place: IntArray) -> FloatArray:
        """The smallest support at a place of every line; without bound where there is none."""
        at = self.least[line, np.maximum(place, 0)]
        return np.where(place >= 0, at, np.inf)


def _links(alive: BoolArray) -> tuple[IntArray, IntArray]:
    """For every cell the group before it and the one after it in its line; −1 for none."""
    width = alive.shape[1]
    place = np.arange(width)
    before = np.maximum.accumulate(np.where(alive, place, -1), axis=1)
    before = np.concatenate([np.full((len(alive), 1), -1), before[:, :-1]], axis=1)
    after = np.minimum.accumulate(np.where(alive, place, width)[:, ::-1], axis=1)[:, ::-1]
    after = np.concatenate([after[:, 1:], np.full((len(alive), 1), width)], axis=1)
    return before, np.where(after == width, -1, after)
