"""Selectors that look at nothing but the dice."""

from __future__ import annotations

import numpy as np

from solera.core.clients import IntArray
from solera.core.rounds import Roster, Selector


class Uniform(Selector):
    """Every client with the same probability, without replacement."""

    def choose(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        if roster.budget >= roster.clients:
            return np.arange(roster.clients)
        return rng.choice(roster.clients, size=roster.budget, replace=False, shuffle=False)
