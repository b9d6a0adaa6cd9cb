"""Which centroid is nearest, and sums of the rows of each cluster.

Squared distances are sums of squared differences, row by row. That is slower than expanding the
square into a matrix product, but a row's distance then depends on nothing but the row: grouping
clients cannot turn a tie around, and nothing cancels for points far from the origin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from solera.core.clients import FloatArray, IntArray
from solera.learn.rows import dense

_CHUNK = 1 << 16
"""Numbers of a chunk of rows: it stays in the processor's cache."""


def nearest(
    X: Any, centroids: FloatArray, owners: IntArray | None = None
) -> tuple[IntArray, FloatArray]:
    """The number of the nearest centroid of every row, the first of equals, and d².

    ``centroids`` are k × d for all rows, or one such set per owner, and ``owners`` names a row's.
    """
    rows = X.shape[0]
    label, distance = np.empty(rows, dtype=np.int64), np.empty(rows)
    for part, squared in distances(X, centroids, owners):
        label[part] = squared.argmin(axis=1)
        distance[part] = np.take_along_axis(squared, label[part, None], axis=1)[:, 0]
    return label, distance


def distances(
    X: Any, centroids: FloatArray, owners: IntArray | None = None
) -> Iterator[tuple[slice, FloatArray]]:
    """d² of all rows to all centroids, a chunk of rows at a time."""
    k, width = centroids.shape[-2:]
    step = max(1, _CHUNK // max(width, 1))
    for first in range(0, X.shape[0], step):
        part = slice(first, first + step)
        x = dense(X[part]).astype(np.float64, copy=False)
        squared = np.empty((len(x), k))
        for j in range(k):
            apart = x - (centroids[j] if owners is None else centroids[owners[part], j])
            np.einsum("nd,nd->n", apart, apart, out=squared[:, j])
        yield part, squared


def as_rows(X: Any) -> Any:
    """Rows to add up: images flattened, sparse ones as they are."""
    return X if hasattr(X, "tocsr") else dense(X)
