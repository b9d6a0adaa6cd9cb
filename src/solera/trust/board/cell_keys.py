"""Noise that follows from who is in a cell: asking for the same cell again averages nothing.

Every row has a key of 52 bits, the same for all rows of a person, that only its owner can compute.
An owner's share of the noise on a cell is a normal number of variance 1/n for n owners, drawn by
AES under the owner's secret from the sum of the keys in the cell: the same persons always give the
same noise, and others another, however they were asked for (Thompson, Broadfoot & Elazar 2013, the
cell keys of census bureaus). Where the owner has nobody, its share follows from the cell's number,
or cells without anybody would all have the same noise, by which they are known.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from solera.core.clients import Array, FloatArray, IntArray
from solera.core.errors import MissingExtra
from solera.trust.board.hashing import mac
from solera.trust.cells import Behind, Cells, OneCell
from solera.trust.contributions import Counts, Sums

SIGMA = 1.0
"""The deviation of the noise on a cell, over all owners."""
KEY_BITS = 52
_LIMB = KEY_BITS // 2
_GRID = 2.0**24
_NOBODY = (1 << 64) - 1
"""In place of a sum of keys, which is smaller."""


def row_keys(marks: Array) -> IntArray:
    """The keys of rows with these keyed hashes of persons, 16 bytes each."""
    halves = np.ascontiguousarray(marks).view(">u8").reshape(-1, 2)
    return (halves[:, 0] >> (64 - KEY_BITS)).astype(np.int64)


def keyed_sums(leaf: Counts | Sums, behind: Behind, keys: IntArray) -> FloatArray:
    """Of every cell, or entry of one: its persons, and their keys' low and high halves.

    They are added up as whole numbers below 2^53, for which float64 is exact.
    """
    low, high = keys & ((1 << _LIMB) - 1), keys >> _LIMB
    carried = np.column_stack([np.ones(len(keys)), low, high])
    if isinstance(leaf, Counts):
        return _of_cells(leaf.cells, carried, behind)
    tail = leaf.values.shape[1:]
    if leaf.where is None:
        sums = _of_cells(leaf.cells, carried, behind)
        one_cell = isinstance(leaf.cells, OneCell)
        return np.broadcast_to(sums, (*tail, 3)) if one_cell else sums
    chosen = np.broadcast_to(leaf.where, (behind.rows, *tail)).reshape(behind.rows, math.prod(tail))
    by_entry = [_of_cells(leaf.cells, carried, behind, some) for some in chosen.T]
    return np.stack(by_entry, axis=-2).reshape(*leaf.cells.shape, *tail, 3)


def shares(secret: bytes, sums: FloatArray, owners: int) -> FloatArray:
    """Persons with the owner's share of noise, of what :func:`keyed_sums` has added up."""
    persons, halves = sums[..., 0], np.ascontiguousarray(sums[..., 1:]).astype("<u8")
    empty = np.flatnonzero(persons.ravel() == 0)
    halves.reshape(-1, 2)[empty] = np.column_stack(
        [empty.astype("<u8"), np.full(len(empty), _NOBODY, "<u8")]
    )
    first, second = _random_words(mac(secret, "cells")[:16], halves)
    radius = np.sqrt(-2.0 * np.log(_uniform(first)))
    normal = radius * np.cos(2.0 * np.pi * _uniform(second))
    noise = normal * (SIGMA / math.sqrt(owners))
    return np.asarray(persons + np.rint(noise * _GRID) / _GRID)


def _of_cells(cells: Cells, carried: FloatArray, behind: Behind, chosen: Any = None) -> FloatArray:
    if behind.units is None and chosen is None:
        if isinstance(cells, OneCell):
            return np.asarray(carried.sum(axis=0), dtype=np.float64)
        return cells.sum(carried, behind)
    alone: Any = 0.0
    if chosen is None and behind.units is not None and not isinstance(cells, OneCell):
        chosen = np.bincount(behind.units)[behind.units] > 1  # rows of persons who have several
        alone = cells.sum(np.where(chosen[:, None], 0.0, carried), behind)
    row, cell = cells.pairs(behind.rows)
    row = np.arange(behind.rows)[row]
    if chosen is not None:
        row, cell = row[chosen[row]], cell[chosen[row]]
    if behind.units is not None:
        first = np.unique(behind.units[row] * cells.size + cell, return_index=True)[1]
        row, cell = row[first], cell[first]
    columns = [np.bincount(cell, weights=column[row], minlength=cells.size) for column in carried.T]
    several = np.stack(columns, axis=-1).reshape(*cells.shape, 3)
    return np.asarray(alone + several, dtype=np.float64)


def _random_words(key: bytes, blocks: Any) -> tuple[Any, Any]:
    """Two random words of every block of two, which the key alone tells."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        raise MissingExtra.of("a count by cell in a closed job", "secure") from None
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    words = np.frombuffer(encryptor.update(blocks.tobytes()), "<u8").reshape(blocks.shape)
    return words[..., 0], words[..., 1]


def _uniform(words: Any) -> FloatArray:
    """Numbers in (0, 1)."""
    return np.asarray(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
