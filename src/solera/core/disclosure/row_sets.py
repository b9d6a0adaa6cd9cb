"""Sets of rows whose sizes left a client, none of which differs in a few rows from another.

They are compared with each other and with the cells whose counts left (:class:`Memory`): a count
along a tree less one of a confusion matrix is as good as two of either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from solera.core.clients import BoolArray, FloatArray, IntArray

_MOST = 1 << 24
"""Pairs of sets with a row in common that are looked at together."""


def _none() -> IntArray:
    return np.zeros(0, dtype=np.int32)


@dataclass(frozen=True)
class RowSets:
    """Rows of one set after the other, where each ends, and after how many cells it left."""

    rows: IntArray = field(default_factory=_none)
    ends: IntArray = field(default_factory=_none)
    after: IntArray = field(default_factory=_none)

    def __post_init__(self) -> None:
        if len(self.after) != len(self.ends):
            object.__setattr__(self, "after", np.zeros(len(self.ends), dtype=np.int32))

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def sizes(self) -> IntArray:
        return np.diff(self.ends, prepend=0)

    def with_more(
        self,
        now: RowSets,
        rows: int,
        least: int,
        everyone: int | None = None,
        cells: Mapping[int, tuple[int, int]] | None = None,
    ) -> tuple[RowSets, IntArray, BoolArray]:
        """These sets with the new ones of ``now``; of each of ``now`` a number, and if it is new.

        The number is the size of the set. One that differs in fewer than ``least`` rows from an
        earlier set, from all ``rows`` (``everyone``, where fewer count) or from a cell has the
        number of that one, the first of several, and is not taken up.

        ``cells``: by sets of ``now``, the first cell that is as near, and its number.
        """
        everyone = rows if everyone is None else everyone
        cells = {} if cells is None else cells
        both = self._and(now)
        sizes, known = both.sizes, len(self)
        numbers, kept = sizes.copy(), np.ones(len(both), dtype=bool)
        for new, (_, number) in cells.items():
            numbers[known + new], kept[known + new] = number, False
        nearly_all = everyone - sizes < least
        nearly_all[:known] = False
        numbers[nearly_all], kept[nearly_all] = everyone, False
        compared = nearly_all.copy()
        for new, other in both._near(known, rows, least):
            if compared[new] or not kept[other]:
                continue
            cell, _ = cells.get(new - known, (both.after[other], 0))
            if cell >= both.after[other]:
                numbers[new] = sizes[other]
            kept[new], compared[new] = False, True
        return both._only(kept), numbers[known:], kept[known:]

    def near(self, given: FloatArray, least: int) -> Iterator[tuple[int, int]]:
        """Sets, with each cell whose count differs by what fewer than ``least`` rows gave.

        ``given``: rows × cells. With sᵢ = 1 for the rows of a set, the difference rests on
        (Σ|cᵢ − sᵢ|)² / Σ(cᵢ − sᵢ)² effective rows.
        """
        from scipy.sparse import csr_array

        ones = np.ones(len(self.rows))
        marks = csr_array((ones, self.rows, [0, *self.ends]), shape=(len(self), len(given)))
        step = max(1, _MOST // max(1, len(self)))
        for first in range(0, given.shape[1] if len(self) else 0, step):
            c = given[:, first : first + step].astype(float)
            size = np.abs(c)
            total = size.sum(axis=0) + marks @ (np.abs(c - 1) - size)
            squares = (c**2).sum(axis=0) + marks @ (1 - 2 * c)
            near = (squares > 0.5) & (total**2 < least * squares)
            for one, cell in np.argwhere(near).tolist():
                yield one, first + cell

    def _near(self, known: int, rows: int, least: int) -> Iterator[tuple[int, int]]:
        """Sets from ``known`` on, with each set before it that differs in fewer rows, in order."""
        from scipy.sparse import csr_array

        begin = self.ends - self.sizes
        ones = np.ones(len(self.rows), dtype=np.int32)
        marks = csr_array((ones, self.rows, [0, *self.ends]), shape=(len(self), rows))
        others = marks.T.tocsr()
        pairs = np.cumsum(np.bincount(self.rows, minlength=rows)[self.rows])
        first = known
        while first < len(self):
            most = _MOST + (pairs[begin[first] - 1] if begin[first] else 0)
            last = max(first + 1, int(np.searchsorted(pairs[self.ends - 1], most)))
            shared = (marks[first:last] @ others).tocoo()
            new, other = shared.row + first, shared.col
            apart = self.sizes[new] + self.sizes[other] - 2 * shared.data
            near = (apart < least) & (other < new)
            new, other = new[near], other[near]
            order = np.lexsort([other, new])
            yield from zip(new[order].tolist(), other[order].tolist(), strict=True)
            first = last

    def _and(self, more: RowSets) -> RowSets:
        return RowSets(
            np.concatenate([self.rows, more.rows]),
            np.concatenate([self.ends, more.ends + len(self.rows)]),
            np.concatenate([self.after, more.after]),
        )

    def _only(self, kept: BoolArray) -> RowSets:
        rows = self.rows[np.repeat(kept, self.sizes)]
        return RowSets(rows, np.cumsum(self.sizes[kept]), self.after[kept])
