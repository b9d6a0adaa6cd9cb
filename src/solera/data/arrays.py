"""Rows as arrays: what is taken, and the error for what is not."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.errors import DataError
from solera.data.frames import is_frame, target_array


def check_rows(X: Any, y: Any = None) -> tuple[Any, Any]:
    """X and y as arrays (or a CSR matrix) of the same number of rows, or an error that says why."""
    if is_frame(X):
        raise DataError("the data is a data frame", hint="convert it with so.from_pandas(frame)")
    if hasattr(X, "tocsr"):
        X = X.tocsr()
    else:
        X = as_numbers(np.asarray(X))
        if X.dtype.kind == "c":
            raise DataError("Complex data not supported: X holds complex numbers")
        if X.dtype.kind not in "biuf":
            raise DataError(
                f"X holds values of type {X.dtype}, not numbers",
                hint="encode categories as codes, for example with so.from_pandas(frame)",
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
    if y is not None:
        y = target_array(y)
        if y.shape[0] != X.shape[0]:
            raise DataError(f"X has {X.shape[0]:,} rows, y has {y.shape[0]:,}")
    return X, y


def as_numbers(X: Any) -> Any:
    """Objects that are all numbers as such, as an array of a mixed frame holds them."""
    if X.dtype.kind != "O":
        return X
    try:
        return X.astype(np.float64)
    except (TypeError, ValueError):
        return X
