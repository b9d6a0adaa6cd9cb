"""All clients in turn."""

from __future__ import annotations

import numpy as np

from solera.core.clients import IntArray
from solera.core.rng import generator
from solera.core.selection import Roster, Selector


class RoundRobin(Selector):
    """All clients in turn, in a random order that is drawn once.

    A client that cannot be reached when its turn comes waits for the next lap.
    ``next_`` is the place of the next in that order.
    """

    next_: int = 0
    _order: IntArray | None = None

    def choose(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        if self._order is None or len(self._order) != roster.clients:
            self._order = generator(roster.seed, "round-robin").permutation(roster.clients)
        count = min(roster.budget, len(roster.ids))
        if roster.available is None:
            turn = (self.next_ + np.arange(count)) % roster.clients
        else:
            there = np.zeros(roster.clients, dtype=bool)
            there[roster.available] = True
            places = (self.next_ + np.arange(roster.clients)) % roster.clients
            turn = places[there[self._order[places]]][:count]
        if count:
            self.next_ = int(turn[-1] + 1) % roster.clients
        return self._order[turn]
