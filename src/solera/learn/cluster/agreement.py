"""How far two clusterings of the same rows agree, whatever their clusters are called.

Both measures count pairs of rows: together in both clusterings, in one of them, in none. The
counts come from the contingency table n_ij (rows in cluster i of the one and j of the other), so
the n² pairs are never formed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solera.core.clients import IntArray
from solera.core.errors import DataError

_WIDE = 1 << 22
"""Cells of the largest contingency table that is counted without sorting."""


def jaccard(a: ArrayLike, b: ArrayLike) -> float:
    """The share of pairs together in both clusterings among those together in at least one.

    J = Σ C(n_ij, 2) / [Σ C(n_i·, 2) + Σ C(n_·j, 2) − Σ C(n_ij, 2)]; 1 where no pair is together
    in either.
    """
    both, in_a, in_b, _ = _pairs(a, b)
    either = in_a + in_b - both
    return both / either if either else 1.0


def adjusted_rand(a: ArrayLike, b: ArrayLike) -> float:
    """The Rand index, corrected so that chance gives 0 (Hubert & Arabie 1985); 1 for equals."""
    both, in_a, in_b, pairs = _pairs(a, b)
    if in_a == in_b and both == in_a:
        return 1.0
    expected = in_a * in_b / pairs
    return (both - expected) / ((in_a + in_b) / 2 - expected)


def _pairs(a: ArrayLike, b: ArrayLike) -> tuple[int, int, int, int]:
    """Pairs together in both, in ``a``, in ``b``, and all pairs; exact whatever n is."""
    (x, across), (y, down) = _codes(a), _codes(b)
    n = len(x)
    if n != len(y):
        raise DataError(f"the clusterings have {n:,} and {len(y):,} rows")
    if n < 2:
        raise DataError("agreement needs at least two rows")
    cells = x * down + y
    if across * down <= max(_WIDE, 4 * n):
        table = np.bincount(cells)
    else:
        table = np.unique(cells, return_counts=True)[1]
    together = [_choose2(counts) for counts in (table, np.bincount(x), np.bincount(y))]
    return together[0], together[1], together[2], n * (n - 1) // 2


def _choose2(counts: Any) -> int:
    return int((counts * (counts - 1) // 2).sum())


def _codes(labels: ArrayLike) -> tuple[IntArray, int]:
    """Labels as 0, 1, … and an upper bound of their number."""
    values = np.asarray(labels)
    if values.ndim != 1:
        raise DataError(f"a clustering is one label per row, not an array of shape {values.shape}")
    if values.dtype.kind in "iu" and len(values) and values.min() >= 0:
        most = int(values.max()) + 1
        if most <= max(1 << 12, len(values)):
            return values.astype(np.int64, copy=False), most
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise DataError("a label is not a number")
    found, codes = np.unique(values, return_inverse=True)
    return codes.reshape(-1).astype(np.int64), len(found)
