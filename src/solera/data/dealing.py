"""The arithmetic of dealing rows to clients: whole arrays in, whole arrays out.

Time and memory grow with rows + clients; nothing here loops over either.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator

from solera.core.clients import FloatArray, IntArray


def even(total: int, parts: int) -> IntArray:
    """Sizes of ``parts`` parts of ``total`` that differ by at most one."""
    sizes = np.full(parts, total // parts, dtype=np.int64)
    sizes[: total % parts] += 1
    return sizes


def divide(total: int, fractions: FloatArray, rng: Generator) -> IntArray:
    """Whole numbers within one of ``total * fractions`` whose sum is the rounded exact sum.

    The running sum is rounded, over the parts in random order: in a fixed order the same clients
    would gain the odd row of every class.
    """
    order = rng.permutation(len(fractions))
    sums = np.rint(np.cumsum(fractions[order]) * total).astype(np.int64)
    sizes = np.empty_like(sums)
    sizes[order] = np.diff(sums, prepend=0)
    return np.minimum(sizes, total)


def at_least(sizes: IntArray, least: int, rng: Generator) -> IntArray:
    """The same total with no size below ``least``.

    What is missing is taken from the others in proportion to what they have above ``least``, which
    keeps the shape of the distribution. The total must allow it.
    """
    above = np.maximum(sizes - least, 0)
    missing = np.maximum(least - sizes, 0)
    taken = divide(int(missing.sum()), above / max(int(above.sum()), 1), rng)
    return sizes + missing - taken


def draw(sizes: IntArray, below: int, rng: Generator) -> IntArray:
    """For each size that many different numbers below ``below``, one client after the other.

    The clients draw independently, so two of them may hold the same number. Those who want at most
    half of the numbers redraw what they drew twice; the others cut a permutation of all numbers.
    """
    many = np.flatnonzero(2 * sizes > below)
    shuffled = rng.permuted(np.tile(np.arange(below), (len(many), 1)), axis=1)
    cut = (many[:, None] * below + shuffled)[np.arange(below) < sizes[many, None]]

    few = np.where(2 * sizes > below, 0, sizes)
    first = np.repeat(np.arange(len(sizes)) * below, few)
    drawn = first + rng.integers(max(below, 1), size=len(first))
    while True:
        drawn.sort(kind="stable")
        twice = np.flatnonzero(drawn[1:] == drawn[:-1])
        if not len(twice):
            break
        drawn[twice] += rng.integers(below, size=len(twice)) - drawn[twice] % below
    keys = np.concatenate([cut, drawn])
    keys.sort(kind="stable")
    return keys % max(below, 1)


def hand_out(
    pool: IntArray,
    fractions: FloatArray,
    replacement: bool,
    rng: Generator,
    *,
    floor: bool = False,
) -> tuple[IntArray, IntArray]:
    """Rows of the shuffled pool for each fraction, one client after the other, and their counts."""
    if floor:
        counts = np.floor(len(pool) * fractions).astype(np.int64)
    else:
        counts = divide(len(pool), fractions, rng)
    if replacement:
        return pool[draw(counts, len(pool), rng)], counts
    return pool[: int(counts.sum())], counts


def group(values: IntArray, owners: IntArray, groups: int) -> tuple[IntArray, IntArray]:
    """Values in the order of their owners, and where each owner's begin and end.

    A counting sort, which converting to compressed sparse rows is: stable and linear, where a
    comparison sort of twenty million owners takes twice the time.
    """
    from scipy.sparse import csr_array

    table: Any = csr_array(
        (values, (owners, np.arange(len(values)))), shape=(groups, max(len(values), 1))
    )
    return table.data, table.indptr.astype(np.int64)


def offsets_of(sizes: IntArray) -> IntArray:
    """Where each of several consecutive parts begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def missing_from(index: IntArray, rows: int) -> int:
    """How many of the rows are not in the index."""
    seen = np.zeros(rows, dtype=bool)
    seen[index] = True
    return rows - int(np.count_nonzero(seen))
