"""Rows as a matrix, and what clients check of them before they train."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solera.core.clients import Client
from solera.core.errors import DataError, Refusal
from solera.data.agreement import missing_values


def dense(X: Any) -> Any:
    """Rows as a matrix, images flattened and sparse rows filled."""
    X = X.toarray() if hasattr(X, "toarray") else np.asarray(X)
    return X.reshape(len(X), math.prod(X.shape[1:]))


def float_type(X: Any) -> Any:
    """The type to compute in: that of the rows where they are floats."""
    return X.dtype if X.dtype.kind == "f" else np.dtype(np.float64)


def not_finite(client: Client, X: Any) -> DataError:
    """The error that names the columns of a client in which values are missing or infinite."""
    finite = np.isfinite(dense(X)).all(axis=0)
    features = zip(client.data.schema.features, finite, strict=True)
    return missing_values(client.id, [feature.name for feature, whole in features if not whole])


def check_shape(clients: ArrayLike, sizes: ArrayLike, X: Any, width: int) -> None:
    """Refuse to train a client without rows, or on rows of other columns than the model's.

    ``sizes`` are the rows of each of the ``clients``, or of the one, and X holds them all.
    """
    columns = math.prod(X.shape[1:])
    if columns != width:
        first = np.atleast_1d(clients)[0]
        raise DataError(f"client {first} has {columns} columns, the model {width}")
    refuse_empty(clients, sizes)


def refuse_empty(clients: ArrayLike, sizes: ArrayLike) -> None:
    """Refuse to train a client without rows."""
    empty = np.atleast_1d(clients)[np.atleast_1d(sizes) == 0]
    if len(empty):
        raise Refusal(f"client {empty[0]} has no rows to train on")
