"""What left a client, so that two answers do not give what neither gave.

For every number that left, the memory keeps what each row gave to it (the ``right`` factor of
:class:`~solera.core.disclosure.evidence.Sums`; ``left`` is recognised by its digest) and the number
itself, NaN for one that was withheld while others of its cell left. A new number whose difference
to an earlier one would rest on too few rows is not sent: the earlier one is sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Self

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray, IntArray
from solera.core.disclosure.evidence import Left, Persons, Sums
from solera.core.disclosure.row_sets import RowSets
from solera.core.errors import GateRefusal

_WEIGHTS = 0x9E3779B97F4A7C15
_COUNTS = "train//1"
"""The family of counts of training rows."""


class Memory:
    """What left one client's data set: over all jobs, and in one version of its rows.

    ``sets``: rows that were counted along trees (:mod:`solera.core.disclosure.node_counts`); they
    and the cells of training rows are compared with each other.
    ``events``: what left with noise, in a simulation; an agent has a ledger.
    """

    def __init__(self) -> None:
        self.numbers = 0
        self.rows: IntArray | None = None
        self.families: dict[str, tuple[Array, FloatArray]] = {}
        self.sets = RowSets()
        self.events: list[dict[str, Any]] = []
        self._digests: dict[str, list[bytes]] = {}
        self._left: tuple[Left, str] = None, left_digest(None)

    # --- which rows ---

    def check_rows(self, rows: IntArray, least: int) -> None:
        """Begin anew where the rows have changed; refuse where only a few have.

        ``rows`` are :func:`row_digests`. Answers about two tables that differ in a few rows tell
        these by subtraction.
        """
        if self.rows is not None and not np.array_equal(self.rows, rows):
            changed = len(np.setxor1d(self.rows, rows))
            if changed < least:
                raise GateRefusal(f"fewer than {least} rows have changed since the last answer")
            self.families.clear()
            self._digests.clear()
            self.sets = RowSets()
        self.rows = rows

    # --- what left ---

    def spend(self, numbers: int, most: float) -> None:
        """Count numbers that leave; refuse beyond the owner's limit."""
        if self.numbers + numbers > most:
            raise GateRefusal(f"{self.numbers:,} numbers have left, of at most {most:,.0f}")
        self.numbers += numbers

    def earlier(
        self, sums: Sums, persons: Persons, least: int, withheld: BoolArray | None = None
    ) -> tuple[BoolArray, FloatArray]:
        """Which of the numbers must not leave as they are, and the earlier ones in their place.

        One of the ``withheld`` never stands for another.
        """
        conflict = np.zeros(sums.shape, dtype=bool)
        instead = np.zeros(sums.shape)
        right, released = self.known(sums)
        sets = self.near_sets(sums, persons, least)
        if sums.left is None and persons.of is None and right.dtype == sums.right.dtype == bool:
            told = np.ones(sums.shape, dtype=bool) if withheld is None else ~withheld
            told[list(sets)] = False
            found = _earlier_counts(sums.right, right, released, least, told[:, 0])
            return self._or_of_sets(*found, sets)
        if not right.shape[1] and not sets:
            return conflict, instead
        first = np.zeros(sums.shape[0], dtype=np.int64)
        for k, now in enumerate(sums.right.T if right.shape[1] else ()):
            difference = right.astype(float) - now.astype(float)[:, None]
            n = sums.effective_of(difference, persons, least)
            n[np.isnan(released)] = np.inf
            for j in np.flatnonzero((n < least).any(axis=0)):
                first[k] = np.argmax(n[:, j] < least)  # for good
                conflict[k, j] = True
                instead[k, j] = released[first[k], j]
        return self._or_of_sets(conflict, instead, first, sets)

    def counted(self) -> tuple[Array, FloatArray]:
        """Cells of training rows whose counts left: what rows gave, and the counts."""
        right, released = self.families.get(_COUNTS, (np.empty((0, 0)), np.empty((0, 1))))
        return right, released[:, 0]

    def near_sets(self, sums: Sums, persons: Persons, least: int) -> dict[int, int]:
        """The first set that is too near to each of the numbers, for those that have one."""
        if not len(self.sets) or self._family(sums) != _COUNTS:
            return {}
        found: dict[int, int] = {}
        for one, k in self.sets.near(persons.at_first_rows(sums.right), least):
            found[k] = min(one, found.get(k, one))
        return found

    def _or_of_sets(
        self, conflict: BoolArray, instead: FloatArray, first: IntArray, sets: dict[int, int]
    ) -> tuple[BoolArray, FloatArray]:
        """The same where sets are near, which stand for a number if they left ``first``."""
        for k, one in sets.items():
            if not conflict[k, 0] or first[k] >= self.sets.after[one]:
                conflict[k, 0], instead[k, 0] = True, self.sets.sizes[one]
        return conflict, instead

    def told(self, sums: Sums) -> tuple[BoolArray, FloatArray]:
        """Which of the cells were asked before, and what was told then.

        They get the same again, whatever left since: an ask that is tried or asked once more, in
        this job or another, has the same reply to the bit.
        """
        right, released = self.known(sums)
        places = {digest: place for place, digest in enumerate(self._known_digests(sums))}
        again = np.zeros(sums.shape[0], dtype=bool)
        told = np.zeros(sums.shape)
        for k, digest in enumerate(_column_digests(sums.right.astype(right.dtype))):
            if digest in places:
                again[k] = True
                told[k] = released[places[digest]]
        return again, told

    def known(self, sums: Sums) -> tuple[Array, FloatArray]:
        """What rows gave to earlier numbers of the same kind, and these numbers."""
        known = self.families.get(self._family(sums))
        if known is None or len(known[0]) != len(sums.right):
            return sums.right[:, :0], np.empty((0, sums.shape[1]))
        return known

    def keep(self, sums: Sums, released: FloatArray) -> int:
        """Remember what left; how many numbers of it are new."""
        right, kept = self.known(sums)
        digests = self._known_digests(sums)
        if right.dtype != sums.right.dtype:
            right = right.astype(float)
            digests = _column_digests(right)
        now = _column_digests(sums.right.astype(right.dtype))
        first = {digest: k for k, digest in reversed([*enumerate(now)])}
        fresh = sorted(first[digest] for digest in first.keys() - set(digests))
        if fresh:
            family = self._family(sums)
            right = np.concatenate([right, sums.right[:, fresh].astype(right.dtype)], axis=1)
            self.families[family] = right, np.concatenate([kept, released[fresh]])
            self._digests[family] = [*digests, *(now[k] for k in fresh)]
        return len(fresh) * sums.shape[1]

    def _known_digests(self, sums: Sums) -> list[bytes]:
        """Digests of what rows gave to earlier numbers of the same kind."""
        family, (right, _) = self._family(sums), self.known(sums)
        digests = self._digests.get(family)
        if digests is None or len(digests) != right.shape[1]:
            digests = self._digests[family] = _column_digests(right)
        return digests

    def _family(self, sums: Sums) -> str:
        if sums.left is not self._left[0]:
            self._left = sums.left, left_digest(sums.left)
        return f"{sums.part}/{sums.what}/{self._left[1]}"

    # --- on the way ---

    def to_payload(self) -> dict[str, Any]:
        """The memory as plain data."""
        return {
            "numbers": self.numbers,
            "rows": self.rows,
            "events": self.events,
            "sets": [self.sets.rows, self.sets.ends, self.sets.after],
            "families": {name: list(pair) for name, pair in self.families.items()},
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any] | None) -> Self:
        memory = cls()
        if payload is not None:
            memory.numbers, memory.rows = payload["numbers"], payload["rows"]
            memory.events = list(payload.get("events", ()))
            memory.sets = RowSets(*payload.get("sets", ()))
            memory.families = {
                name: (pair[0], pair[1]) for name, pair in payload["families"].items()
            }
        return memory


def _earlier_counts(
    now: BoolArray, right: BoolArray, released: FloatArray, least: int, told: BoolArray
) -> tuple[BoolArray, FloatArray, IntArray]:
    """The same for counts, which differ by the rows that are in one of two cells alone.

    Cells of one ask are compared with each other, too, and with no rows and all rows, which
    everybody knows: cumulative counts are judged by their steps. The last are the places of those
    that stand for a count, below 0 for these two.
    """
    none, everything = np.zeros((len(now), 1), bool), np.ones((len(now), 1), bool)
    cells = np.concatenate([none, everything, right, now], axis=1)
    sizes = cells.sum(axis=0)
    bits = _packed(cells)
    first = 2 + right.shape[1]
    numbers = np.concatenate([[0.0, len(now)], released[:, 0], sizes[first:]])
    by_size = np.argsort(sizes, kind="stable")
    ends = sizes[first:, None] + [1 - least, least]  # few rows apart, and so are the sizes
    spans = np.searchsorted(sizes, ends, sorter=by_size)
    usable = np.arange(len(bits)) < first  # cells of this ask once they are found sound
    conflict = np.zeros(now.shape[1], dtype=bool)
    instead = np.zeros(now.shape[1], dtype=np.int64)
    for k in np.flatnonzero(np.diff(spans)[:, 0] > 1).tolist():
        candidates = np.sort(by_size[slice(*spans[k])])
        candidates = candidates[usable[candidates]]
        apart = _ONES[bits[candidates] ^ bits[first + k]].sum(axis=1)
        near = candidates[(apart > 0) & (apart < least)]
        if len(near):
            conflict[k] = True
            numbers[first + k] = numbers[near[0]]
            instead[k] = near[0] - 2
        else:
            usable[first + k] = told[k]
    return conflict[:, None], numbers[first:, None], instead


_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)
"""How many bits of a byte are 1."""


def _packed(marks: BoolArray) -> Array:
    """Marks as bits, a line for each column."""
    return np.packbits(np.ascontiguousarray(marks.T), axis=1)


def row_digests(*columns: Any) -> IntArray:
    """A number for every row that is the same for equal rows, in order."""
    total: Any = None
    for array in columns:
        if array is None:
            continue
        dense = array.toarray() if hasattr(array, "toarray") else np.asarray(array)
        dense = dense.reshape(len(dense), -1)
        if dense.dtype.kind not in "biuf":
            dense = np.unique(dense, return_inverse=True)[1].reshape(dense.shape)
        bits = np.ascontiguousarray(dense, dtype=np.float64).view(np.uint64)
        total = _digest(bits, total)
    return np.sort(np.asarray(total).view(np.int64))


def _digest(bits: Any, total: Any) -> Any:
    with np.errstate(over="ignore"):
        total = np.full(len(bits), 17, dtype=np.uint64) if total is None else total
        for column in bits.T:
            total = (total ^ column) * np.uint64(_WEIGHTS)
            total ^= total >> np.uint64(29)
    return total


def _column_digests(right: Array) -> list[bytes]:
    columns = _packed(right) if right.dtype == bool else np.ascontiguousarray(right.T)
    return [blake2b(column.tobytes(), digest_size=12).digest() for column in columns]


def left_digest(left: Left) -> str:
    """What tells one view of the rows from another."""
    if left is None:
        return "1"
    told = blake2b(np.ascontiguousarray(left).tobytes(), digest_size=12)
    told.update(repr(left.shape).encode())
    return told.hexdigest()
