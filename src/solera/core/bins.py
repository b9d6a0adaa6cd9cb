"""Cells in an order, such as the bins of a column: small ones are merged with their neighbour.

The numbers are k × j: ``right`` says which rows are meant (the node of a tree) and what they give
(1, a gradient), ``left`` in which bin of every column they are. Bins of one column are a run. A bin
is small in a group (a node) when one of its numbers, or the difference of one to an earlier
node's number of the same bin, rests on fewer than ``min_count`` effective rows: a node and its
parent would otherwise give the bins of its sibling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from solera.core.clients import Array, FloatArray, IntArray
from solera.core.evidence import Sums, sums_of
from solera.core.release import Behind, Leaving, Release


class Bins(Release):
    """Counts and sums by node and bin, merged along the bins of a column.

    Parameters
    ----------
    entry: of the reply; as large as its :class:`Sums`, or ``read`` and ``write`` convert it.
    behind: (client, ask, reply) → ``{entry: Sums}`` with a :class:`OneHot` as ``left``.
    runs: (ask) → for every bin the column it is part of, in order.
    groups: (ask) → for every ``right`` column the node it is of.
    what: (ask) → for every ``right`` column what kind of number it is; only the same are compared.
    """

    kind = "cells"
    says = "counts and sums over at least min_count rows"

    def __init__(
        self,
        entry: str,
        *,
        behind: Behind,
        runs: Callable[[Any], IntArray],
        groups: Callable[[Any], IntArray],
        what: Callable[[Any], Sequence[str]],
        read: Callable[[Any, str, Any], Array] | None = None,
        write: Callable[[Any, str, Array, Any], Any] | None = None,
    ) -> None:
        super().__init__(entry)
        self.behind = behind
        self.runs = runs
        self.groups = groups
        self.what = what
        self.read = read
        self.write = write

    def judge(self, leaving: Leaving) -> Any:
        (entry,) = self.entries
        if not leaving.holds(entry):
            return leaving.reply
        sums = self.behind(leaving.client, leaving.ask, leaving.reply)[entry]
        value = leaving.get(entry)
        if self.read is None:
            numbers = np.asarray(value, dtype=float).reshape(sums.shape)
        else:
            numbers = np.asarray(self.read(leaving.ask, entry, value), dtype=float)
        leaves = self._merged(leaving, sums, numbers)
        leaving.outcome[entry] = np.where(leaves == numbers, 0, 1)
        if self.write is None:
            after: Any = leaves.reshape(np.shape(value)).astype(np.asarray(value).dtype)
        else:
            after = self.write(leaving.ask, entry, leaves, value)
        leaving.put(entry, after)
        return leaving.reply

    def _merged(self, leaving: Leaving, sums: Sums, numbers: FloatArray) -> FloatArray:
        persons, least, memory = leaving.persons(sums), leaving.limits.min_count, leaving.memory
        runs, groups = self.runs(leaving.ask), np.asarray(self.groups(leaving.ask))
        what = np.asarray(self.what(leaving.ask))
        leaves = numbers.copy()
        for group in np.unique(groups):
            mine = np.flatnonzero(groups == group)
            told = [sums_of(sums.right[:, mine], sums.left, persons)]
            for k in mine.tolist():
                earlier, _ = memory.known(_one(sums, k, what[k]))
                if earlier.shape[1]:
                    difference = earlier.astype(float) - sums.right[:, [k]].astype(float)
                    told.append(sums_of(difference, sums.left, persons))
            absolute, squares = (np.concatenate([t[i] for t in told]) for i in (0, 1))
            leaves[mine] = merge(numbers[mine], absolute, squares, runs, least)
        for k in range(len(leaves)):
            fresh = memory.keep(_one(sums, k, what[k]), leaves[[k]])
            width = leaving.client.data.schema.width
            memory.spend(fresh, leaving.limits.numbers * max(1, len(sums.right) * width))
        return leaves


def _one(sums: Sums, k: int, what: str) -> Sums:
    right = sums.right[:, [k]]
    return Sums(right.astype(np.float32), sums.left, part=sums.part, what=str(what))


def merge(
    numbers: FloatArray, absolute: FloatArray, squares: FloatArray, runs: IntArray, least: int
) -> FloatArray:
    """Numbers whose small bins are added to the next, the last ones to the bin before.

    A bin is large when every line of (Σ|c|)² / Σc² is at least ``least``, or rests on no row. A run
    that is small as a whole is withheld.
    """
    leaves = np.zeros_like(numbers)
    starts = np.flatnonzero(np.diff(runs, prepend=runs[0] - 1)).tolist()
    for first, last in zip(starts, [*starts[1:], len(runs)], strict=True):
        spans: list[tuple[int, int]] = []
        start = first
        for end in range(first + 1, last + 1):
            if _large(absolute[:, start:end], squares[:, start:end], least):
                spans.append((start, end))
                start = end
        while start < last and spans:  # the rest joins the spans before it
            start, _ = spans.pop()
            if _large(absolute[:, start:last], squares[:, start:last], least):
                spans.append((start, last))
                start = last
        for start, end in spans:
            leaves[:, end - 1] = numbers[:, start:end].sum(axis=1)
    return leaves


def _large(absolute: FloatArray, squares: FloatArray, least: int) -> bool:
    total, square = absolute.sum(axis=1), squares.sum(axis=1)
    return bool(np.all((square == 0) | (total**2 >= least * square)))
