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
    """The prediction from the outputs of every member: members × rows × outputs.

    Of labels and classes the most probable; of equals the smaller.
    """
    if schema.target == "numbers":
        mean = y.mean(axis=0)
        return mean[:, 0] if schema.outputs == 1 else mean
    p = probabilities(y, schema, vote, rule)
    if schema.target == "labels":
        return (p > 0.5).astype(np.uint8)
    return np.asarray(schema.classes[p.argmax(axis=1)])


def probabilities(y: FloatArray, schema: Schema, vote: str, rule: str) -> FloatArray:
    """Shares of the members' votes, or what their mean outputs are of the sum over classes."""
    votes = vote == "majority" and len(y) > 1
    if not votes:
        y = y.mean(axis=0, keepdims=True)
    if schema.target == "labels":
        return np.asarray((y > 0.5).mean(axis=0) if votes else y[0].clip(0, 1))
    scores = y if rule == "argmax" else HIGH - np.abs(y - HIGH)
    if votes:
        chosen = scores.argmax(axis=2)[:, :, None] == np.arange(schema.outputs)
        return np.asarray(chosen.mean(axis=0))
    (scores,) = scores
    least = np.where(scores.max(axis=1) > 0, 0.0, scores.min(axis=1))
    above = np.maximum(scores - least[:, None], 0.0)
    above[~above.any(axis=1)] = 1.0
    return np.asarray(above / above.sum(axis=1, keepdims=True))
