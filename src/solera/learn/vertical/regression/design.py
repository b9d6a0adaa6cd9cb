"""A party's own columns as numbers to regress on: categories one by one, all standardised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import FloatArray, IntArray
from solera.core.errors import DataError
from solera.core.schema import Schema
from solera.learn.rows import dense

COLUMN_BITS = 12
"""Bits of a whole number that stands for a value of a column."""


@dataclass(frozen=True)
class Design:
    """How rows become standardised columns.

    A categorical column becomes one column for each category. ``source`` and ``category`` (−1 for
    numbers) say where a column comes from, ``mean`` and ``scale`` how it is standardised,
    ``clip`` how far from the mean a value may be, in standard deviations. A missing value is the
    mean.
    ``constant``: one more column of ones, for the intercept.
    """

    names: list[str]
    source: IntArray
    category: IntArray
    mean: FloatArray
    scale: FloatArray
    clip: float
    constant: bool

    @classmethod
    def of(cls, X: Any, schema: Schema, *, clip: float, constant: bool) -> Design:
        X = np.asarray(dense(X), dtype=np.float64)
        names, source, category = [], [], []
        for j, feature in enumerate(schema.features):
            several = feature.kind == "categorical"
            for c in range(len(feature.categories)) if several else (-1,):
                names.append(f"{feature.name}={feature.categories[c]}" if several else feature.name)
                source.append(j)
                category.append(c)
        raw = _raw(X, np.array(source, np.int64), np.array(category, np.int64))
        known = np.isfinite(raw)
        count = np.maximum(known.sum(axis=0), 1)
        values = np.where(known, raw, 0.0)
        mean = values.sum(axis=0) / count
        spread = np.sqrt((np.where(known, values - mean, 0.0) ** 2).sum(axis=0) / count)
        scale = np.where(spread > 0, spread, 1.0)
        places = np.array(source, np.int64), np.array(category, np.int64)
        return cls(names, *places, mean, scale, float(clip), constant)

    @property
    def width(self) -> int:
        return len(self.names) + self.constant

    def to_payload(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Design:
        return cls(**payload)

    def matrix(self, X: Any) -> FloatArray:
        """Standardised columns, and ones."""
        X = np.asarray(dense(X), dtype=np.float64)
        needed = int(self.source.max(initial=-1)) + 1
        if X.shape[1] != needed:
            raise DataError(f"this party has {X.shape[1]} columns, its part of the model {needed}")
        raw = _raw(X, self.source, self.category)
        with np.errstate(invalid="ignore"):
            standard = np.where(np.isfinite(raw), (raw - self.mean) / self.scale, 0.0)
        standard = np.clip(standard, -self.clip, self.clip)
        ones = np.ones((len(X), int(self.constant)))
        return np.concatenate([standard, ones], axis=1)

    @property
    def unit(self) -> float:
        """By what columns are multiplied to become whole numbers of 12 bits."""
        return float(2.0 ** (COLUMN_BITS - np.ceil(np.log2(max(self.clip, 1.0)))))

    def whole(self, matrix: FloatArray) -> NDArray[np.int64]:
        """Standardised columns as whole numbers up to 2^12."""
        return np.rint(matrix * self.unit).astype(np.int64)


def _raw(X: FloatArray, source: IntArray, category: IntArray) -> FloatArray:
    """Numbers as they are, categories as marks; missing stays missing."""
    taken = X[:, source]
    marks = np.where(np.isfinite(taken), taken == category, np.nan)
    return np.where(category >= 0, marks, taken)
