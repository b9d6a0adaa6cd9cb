"""Histograms along a line of bins, such as scores of a model by class.

The bins are put into intervals of an agreed grid that hold ``min_count`` rows each, as values are
whose quantiles are asked (:mod:`solera.core.disclosure.cumulative`). A histogram is told by its
cumulative counts: how many rows are in the first so many intervals. One of these leaves only where
it, and what it has more than the one before it, differ from no row, from all rows, and from every
count that left before in none or at least ``min_count`` rows. Two models that differ in the score
of one row therefore give the same counts, or counts far apart. Where a cumulative count may not
leave, its interval is merged with the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from solera.core.clients import Array, BoolArray, Client, FloatArray, IntArray, Part
from solera.core.disclosure.cumulative import intervals
from solera.core.disclosure.evidence import Persons, Sums
from solera.core.release import Leaving, Release


class Histograms(Release):
    """Histograms whose bins are told in intervals; the entry ``merged`` says that.

    What is told of a bin were rows of it and of the empty ones before it. A histogram of too few
    rows is empty.

    ``bins``: (client, ask) → the bin of every row in each histogram, rows × histograms and −1 for
    none, and the part of the rows. ``middle``: ask → the bin after which bins are first cut in
    two. Rows up to it are often counted elsewhere, as those that a model says no of: where the
    intervals were cut near it, the difference of the two counts would be of a few rows.
    """

    kind = "cells"
    says = "histograms whose bins hold at least min_count rows"

    def __init__(
        self,
        entry: str,
        merged: str,
        *,
        bins: Callable[[Client, Any], tuple[IntArray, Part]],
        middle: Callable[[Any], int],
    ) -> None:
        super().__init__(entry, merged)
        self.bins = bins
        self.middle = middle

    def judge(self, leaving: Leaving) -> Any:
        entry, merged = self.entries
        if not leaving.holds(entry):
            return leaving.reply
        value = leaving.get(entry)
        index, part = self.bins(leaving.client, leaving.ask)
        bins, middle = value.shape[-1], self.middle(leaving.ask)
        released = [_released(leaving, own, bins, middle, part) for own in index.T]
        leaves = np.stack([counts for counts, _ in released]).astype(value.dtype)
        leaving.outcome[entry] = np.stack([became for _, became in released])
        leaving.put(entry, leaves.reshape(value.shape))
        leaving.put(merged, True)
        return leaving.reply


def _released(
    leaving: Leaving, own: IntArray, bins: int, middle: int, part: Part
) -> tuple[IntArray, IntArray]:
    """The histogram as it leaves, and what became of its bins; ``own`` is the bin of every row.

    The rows of an interval are told at its last bin. Bins told with those of other intervals are
    marked by where these begin.
    """
    counts, became = np.zeros(bins, dtype=np.int64), np.zeros(bins, dtype=np.int64)
    least = leaving.limits.min_count
    places = np.where(own >= 0, own - float(middle), np.nan)
    table = intervals(places, least, leaving.gate.persons(leaving.client, part))
    ends = np.minimum(np.floor(table.reach) + middle, bins - 1).astype(np.int64)
    if not len(ends):
        return counts, became
    sums = Sums(table.below(np.arange(1, len(ends) + 1)), part=part)
    told = _far_apart(leaving, sums)
    became[ends[~told]] = 1
    if not told[-1]:  # all rows of the histogram are told of, or none
        return counts, np.ones_like(became)
    counts[ends[told]] = np.diff(sums.right.sum(axis=0)[told], prepend=0)
    before = np.concatenate([[-1], np.flatnonzero(told)[:-1]])
    joined = np.flatnonzero(told) - before > 1
    became[ends[told][joined]] = 2 + before[joined] + 1
    up_to = sums.right[:, told]
    fresh = [_keep(leaving, marks, part) for marks in (up_to, _steps(up_to))]
    values = max(1, len(own) * leaving.client.data.schema.width)
    leaving.memory.spend(fresh[0], leaving.limits.numbers * values)  # the steps follow from these
    return counts, became


def _keep(leaving: Leaving, marks: BoolArray, part: Part) -> int:
    return leaving.memory.keep(Sums(marks, part=part), marks.sum(axis=0)[:, None].astype(float))


def _steps(up_to: BoolArray) -> BoolArray:
    """What every cumulative count has more than the one before it."""
    return np.diff(up_to, axis=1, prepend=False)


def _far_apart(leaving: Leaving, sums: Sums) -> BoolArray:
    """Which cumulative counts may leave, from left to right; none if the last one may not."""
    now, persons, least = sums.right, leaving.persons(sums), leaving.limits.min_count
    earlier = leaving.memory.known(sums)[0]
    marks = earlier[:, ((earlier == 0) | (earlier == 1)).all(axis=0)].astype(bool)
    none = np.zeros((len(now), 1), dtype=bool)
    known = np.concatenate([none, ~none, marks], axis=1)
    sizes = known.sum(axis=0)

    def far(cell: BoolArray) -> bool:
        near = np.ones(len(sizes), dtype=bool)
        if persons.of is None:  # counts of few different rows differ by as few
            near = np.abs(sizes - cell.sum()) < least
        apart = _rows_apart(known[:, near], cell[:, None], persons)
        if ((apart > 0) & (apart < least)).any():
            return False
        return not leaving.memory.near_sets(replace(sums, right=cell[:, None]), persons, least)

    last = now.shape[1] - 1
    told: list[int] = []
    if far(now[:, last]):
        for k in range(last):
            before = now[:, told[-1]] if told else none[:, 0]
            if far(now[:, k]) and far(now[:, k] & ~before):
                told.append(k)
        while told and not far(now[:, last] & ~now[:, told[-1]]):
            told.pop()
        told.append(last)
    return np.isin(np.arange(now.shape[1]), told)


def _rows_apart(known: BoolArray, now: BoolArray, persons: Persons) -> FloatArray:
    """The effective rows of the difference of a count to others, 0 where there is none."""
    if persons.of is None:
        return np.asarray((known != now).sum(axis=0), dtype=float)
    difference: Array = known.astype(float) - now
    absolute, squares = persons.sums(difference)
    return np.divide(absolute**2, squares, out=np.zeros_like(squares), where=squares > 0)
