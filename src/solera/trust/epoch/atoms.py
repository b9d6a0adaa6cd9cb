"""Atoms: the cells of every column, each with at least ``min_count`` persons of all owners.

They are categories, or intervals of the dictionary's grid, and part of the epoch: every bin,
quantile and threshold of a closed job is a union of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from solera.core.clients import BoolArray, FloatArray, IntArray
from solera.core.config import nearest
from solera.core.errors import UsageError
from solera.trust.epoch.dictionary import Dictionary, DictionaryColumn
from solera.trust.merging import least_support

FINEST = 1 << 16
"""Steps of the grid between the bounds of a column for which the dictionary has none."""


@dataclass(frozen=True)
class Atoms:
    """The atoms of every column of a dictionary, by its name.

    ``intervals`` are the inner edges of numbers and dates, ``categories`` the number of the atom
    of each category: those that few persons have are one atom together, *other*, the last one.
    A value that is missing is in no atom.

    Examples
    --------
    >>> from solera.epochs import Atoms
    >>> atoms = Atoms({"age": (45.0, 60.0)}, {"ward": (0, 2, 1, 2)})
    >>> atoms.edges("age").tolist(), atoms.count("age")
    ([45.0, 60.0], 3)
    >>> atoms.groups("ward").tolist(), atoms.count("ward")
    ([0, 2, 1, 2], 3)
    """

    intervals: Mapping[str, tuple[float, ...]]
    categories: Mapping[str, tuple[int, ...]]

    def edges(self, name: str) -> FloatArray:
        """The inner edges of a column of numbers or dates: atom i is e_i ≤ x < e_{i+1}."""
        return np.array(self._of(self.intervals, name), dtype=np.float64)

    def groups(self, name: str) -> IntArray:
        """The atom of every category of a column."""
        return np.array(self._of(self.categories, name), dtype=np.int64)

    def count(self, name: str) -> int:
        """How many atoms a column has."""
        if name in self.categories:
            return max(self.categories[name]) + 1
        return len(self._of(self.intervals, name)) + 1

    def to_payload(self) -> list[Any]:
        intervals = {name: self.edges(name) for name in self.intervals}
        return [intervals, {name: self.groups(name) for name in self.categories}]

    @classmethod
    def from_payload(cls, fields: Any, dictionary: Dictionary) -> Self:
        """The atoms of a payload, or an error unless they are of this dictionary's columns."""
        try:
            intervals, categories = fields
            atoms = cls(
                {name: tuple(map(float, edges)) for name, edges in intervals.items()},
                {name: tuple(map(int, groups)) for name, groups in categories.items()},
            )
        except (TypeError, ValueError, AttributeError):
            raise UsageError("these are no atoms") from None
        for column in dictionary.columns:
            if not atoms._fit(column):
                raise UsageError(f"the atoms of column {column.name!r} do not fit its entry")
        if len(intervals) + len(categories) != len(dictionary.columns):
            raise UsageError("there are atoms of other columns than the dictionary has")
        return atoms

    def _of(self, kind: Mapping[str, Any], name: str) -> Any:
        if name in kind:
            return kind[name]
        if name in self.intervals or name in self.categories:
            other = "groups" if name in self.categories else "edges"
            raise UsageError(f"column {name!r} has none", hint=f"atoms.{other}({name!r})")
        hint = nearest(name, [*self.intervals, *self.categories])
        raise UsageError(f"there are no atoms of {name!r}", hint=hint)

    def _fit(self, column: DictionaryColumn) -> bool:
        if column.kind == "categorical":
            groups = self.categories.get(column.name, ())
            counted = set(groups) == set(range(len(set(groups))))
            return counted and len(groups) == len(column.categories)
        edges = np.array(self.intervals.get(column.name, (np.nan,)))
        assert column.bounds is not None
        low, high = column.bounds
        return bool(((low < edges) & (edges <= high)).all() and (np.diff(edges) > 0).all())


class ColumnCells:
    """The cells of one column while its grid is halved; those of categories stay as they are.

    ``ends`` are numbers of the grid's steps, ``supports`` the persons of each cell, NaN where they
    were not counted yet.
    """

    def __init__(self, column: DictionaryColumn) -> None:
        self.column = column
        low, high = column.bounds or (0.0, 0.0)
        self.step = column.grid or (1.0 if column.kind == "date" else (high - low) / FINEST) or 1.0
        self.low = low
        self.ends = np.array([0, int((high - low) / self.step * (1 + 1e-12)) + 1])
        if column.kind == "categorical":
            self.ends = np.arange(len(column.categories) + 1)
        self.supports = np.full(len(self.ends) - 1, np.nan)

    @property
    def edges(self) -> FloatArray:
        """The inner edges as values; in 12 digits, so that .1 + 2 × .1 is the .3 of a file."""
        return np.array([float(f"{self.low + end * self.step:.12g}") for end in self.ends[1:-1]])

    @property
    def uncounted(self) -> BoolArray:
        return np.asarray(np.isnan(self.supports))

    def halve(self, least: float) -> None:
        """Halve the cells with at least so much support."""
        if self.column.kind == "categorical":
            return
        first, last = self.ends[:-1], self.ends[1:]
        place = np.flatnonzero((self.supports >= least) & (last - first > 1))
        middles = (first[place] + last[place]) // 2
        self.ends = np.insert(self.ends, place + 1, middles)
        self.supports[place] = np.nan
        self.supports = np.insert(self.supports, place + 1, np.nan)


def merged_cells(supports: FloatArray, min_count: int) -> IntArray:
    """Where groups of neighbours end, merged from the left until each has enough support.

    What is left on the right is merged with the group before it, until that is enough; where
    nothing is, all cells are one group.
    """
    groups: list[tuple[int, float, int]] = []
    end, total, cells = 0, 0.0, 0
    for support in supports.tolist():
        end, total, cells = end + 1, total + support, cells + 1
        if total >= least_support(min_count, cells):
            groups.append((end, total, cells))
            total, cells = 0.0, 0
    while cells and groups and total < least_support(min_count, cells):
        _, before, more = groups.pop()
        total, cells = total + before, cells + more
    ends = [place for place, _, _ in groups]
    return np.array([*ends, end] if cells else ends)


def merged_categories(supports: FloatArray, min_count: int) -> tuple[int, ...]:
    """The atom of every category: those with too little support are one atom, the last one.

    While that has too little itself, the smallest of the others is part of it.
    """
    order = np.argsort(supports, kind="stable")
    few = int(np.count_nonzero(supports < least_support(min_count)))
    while 0 < few < len(supports) and supports[order[:few]].sum() < least_support(min_count, few):
        few += 1
    is_other = np.isin(np.arange(len(supports)), order[:few])
    groups = np.where(is_other, np.count_nonzero(~is_other), np.cumsum(~is_other) - 1)
    return tuple(groups.tolist())
