"""Selectors that look at the loss of the global model at the clients."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.random import Generator

from solera.core.clients import BoolArray, FloatArray, IntArray
from solera.core.constraints import Count, Fraction, NonNegative
from solera.core.errors import NotFitted
from solera.core.selection import Roster, Selector
from solera.select.draw import by_weight, highest, uniformly
from solera.select.reports import ask_values, rows, with_default

_MEAN = 1.0
"""The power of the rows by which a sum is their mean."""

_ROUNDING = 1e-9
"""0.3 of ten clients are three."""


class ActiveSampling(Selector):
    """Clients on whose rows the model is bad are chosen more often (AFL, Goetz et al. 2019).

    The valuation of a client is v_k = (1/√n_k) Σ_i ℓ(x_i, y_i; w) with the model w it received.
    The α1·K clients of lowest v are set aside; all but ⌈α3·M⌉ are drawn with p_k ∝ exp(α2·v_k)
    without replacement, and the rest uniformly from those not yet drawn. In the first round every
    client is asked for its v, later only those that take part. A client that does not report
    counts with the median of the others.

    Parameters
    ----------
    alpha1, alpha2, alpha3: fraction set aside, sharpness, and fraction drawn uniformly.
    mean: v_k = (1/n_k) Σ_i ℓ / √n_k instead, as in the thesis's code.
    explore: choose clients that were never asked first, instead of asking everyone at the start.

    ``values_`` are the latest valuations, NaN where none is known, and ``asked_`` who was asked;
    :attr:`probabilities` follow from them. After ``fit`` they are those of the learner's
    ``selector_``.
    """

    asks_clients = True
    values_: FloatArray | None = None
    asked_: BoolArray | None = None

    def __init__(
        self,
        *,
        alpha1: Fraction = 0.75,
        alpha2: NonNegative = 0.01,
        alpha3: Fraction = 0.1,
        mean: bool = False,
        explore: bool = False,
    ) -> None:
        self.alpha1 = alpha1
        self.alpha2 = alpha2
        self.alpha3 = alpha3
        self.mean = mean
        self.explore = explore

    def choose(self, round: int, roster: Roster, rng: Generator) -> IntArray:
        if self.values_ is None or self.asked_ is None or len(self.values_) != roster.clients:
            self.values_ = np.full(roster.clients, np.nan)
            self.asked_ = np.zeros(roster.clients, dtype=bool)
        ids = roster.ids
        if not self.explore and not self.asked_.any():
            self._refresh(roster, ids, round)
        new = ids[~self.asked_[ids]] if self.explore else ids[:0]
        first = uniformly(new, roster.budget, rng)
        others = ids[self.asked_[ids]] if self.explore else ids
        drawn = self.draw(self.values_[others], roster.budget - len(first), rng)
        chosen = np.concatenate([first, others[drawn]])
        fresh = chosen[~self.asked_[chosen]] if round == 0 else chosen
        if len(fresh):
            self._refresh(roster, fresh, round)
        return chosen

    @property
    def _power(self) -> float:
        return 1.5 if self.mean else 0.5

    def draw(self, values: FloatArray, count: int, rng: Generator) -> IntArray:
        """Positions of ``count`` clients with these valuations; NaN where none is known."""
        values = with_default(np.asarray(values, dtype=float))
        count = min(count, len(values))
        aside = int(self.alpha1 * len(values))
        eligible = highest(values, len(values) - aside, rng)
        wanted = count - ceil(self.alpha3 * count - _ROUNDING)
        if self.alpha2 == np.inf:
            drawn = eligible[highest(values[eligible], wanted, rng)]
        else:
            drawn = eligible[by_weight(self.alpha2 * values[eligible], wanted, rng)]
        left = np.ones(len(values), dtype=bool)
        left[drawn] = False
        more = uniformly(np.flatnonzero(left), count - len(drawn), rng)
        return np.concatenate([drawn, more])

    @property
    def probabilities(self) -> FloatArray:
        """p_k ∝ exp(α2·v_k) of every client, 0 for those set aside; with α2 = ∞ of the highest."""
        if self.values_ is None:
            raise NotFitted.of(self)
        values = with_default(self.values_)
        aside = np.argsort(values, kind="stable")[: int(self.alpha1 * len(values))]
        if self.alpha2 == np.inf:
            scores = np.where(values == values.max(), 0.0, -np.inf)
        else:
            scores = self.alpha2 * (values - values.max())
        scores[aside] = -np.inf
        weights = np.exp(scores)
        return np.asarray(weights / weights.sum())

    def _refresh(self, roster: Roster, clients: IntArray, round: int) -> None:
        assert self.values_ is not None
        assert self.asked_ is not None
        who, reported = ask_values(roster, clients, round, self._power)
        self.values_, self.asked_ = self.values_.copy(), self.asked_.copy()
        self.values_[who] = reported
        self.asked_[clients] = True


class PowerOfChoice(Selector):
    """Of d candidates drawn by their rows, those with the highest loss (Cho et al. 2020).

    Candidates are drawn with p_k ∝ n_k without replacement and asked for the mean loss of the
    current model. A candidate that does not report counts with the median of the others; where
    nobody says how many rows it has, all are taken to have the same number.

    ``candidates`` is d, twice the budget by default; ``rows_`` are the clients' rows.
    """

    asks_clients = True
    rows_: FloatArray | None = None

    def __init__(self, *, candidates: Count | None = None) -> None:
        self.candidates = candidates

    def choose(self, round: int, roster: Roster, rng: Generator) -> IntArray:
        count = max(roster.budget, self.candidates or 2 * roster.budget)
        candidates = self.draw(roster, count, round, rng)
        if len(candidates) <= roster.budget:
            return candidates
        who, reported = ask_values(roster, candidates, round, _MEAN)
        losses = np.full(roster.clients, np.nan)
        losses[who] = reported
        return candidates[highest(with_default(losses[candidates]), roster.budget, rng)]

    def draw(self, roster: Roster, count: int, round: int, rng: Generator) -> IntArray:
        """Candidates with probability ∝ rows."""
        ids = roster.ids
        if self.rows_ is None or len(self.rows_) != roster.clients:
            self.rows_ = self._count_rows(roster, round)
        with np.errstate(divide="ignore"):
            return ids[by_weight(np.log(self.rows_[ids]), count, rng)]

    def _count_rows(self, roster: Roster, round: int) -> FloatArray:
        if roster.sizes is not None:
            return roster.sizes.astype(float)
        counts = np.full(roster.clients, np.nan)
        replies = roster.ask(rows, None, np.arange(roster.clients), round)
        for reply in replies:
            counts[reply.client] = max(0, int(reply["rows"]))
        return np.ones(roster.clients) if np.isnan(counts).all() else with_default(counts)
