"""How far two clusterings of the same rows agree, whatever their clusters are called.

Both measures count pairs of rows: together in both clusterings, in one of them, in none. The
counts come from the contingency table n_ij (rows in cluster i of the one and j of the other), so
the n² pairs are never formed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from solera.core.clients import IntArray
from solera.core.errors import DataError


def jaccard(a: ArrayLike, b: ArrayLike) -> float:
    """The share of pairs together in both clusterings among those together in at least one.

    J = Σ C(n_ij, 2) / [Σ C(n_i·, 2) + Σ C(n_·j, 2) − Σ C(n_ij, 2)]; 1 where no pair is together
    in either.
    """
    from sklearn.metrics.cluster import pair_confusion_matrix

    (_, in_b), (in_a, both) = pair_confusion_matrix(*_clusterings(a, b)).tolist()
    either = in_a + in_b + both
    return float(both / either) if either else 1.0


def adjusted_rand(a: ArrayLike, b: ArrayLike) -> float:
    """The Rand index, corrected so that chance gives 0 (Hubert & Arabie 1985); 1 for equals."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_clusterings(a, b)))


def _clusterings(a: ArrayLike, b: ArrayLike) -> tuple[IntArray, IntArray]:
    x, y = _codes(a), _codes(b)
    if len(x) != len(y):
        raise DataError(f"the clusterings have {len(x):,} and {len(y):,} rows")
    if len(x) < 2:
        raise DataError("agreement needs at least two rows")
    return x, y


def _codes(labels: ArrayLike) -> IntArray:
    """Labels as 0, 1, …"""
    values = np.asarray(labels)
    if values.ndim != 1:
        raise DataError(f"a clustering is one label per row, not an array of shape {values.shape}")
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise DataError("a label is not a number")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)
