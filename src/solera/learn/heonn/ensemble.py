"""Ensembles of one-layer networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import FloatArray, IntArray
from solera.core.component import Component
from solera.core.constraints import Count, PositiveFraction
from solera.core.schema import Schema
from solera.learn.heonn.activations import HIGH


class RandomPatches(Component):
    """An ensemble whose members each see some of the rows and some of the features.

    Louppe & Geurts 2012. The coordinator draws the features of each member, the same for all
    clients; every client draws rows of its own.

    Parameters
    ----------
    estimators: number of members T.
    rows, row_replacement: fraction ρ_s of a client's rows a member sees, drawn with replacement?
    features, feature_replacement: the same for features, ρ_f.
    """

    def __init__(
        self,
        estimators: Count = 50,
        *,
        rows: PositiveFraction = 0.2,
        row_replacement: bool = True,
        features: PositiveFraction = 0.8,
        feature_replacement: bool = False,
    ) -> None:
        self.estimators = estimators
        self.rows = rows
        self.row_replacement = row_replacement
        self.features = features
        self.feature_replacement = feature_replacement

    def draw(self, columns: int, rng: np.random.Generator) -> IntArray:
        """The features of every member: T × ⌈ρ_f · columns⌉."""
        count = max(1, round(self.features * columns))
        drawn = [
            rng.choice(columns, count, replace=self.feature_replacement)
            for _ in range(self.estimators)
        ]
        return np.stack(drawn).astype(np.int64)


def decide(y: FloatArray, schema: Schema, vote: str, rule: str) -> Any:
    """The prediction from the outputs of every member: members × rows × outputs."""
    if schema.target == "numbers":
        mean = y.mean(axis=0)
        return mean[:, 0] if schema.outputs == 1 else mean
    if vote == "mean":
        y = y.mean(axis=0, keepdims=True)
    if schema.target == "labels":
        return ((y > 0.5).mean(axis=0) > 0.5).astype(np.uint8)
    best = y.argmax(axis=2) if rule == "argmax" else np.abs(y - HIGH).argmin(axis=2)
    votes = (best[:, :, None] == np.arange(schema.outputs)).sum(axis=0)
    return np.asarray(schema.classes[votes.argmax(axis=1)])
