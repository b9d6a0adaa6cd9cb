"""Selectors that look at what clients added to the model: their Shapley values."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from solera.core import rng as random
from solera.core.clients import IntArray
from solera.core.errors import UsageError
from solera.core.rounds import Round
from solera.core.selection import Roster, Selector
from solera.select.draw import by_weight, highest
from solera.select.shapley import MOST_EXACT, exact_shapley, truncated_shapley
from solera.select.uniform import RoundRobin
from solera.select.valuing import RoundUtility

Floats = NDArray[np.float64]


class ShapleySelector(Selector, abstract=True):
    """Values clients by the validation loss of subsets of a round's updates.

    Parameters
    ----------
    X, y: validation rows that the coordinator holds. Without them, clients judge by the ``part``
        of their rows that they keep.
    epsilon: below this difference of utilities, values are cut off (more than ten clients only).
    """

    needs_updates: ClassVar[bool] = True
    _sums: Floats | None = None
    _counts: IntArray | None = None

    def __init__(
        self, X: Any = None, y: Any = None, *, part: str = "validation", epsilon: float = 1e-4
    ) -> None:
        self.X = X
        self.y = y
        self.part = part
        self.epsilon = epsilon

    def choose(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        self._check()
        if self._counts is None or len(self._counts) != roster.clients:
            self._sums = np.zeros(roster.clients)
            self._counts = np.zeros(roster.clients, dtype=np.int64)
        return self.pick(round, roster, rng)

    @abstractmethod
    def pick(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        """Ids of the clients, with :attr:`means` and :attr:`counts` known."""

    @property
    def counts(self) -> IntArray:
        """In how many rounds each client was valued."""
        assert self._counts is not None
        return self._counts

    @property
    def means(self) -> Floats:
        """Mean value of each client over those rounds; 0 before the first."""
        assert self._sums is not None
        return self._sums / np.maximum(self.counts, 1)

    def observe(self, round: Round) -> None:
        assert self._sums is not None
        assert self._counts is not None
        utility = RoundUtility(round, self.X, self.y, self.part)
        clients = utility.clients
        if len(clients) <= MOST_EXACT:
            values = exact_shapley(utility, len(clients))
        else:
            draw = random.generator(round.federation.seed, "shapley", round.index)
            values = truncated_shapley(utility, len(clients), draw, epsilon=self.epsilon)
        self._sums[clients] += values
        self._counts[clients] += 1
        round.log(evaluations=utility.evaluations)

    def described_params(self) -> dict[str, Any]:
        """Validation rows stay where they are when a learner is saved or sent."""
        return {**super().described_params(), "X": None, "y": None}

    def get_state(self) -> Any:
        """Sums of values, and over how many rounds."""
        return {"sums": self._sums, "counts": self._counts}

    def set_state(self, state: Any) -> None:
        self._sums, self._counts = (
            None if state[name] is None else np.array(state[name]) for name in ("sums", "counts")
        )

    def _check(self) -> None:
        if (self.X is None) != (self.y is None):
            raise UsageError(f"{type(self).__name__} needs validation rows and their target")
        if self.X is not None and not len(self.y):
            raise UsageError(f"{type(self).__name__}: there are no validation rows")
        if not self.epsilon >= 0:
            raise UsageError.of(self, "epsilon", self.epsilon, "must not be negative")


class GreedyShapley(ShapleySelector):
    """All clients in turn, then always those of the highest mean value (GreedyFed).

    Singhal, Pandey & Popovski (2024): ⌈K/M⌉ rounds go over a random permutation of the clients.
    """

    _turns: RoundRobin | None = None

    def pick(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        if round * roster.budget < roster.clients:
            if self._turns is None:
                self._turns = RoundRobin()
            return self._turns.choose(round, roster, rng)
        return roster.ids[highest(self.means[roster.ids], roster.budget, rng)]

    def get_state(self) -> Any:
        turns = None if self._turns is None else self._turns.get_state()
        return {**super().get_state(), "turns": turns}

    def set_state(self, state: Any) -> None:
        super().set_state(state)
        if state["turns"] is not None:
            self._turns = RoundRobin()
            self._turns.set_state(state["turns"])


class ShapleyUCB(ShapleySelector):
    """The highest mean value + √(ln t / N_k); clients that were never valued come first.

    After Auer, Cesa-Bianchi & Fischer (2002); t counts rounds, N_k those of client k.
    """

    def pick(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            bonus = np.sqrt(np.log(round + 1) / self.counts)
        bounds = np.where(self.counts > 0, self.means + bonus, np.inf)
        return roster.ids[highest(bounds[roster.ids], roster.budget, rng)]


class ShapleySoftmax(ShapleySelector):
    """Clients with probability ∝ exp(mean value), without replacement (S-FedAvg).

    Nagalapatti & Narayanam (2021); a client that was never valued counts as 0.
    """

    def pick(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        return roster.ids[by_weight(self.means[roster.ids], roster.budget, rng)]
