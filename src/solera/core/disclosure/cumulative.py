"""How many values lie below an edge, so that no number of edges tells a value.

A grid of edges finds every value at which the count steps, and withholding small steps only leaves
it every fifth one. So the steps are not at values. The values of a column are put into intervals of
an agreed grid, the binary trie of floating-point numbers: first by sign, then by halves of the
exponents, then by halves of the mantissa, down to a millionth of the size. From the whole line on,
an interval is divided where both halves hold ``min_count`` persons. Where one half holds fewer and
both together 3 ``min_count`` − 2, the few count as if they were at the border to the other half,
which is divided on; otherwise the interval is a last one. As in Mondrian (LeFevre, DeWitt &
Ramakrishnan 2006), at least ``min_count`` persons are in each; a few more may lie beyond its ends.
The values of an interval count as if they were spread evenly over it.

All that any asks can learn are the ends of these intervals, which are agreed numbers, and how many
rows count in each. Every decision compares a number of persons with a limit, and the persons of
one interval are counted alike in all of them: leaving out one of them changes the intervals as
leaving out any other would. So whatever is computed from the intervals of a column, and from them
alone, rests on ``min_count`` persons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from solera.core.clients import BoolArray, Client, FloatArray, IntArray
from solera.core.disclosure.evidence import Persons, Sums
from solera.core.release import Leaving, Release, release_numbers

_DROPPED, _BITS, _MANTISSA = 32, 32, 20
"""Bits of a number below the last interval, those that are left, and of these the mantissa."""
_MOST_KEPT = 1 << 22
"""Rows of columns whose intervals are kept."""
_ZERO = 1 << (_BITS - 1)
"""The place of the first interval above 0."""


class Cumulative(Release):
    """For every column, how many of its known values are at most each of its edges.

    ``values``: (client, ask) → the values, rows × columns, and the edges, columns × any shape,
    which is the shape of the entry.
    """

    kind = "cells"
    says = "counts of values below edges, in intervals of at least min_count rows"

    def __init__(
        self, entry: str, *, values: Callable[[Client, Any], tuple[FloatArray, FloatArray]]
    ) -> None:
        super().__init__(entry)
        self.values = values

    def judge(self, leaving: Leaving) -> Any:
        (entry,) = self.entries
        values, edges = self.values(leaving.client, leaving.ask)
        persons = leaving.gate.persons(leaving.client, "train")
        tables = [intervals(column, leaving.limits.min_count, persons) for column in values.T]
        needed = [table.needed(own) for table, own in zip(tables, edges, strict=True)]
        marks = [table.below(ends) for table, ends in zip(tables, needed, strict=True)]
        sums = Sums(np.concatenate(marks, axis=1))
        numbers = sums.right.sum(axis=0)[:, None].astype(float)
        nothing = np.zeros(sums.shape, dtype=bool)
        leaves = release_numbers(leaving, entry, sums, numbers, nothing, np.zeros(sums.shape))
        counts = np.split(leaves[:, 0], np.cumsum([len(ends) for ends in needed])[:-1])
        told = [
            table.between(own, ends, count)
            for table, own, ends, count in zip(tables, edges, needed, counts, strict=True)
        ]
        changed = np.split(leaves[:, 0] != numbers[:, 0], np.cumsum(list(map(len, needed)))[:-1])
        follows = [
            table.follows(own, ends, marks)
            for table, own, ends, marks in zip(tables, edges, needed, changed, strict=True)
        ]
        leaving.outcome[entry] = np.where(np.stack(follows), 2, 0)
        leaving.put(entry, np.round(np.stack(told)).astype(leaving.get(entry).dtype))
        return leaving.reply


@dataclass(frozen=True)
class Intervals:
    """Which interval (low, high] every value is in, −1 for an unknown one.

    A few of the values that count in an interval may be higher, up to its ``reach``, or lower, down
    to the reach of the interval before it.
    """

    own: IntArray
    low: FloatArray
    high: FloatArray
    reach: FloatArray

    def needed(self, edges: FloatArray) -> IntArray:
        """How many intervals are below an edge, and with that it is in, for all edges."""
        return np.unique([self._below(edges), self._touched(edges)])

    def below(self, intervals: IntArray) -> BoolArray:
        """Which rows are in the first so many intervals, rows × numbers of intervals."""
        own = self.own[:, None]
        return np.asarray((own >= 0) & (own < intervals))

    def between(self, edges: FloatArray, intervals: IntArray, counts: FloatArray) -> FloatArray:
        """The rows below each edge, those of an interval spread evenly over it.

        ``counts`` are the rows in the first so many ``intervals``.
        """
        below, touched = self._below(edges), self._touched(edges)
        before = counts[np.searchsorted(intervals, below)]
        rows = counts[np.searchsorted(intervals, touched)] - before
        inside = np.minimum(below, len(self.low) - 1)
        if not len(self.low):
            return before
        with np.errstate(over="ignore"):
            width = self.high[inside] - self.low[inside]
            past = edges - self.low[inside]
        inner = (touched > below) & (width > 0)  # the interval that ends at 0 may be too narrow
        share = np.divide(past, width, out=np.zeros(edges.shape), where=inner)
        return np.asarray(before + np.floor(share * rows))

    def follows(self, edges: FloatArray, intervals: IntArray, changed: BoolArray) -> BoolArray:
        """Which edges are told by counts that are marked as changed."""
        before = changed[np.searchsorted(intervals, self._below(edges))]
        after = changed[np.searchsorted(intervals, self._touched(edges))]
        return np.asarray(before | after)

    def _below(self, edges: FloatArray) -> IntArray:
        return np.searchsorted(self.high, edges, side="right")

    def _touched(self, edges: FloatArray) -> IntArray:
        return np.searchsorted(self.low, edges, side="left")


_found: dict[bytes, Intervals] = {}
"""Intervals by what they follow from, the last ones: quantiles ask for a column again and again."""


def intervals(values: FloatArray, least: int, persons: Persons) -> Intervals:
    """The intervals of the values of a column."""
    known = blake2b(repr([least, values.dtype.str, len(values)]).encode(), digest_size=16)
    known.update(np.ascontiguousarray(values).data)
    if persons.of is not None:
        known.update(np.ascontiguousarray(persons.of).data)
    key = known.digest()
    if key not in _found:
        if sum(len(table.own) for table in _found.values()) + len(values) > _MOST_KEPT:
            _found.clear()
        _found[key] = _intervals(values, least, persons)
    return _found[key]


def _intervals(values: FloatArray, least: int, persons: Persons) -> Intervals:
    own = np.full(len(values), -1, dtype=np.int64)
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.argsort(values[known], kind="stable")]
    place = _places(values[order])
    of = None if persons.of is None else persons.of[order]
    low: list[int] = []
    high: list[int] = []
    reach: list[int] = []
    whole = (0, len(order), 0, _BITS, 1 << _BITS)
    waiting = [whole] if _enough(of, 0, len(order), least) else []
    while waiting:
        first, last, begin, bits, furthest = waiting.pop()
        many = _enough(of, first, last, 3 * least - 2)  # then `least` of them are inside
        if many:
            begin, bits = _narrowest(place[first:last], begin, bits)
        border = begin + (1 << bits >> 1)
        middle = first + int(np.searchsorted(place[first:last], border))
        left, right = _enough(of, first, middle, least), _enough(of, middle, last, least)
        if bits and left and right:
            waiting.append((middle, last, border, bits - 1, furthest))
            waiting.append((first, middle, begin, bits - 1, border))
        elif bits and many:
            waiting.append((first, last, begin if left else border, bits - 1, furthest))
        else:
            own[order[first:last]] = len(high)
            low.append(begin)
            high.append(begin + (1 << bits))
            reach.append(furthest)
    ends = _bounded(np.array(low, np.int64), np.array(high, np.int64))
    return Intervals(own, *ends, _values(np.array(reach, np.int64)))


def _bounded(low: IntArray, high: IntArray) -> tuple[FloatArray, FloatArray]:
    """The ends of intervals; those wider than a power of two end where the others do."""
    begin, end = _values(low), _values(high)
    narrow = high - low <= 1 << _MANTISSA
    most = np.abs([begin[narrow], end[narrow]]).max(initial=0.0)
    if not most:
        return begin, end
    begin, end = (
        np.where(narrow, begin, np.fmax(begin, np.minimum(-most, 2 * end))),
        np.where(narrow, end, np.fmin(end, np.maximum(most, 2 * begin))),
    )
    return begin, end


def _narrowest(place: IntArray, begin: int, bits: int) -> tuple[int, int]:
    """The smallest interval with all of the places that are in this one."""
    start, stop = np.searchsorted(place, [begin, begin + (1 << bits)]).tolist()
    bits = (int(place[start]) ^ int(place[stop - 1])).bit_length()
    return (int(place[start]) >> bits) << bits, bits


def _enough(of: IntArray | None, start: int, stop: int, least: int) -> bool:
    if of is None or stop - start < least:
        return stop - start >= least
    return len(np.unique(of[start:stop])) >= least


def _places(values: FloatArray) -> IntArray:
    """Numbers in the order of the values; those of the last intervals, (low, high], are equal."""
    bits = (np.asarray(values, dtype=np.float64) + 0.0).view(np.int64)
    ordered = np.where(bits < 0, np.int64(-(2**63)) - bits, bits)
    return np.asarray(((ordered - 1) >> _DROPPED) + _ZERO)


def _values(places: IntArray) -> FloatArray:
    """The lower ends of the intervals at these places, and infinity for the end of the last one."""
    ordered = (places - _ZERO) << _DROPPED
    bits = np.where(ordered < 0, np.int64(-(2**63)) - ordered, ordered)
    values = np.ascontiguousarray(bits).view(np.float64)
    return np.where(places == 1 << _BITS, np.inf, values)
