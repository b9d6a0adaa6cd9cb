"""How many values lie below an edge, so that no number of edges tells a value.

A grid of edges finds every value at which the count steps, and withholding small steps only leaves
it every fifth one. So the steps are not at values. The values of a column are put into intervals of
an agreed grid, the binary trie of floating-point numbers: first by sign, then by halves of the
exponents, then by halves of the mantissa, down to a millionth of the size. From the whole line on,
an interval is divided where both halves hold ``min_count`` persons. Where one half holds fewer, the
few count as if they were in the other, until so many have come together that they are an interval
of their own; where both do, the interval is a last one. As in Mondrian (LeFevre, DeWitt &
Ramakrishnan 2006), at least ``min_count`` persons are in each. All values of an interval count at
its upper end.

All that any asks can learn are the ends of these intervals, which are agreed numbers, and how many
rows count in each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from solera.core.clients import Array, Client, FloatArray, IntArray
from solera.core.evidence import Persons, Sums
from solera.core.release import Leaving, Release, release_numbers

_DROPPED, _MANTISSA = 32, 20
"""Bits of a number below the last interval, and those of its mantissa that are left."""
_ZERO = 1 << (63 - _DROPPED)
"""The place of the first interval above 0."""


class Cumulative(Release):
    """For every column, how many of its known values are at most each of its edges.

    ``values``: (client, ask) → the values, rows × columns, and the edges, columns × any shape, which
    is the shape of the entry.
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
        marks: list[Array] = []
        places = np.zeros(edges.shape, dtype=np.int64)
        for j, column in enumerate(values.T):
            own, upper = intervals(column, leaving.limits.min_count, persons)
            below = np.searchsorted(upper, edges[j], side="right")
            some, where = np.unique(below, return_inverse=True)
            places[j] = sum(map(_width, marks)) + where.reshape(below.shape)
            marks.append((own[:, None] >= 0) & (own[:, None] < some))
        sums = Sums(np.concatenate(marks, axis=1))
        numbers = sums.right.sum(axis=0)[:, None].astype(float)
        leaves = release_numbers(
            leaving, entry, sums, numbers, np.zeros(sums.shape, dtype=bool), np.zeros(sums.shape)
        )
        leaving.outcome[entry] = leaving.outcome[entry][places, 0]
        leaving.put(entry, leaves[places, 0].astype(leaving.get(entry).dtype))
        return leaving.reply


def _width(marks: Array) -> int:
    return int(marks.shape[1])


def intervals(values: FloatArray, least: int, persons: Persons) -> tuple[IntArray, FloatArray]:
    """For every value the number of its interval, −1 for unknown ones, and their upper ends."""
    own = np.full(len(values), -1, dtype=np.int64)
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.argsort(values[known], kind="stable")]
    place = _places(values[order])
    of = None if persons.of is None else persons.of[order]
    ends: list[int] = []
    waiting = [(0, len(order), 0, len(order), _top(place, of, least))]
    while waiting and _enough(of, 0, len(order), least):
        first, last, start, stop, end = waiting.pop()  # first … last count in it, start … stop are
        bit, middle, border = _divide(place, start, stop)
        left, right = _enough(of, first, middle, least), _enough(of, middle, last, least)
        if bit >= 0 and left and right:
            waiting.append((middle, last, middle, stop, end))
            waiting.append((first, middle, start, middle, border))
        elif left and _enough(of, start, middle, least) and middle < stop:
            waiting.append((first, last, start, middle, end))
        elif right and _enough(of, middle, stop, least):
            waiting.append((first, last, middle, stop, end))
        else:
            own[order[first:last]] = len(ends)
            inside = _enough(of, start, stop, least)
            ends.append(((int(place[start]) >> (bit + 1)) + 1) << (bit + 1) if inside else end)
    return own, _values(np.array(ends, dtype=np.int64))


def _top(place: IntArray, of: IntArray | None, least: int) -> int:
    """The power of two that fewer than ``least`` persons are above."""
    start = len(place) - 1
    while start > 0 and not _enough(of, start, len(place), least):
        start -= 1
    return ((int(place[start]) >> _MANTISSA) + 1) << _MANTISSA if len(place) else 0


def _divide(place: IntArray, start: int, stop: int) -> tuple[int, int, int]:
    """The highest bit in which places differ, −1 for none, the first that has it, and the border."""
    bit = (int(place[start]) ^ int(place[stop - 1])).bit_length() - 1
    if bit < 0:
        return bit, stop, 0
    border = (int(place[stop - 1]) >> bit) << bit
    return bit, start + int(np.searchsorted(place[start:stop], border)), border


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
    """The upper ends of the intervals at these places."""
    ordered = (places - _ZERO) << _DROPPED
    bits = np.where(ordered < 0, np.int64(-(2**63)) - ordered, ordered)
    return np.ascontiguousarray(bits).view(np.float64)
