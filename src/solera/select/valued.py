"""Selectors that look at what clients added to the model: their Shapley values."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator

from solera.core import rng as random
from solera.core.clients import FloatArray, IntArray, Part
from solera.core.constraints import NonNegative
from solera.core.errors import NotFitted, UsageError
from solera.core.rounds import Round
from solera.core.selection import Roster, Selector
from solera.select.draw import by_weight, highest
from solera.select.round_robin import RoundRobin
from solera.select.shapley import MOST_EXACT, exact_shapley, truncated_shapley
from solera.select.valuing import RoundUtility


class ShapleySelector(Selector, abstract=True):
    """Values clients by the validation loss of subsets of a round's updates.

    Parameters
    ----------
    X, y: validation rows that the coordinator holds. Without them, clients judge by the ``part``
        of their rows that they keep.
    epsilon: below this difference of utilities, values are cut off (more than ten clients only).

    ``sums_`` are the sums of each client's values, ``counts_`` over how many rounds, ``rounds_``
    how many there were. :attr:`means` and :attr:`scores` follow from them; after ``fit`` they are
    those of the learner's ``selector_``.
    """

    needs_updates: ClassVar[bool] = True
    sums_: FloatArray = np.zeros(0)
    counts_: IntArray = np.zeros(0, dtype=np.int64)
    rounds_: int = 0

    def __init__(
        self,
        X: Any = None,
        y: Any = None,
        *,
        part: Part = "validation",
        epsilon: NonNegative = 1e-4,
    ) -> None:
        self.X = X
        self.y = y
        self.part = part
        self.epsilon = epsilon

    def choose(self, round: int, roster: Roster, rng: Generator) -> IntArray:
        if len(self.counts_) != roster.clients:
            self.sums_ = np.zeros(roster.clients)
            self.counts_ = np.zeros(roster.clients, dtype=np.int64)
        self.rounds_ = round + 1
        return self.pick(round, roster, rng)

    @abstractmethod
    def pick(self, round: int, roster: Roster, rng: Generator) -> IntArray:
        """Ids of the clients, with :attr:`means` and ``counts_`` known."""

    @property
    def means(self) -> FloatArray:
        """Mean value of each client over the rounds in which it was valued; 0 before the first."""
        if not len(self.counts_):
            raise NotFitted.of(self)
        return self.sums_ / np.maximum(self.counts_, 1)

    @property
    def scores(self) -> FloatArray:
        """What clients are chosen by."""
        return self.means

    def observe(self, round: Round) -> None:
        utility = RoundUtility(round, self.X, self.y, self.part)
        clients = utility.clients
        if len(clients) <= MOST_EXACT:
            values = exact_shapley(utility, len(clients))
        else:
            draw = random.generator(round.federation.seed, "shapley", round.index)
            values = truncated_shapley(utility, len(clients), draw, epsilon=self.epsilon)
        self.sums_, self.counts_ = self.sums_.copy(), self.counts_.copy()
        self.sums_[clients] += values
        self.counts_[clients] += 1
        round.log(evaluations=utility.evaluations)

    def described_params(self) -> dict[str, Any]:
        """Validation rows stay where they are when a learner is saved or sent."""
        return {**super().described_params(), "X": None, "y": None}

    def check_params(self) -> None:
        super().check_params()
        if (self.X is None) != (self.y is None):
            raise UsageError(f"{type(self).__name__} needs validation rows and their target")
        if self.X is not None and not len(self.y):
            raise UsageError(f"{type(self).__name__}: there are no validation rows")


class GreedyShapley(ShapleySelector):
    """All clients in turn, then always those of the highest mean value (GreedyFed).

    Singhal, Pandey & Popovski (2024): ⌈K/M⌉ rounds go over a random permutation of the clients.
    """

    turns_: RoundRobin | None = None

    def pick(self, round: int, roster: Roster, rng: Generator) -> IntArray:
        if round * roster.budget < roster.clients:
            if self.turns_ is None:
                self.turns_ = RoundRobin()
            return self.turns_.choose(round, roster, rng)
        return roster.ids[highest(self.means[roster.ids], roster.budget, rng)]


class ShapleyUCB(ShapleySelector):
    """The highest mean value + √(ln t / N_k); clients that were never valued come first.

    After Auer, Cesa-Bianchi & Fischer (2002); t counts rounds, N_k those of client k.
    """

    def pick(self, round: int, roster: Roster, rng: Generator) -> IntArray:
        return roster.ids[highest(self.scores[roster.ids], roster.budget, rng)]

    @property
    def scores(self) -> FloatArray:
        """The upper bound of every client's value; infinite where none is known."""
        means = self.means
        with np.errstate(divide="ignore", invalid="ignore"):
            bonus = np.sqrt(np.log(self.rounds_) / self.counts_)
        return np.where(self.counts_ > 0, means + bonus, np.inf)


class ShapleySoftmax(ShapleySelector):
    """Clients with probability ∝ exp(mean value), without replacement (S-FedAvg).

    Nagalapatti & Narayanam (2021); a client that was never valued counts as 0.
    """

    def pick(self, round: int, roster: Roster, rng: Generator) -> IntArray:
        return roster.ids[by_weight(self.means[roster.ids], roster.budget, rng)]

    @property
    def probabilities(self) -> FloatArray:
        """The probability of each client to be drawn first."""
        weights = np.exp(self.means - self.means.max())
        return np.asarray(weights / weights.sum())
