"""A party's columns as numbers: standardised by its own rows, categories as marks."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import FloatArray
from solera.core.errors import DataError
from solera.core.schema import Schema

Encoding = dict[str, FloatArray]
"""``mean`` and ``scale`` of every column; 0 and 1 for categories."""


def encoded_width(schema: Schema) -> int:
    """The columns that :func:`encode` makes."""
    return sum(max(1, len(f.categories)) for f in schema.features)


def encoding_of(X: Any, schema: Schema, *, standardise: bool) -> Encoding:
    """How a party encodes its columns, from the rows it trains on."""
    X = np.asarray(X, dtype=float).reshape(len(X), -1)
    mean, scale = np.zeros(X.shape[1]), np.ones(X.shape[1])
    for column, feature in enumerate(schema.features):
        known = X[np.isfinite(X[:, column]), column]
        if feature.kind == "categorical" or not standardise or not len(known):
            continue
        mean[column] = known.mean()
        scale[column] = known.std() or 1.0
    return {"mean": mean, "scale": scale}


def encode(X: Any, schema: Schema, encoding: Encoding) -> FloatArray:
    """Rows as numbers; a missing number is the mean, a missing category no mark at all."""
    X = np.asarray(X, dtype=float).reshape(len(X), -1)
    if X.shape[1] != schema.width:
        raise DataError(f"rows have {X.shape[1]} columns, {schema.width} were agreed")
    columns = []
    for column, feature in enumerate(schema.features):
        values = X[:, column]
        if feature.kind == "categorical":
            codes = np.arange(max(1, len(feature.categories)))
            columns.append((values[:, None] == codes).astype(float))
            continue
        standard = (values - encoding["mean"][column]) / encoding["scale"][column]
        columns.append(np.where(np.isfinite(standard), standard, 0.0)[:, None])
    return np.concatenate(columns, axis=1)
