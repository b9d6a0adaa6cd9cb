"""Rows as arrays: what is taken, and the error for what is not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from solera.core.errors import DataError
from solera.data.frames import is_frame, target_array


def as_rows(X: Any) -> Any:
    """X as rows of numbers, an array or a CSR matrix, or an error that says why it is none."""
    X = X.tocsr() if hasattr(X, "tocsr") else as_numbers(np.asarray(X))
    if X.dtype.kind == "c":
        raise DataError("Complex data not supported: X holds complex numbers")
    if X.dtype.kind not in "biuf":
        raise DataError(
            f"X holds values of type {X.dtype}, not numbers",
            hint="a data frame with named columns may hold text: so.from_pandas(frame)",
        )
    if X.ndim < 2:
        raise DataError(
            f"X has {X.ndim} dimension, rows and columns are needed",
            hint="Reshape your data: X.reshape(1, -1) makes one row of a vector",
        )
    if not all(X.shape[1:]):
        raise DataError(
            f"X has 0 feature(s) (shape={X.shape}) while a minimum of 1 is required",
            hint="give rows at least one column",
        )
    return X


def check_rows(X: Any, y: Any = None) -> tuple[Any, Any]:
    """X and y as arrays (or a CSR matrix) of the same number of rows, or an error that says why."""
    if is_frame(X):
        raise DataError("the data is a data frame", hint="convert it with so.from_pandas(frame)")
    X = as_rows(X)
    if y is not None:
        y = target_array(y)
        if y.shape[0] != X.shape[0]:
            raise DataError(f"X has {X.shape[0]:,} rows, y has {y.shape[0]:,}")
    return X, y


def prepared_rows(X: Any, schema: Any, steps: Iterable[Any]) -> tuple[Any, Any]:
    """Rows as transformers make them, and what they look like then; none stay none."""
    for step in steps:
        after = step.transform_schema(schema)
        X = step.transform_rows(X, schema) if X.shape[0] else np.empty((0, after.width))
        schema = after
    return X, schema


def as_numbers(X: Any) -> Any:
    """Objects that are all numbers as such, as an array of a mixed frame holds them."""
    if X.dtype.kind != "O":
        return X
    try:
        return X.astype(np.float64)
    except (TypeError, ValueError):
        return X
