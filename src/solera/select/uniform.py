"""Selectors that look at nothing but the dice."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import IntArray
from solera.core.rng import generator
from solera.core.selection import Roster, Selector
from solera.select.draw import uniformly


class Uniform(Selector):
    """Every client with the same probability, without replacement."""

    def choose(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        if roster.available is None and roster.budget < roster.clients:
            return rng.choice(roster.clients, size=roster.budget, replace=False, shuffle=False)
        return uniformly(roster.ids, roster.budget, rng)


class RoundRobin(Selector):
    """All clients in turn, in a random order that is drawn once.

    A client that cannot be reached when its turn comes waits for the next lap.
    """

    _next: int = 0
    _order: IntArray | None = None

    def choose(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        if self._order is None or len(self._order) != roster.clients:
            self._order = generator(roster.seed, "round-robin").permutation(roster.clients)
        count = min(roster.budget, len(roster.ids))
        if roster.available is None:
            turn = (self._next + np.arange(count)) % roster.clients
        else:
            there = np.zeros(roster.clients, dtype=bool)
            there[roster.available] = True
            places = (self._next + np.arange(roster.clients)) % roster.clients
            turn = places[there[self._order[places]]][:count]
        if count:
            self._next = int(turn[-1] + 1) % roster.clients
        return self._order[turn]

    def get_state(self) -> Any:
        """Whose turn is next; the order follows from the seed."""
        return {"next": self._next}

    def set_state(self, state: Any) -> None:
        self._next = int(state["next"])
