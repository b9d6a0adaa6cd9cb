"""Sets of rows whose sizes left a client, none of which differs in a few rows from another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from solera.core.clients import BoolArray, IntArray

_MOST = 1 << 24
"""Pairs of sets with a row in common that are looked at together."""


def _none() -> IntArray:
    return np.zeros(0, dtype=np.int32)


@dataclass(frozen=True)
class RowSets:
    """Rows of one set after the other, and where each set ends."""

    rows: IntArray = field(default_factory=_none)
    ends: IntArray = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def sizes(self) -> IntArray:
        return np.diff(self.ends, prepend=0)

    def with_more(
        self, now: RowSets, rows: int, least: int, everyone: int | None = None
    ) -> tuple[RowSets, IntArray, BoolArray]:
        """These sets with the new ones of ``now``; of each of ``now`` a number, and if it is new.

        The number is the size of the set. One that differs in fewer than ``least`` rows from an
        earlier set, or from all ``rows`` (``everyone``, where fewer count), has the size of that
        one, the first of several, and is not taken up.
        """
        everyone = rows if everyone is None else everyone
        both = self._and(now)
        sizes, known = both.sizes, len(self)
        numbers, kept = sizes.copy(), np.ones(len(both), dtype=bool)
        nearly_all = everyone - sizes < least
        nearly_all[:known] = False
        numbers[nearly_all], kept[nearly_all] = everyone, False
        for new, other in both._near(known, rows, least):
            if kept[new] and kept[other]:
                numbers[new], kept[new] = sizes[other], False
        return both._only(kept), numbers[known:], kept[known:]

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
        ends = more.ends + len(self.rows)
        return RowSets(np.concatenate([self.rows, more.rows]), np.concatenate([self.ends, ends]))

    def _only(self, kept: BoolArray) -> RowSets:
        return RowSets(self.rows[np.repeat(kept, self.sizes)], np.cumsum(self.sizes[kept]))
