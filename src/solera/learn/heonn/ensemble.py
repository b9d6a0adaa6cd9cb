"""Ensembles of one-layer networks."""

from __future__ import annotations

import numpy as np

from solera.core.clients import IntArray
from solera.core.component import Component
from solera.core.constraints import Count, PositiveFraction


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
