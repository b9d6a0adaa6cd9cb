"""Selectors that look at the loss of the global model at the clients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import IntArray
from solera.core.errors import UsageError
from solera.core.selection import Roster, Selector
from solera.select.draw import by_weight, highest, uniformly
from solera.select.reports import ask_values, rows, with_default

Floats = NDArray[np.float64]


class ActiveSampling(Selector):
    """Clients on whose rows the model is bad are chosen more often (AFL, Goetz et al. 2019).

    The valuation of a client is v_k = (1/√n_k) Σ_i ℓ(x_i, y_i; w) with the model w it received.
    The α1·K clients of lowest v are set aside; (1 − α3)·M are drawn with p_k ∝ exp(α2·v_k)
    without replacement, and the rest uniformly from those not yet drawn. In the first round every
    client is asked for its v, later only those that take part. A client that does not report
    counts with the median of the others.

    Parameters
    ----------
    alpha1, alpha2, alpha3: fraction set aside, sharpness, and fraction drawn uniformly.
    mean: v_k = (1/n_k) Σ_i ℓ / √n_k instead, as in the thesis's code.
    explore: choose clients that were never asked first, instead of asking everyone at the start.
    """

    _values: Floats | None = None
    _asked: NDArray[np.bool_] | None = None

    def __init__(
        self,
        *,
        alpha1: float = 0.75,
        alpha2: float = 0.01,
        alpha3: float = 0.1,
        mean: bool = False,
        explore: bool = False,
    ) -> None:
        self.alpha1 = alpha1
        self.alpha2 = alpha2
        self.alpha3 = alpha3
        self.mean = mean
        self.explore = explore

    def choose(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        self._check()
        if self._values is None or self._asked is None or len(self._values) != roster.clients:
            self._values = np.full(roster.clients, np.nan)
            self._asked = np.zeros(roster.clients, dtype=bool)
        ids = roster.ids
        if not self.explore and not self._asked.any():
            self._refresh(roster, ids, round)
        new = ids[~self._asked[ids]] if self.explore else ids[:0]
        first = uniformly(new, roster.budget, rng)
        others = ids[self._asked[ids]] if self.explore else ids
        drawn = self.draw(self._values[others], roster.budget - len(first), rng)
        chosen = np.concatenate([first, others[drawn]])
        fresh = chosen[~self._asked[chosen]] if round == 0 else chosen
        if len(fresh):
            self._refresh(roster, fresh, round)
        return chosen

    def draw(self, values: Floats, count: int, rng: np.random.Generator) -> IntArray:
        """Positions of ``count`` clients with these valuations; NaN where none is known."""
        values = with_default(np.asarray(values, dtype=float))
        count = min(count, len(values))
        aside = int(self.alpha1 * len(values))
        eligible = highest(values, len(values) - aside, rng)
        wanted = count - round(self.alpha3 * count)
        if self.alpha2 == np.inf:
            drawn = eligible[highest(values[eligible], wanted, rng)]
        else:
            drawn = eligible[by_weight(self.alpha2 * values[eligible], wanted, rng)]
        left = np.ones(len(values), dtype=bool)
        left[drawn] = False
        more = uniformly(np.flatnonzero(left), count - len(drawn), rng)
        return np.concatenate([drawn, more])

    def _refresh(self, roster: Roster, clients: IntArray, round: int) -> None:
        assert self._values is not None
        assert self._asked is not None
        who, found = ask_values(roster, clients, round, 1.5 if self.mean else 0.5)
        self._values[who] = found
        self._asked[clients] = True

    def get_state(self) -> Any:
        """All valuations, and who was ever asked."""
        return {"values": self._values, "asked": self._asked}

    def set_state(self, state: Any) -> None:
        self._values, self._asked = (
            None if state[name] is None else np.array(state[name]) for name in ("values", "asked")
        )

    def _check(self) -> None:
        for name in ("alpha1", "alpha3"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError.of(self, name, getattr(self, name), "must be between 0 and 1")
        if not self.alpha2 >= 0:
            raise UsageError.of(self, "alpha2", self.alpha2, "must not be negative")


class PowerOfChoice(Selector):
    """Of d candidates drawn by their rows, those with the highest loss (Cho et al. 2020).

    Candidates are drawn with p_k ∝ n_k without replacement and asked for the mean loss of the
    current model. A candidate that does not report counts with the median of the others; where
    nobody says how many rows it has, all are taken to have the same number.

    ``candidates`` is d, twice the budget by default.
    """

    _rows: Floats | None = None

    def __init__(self, *, candidates: int | None = None) -> None:
        self.candidates = candidates

    def choose(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        if self.candidates is not None and self.candidates < 1:
            raise UsageError.of(self, "candidates", self.candidates, "must be at least 1, or None")
        count = max(roster.budget, self.candidates or 2 * roster.budget)
        candidates = self.draw(roster, count, round, rng)
        if len(candidates) <= roster.budget:
            return candidates
        who, found = ask_values(roster, candidates, round, 1.0)
        losses = np.full(roster.clients, np.nan)
        losses[who] = found
        return candidates[highest(with_default(losses[candidates]), roster.budget, rng)]

    def draw(self, roster: Roster, count: int, round: int, rng: np.random.Generator) -> IntArray:
        """Candidates with probability ∝ rows."""
        ids = roster.ids
        if self._rows is None or len(self._rows) != roster.clients:
            self._rows = self._count_rows(roster, round)
        with np.errstate(divide="ignore"):
            return ids[by_weight(np.log(self._rows[ids]), count, rng)]

    def _count_rows(self, roster: Roster, round: int) -> Floats:
        if roster.sizes is not None:
            return roster.sizes.astype(float)
        found = np.full(roster.clients, np.nan)
        for reply in roster.ask(rows, None, np.arange(roster.clients), round):
            found[reply.client] = max(0, int(reply["rows"]))
        return np.ones(roster.clients) if np.isnan(found).all() else with_default(found)

    def get_state(self) -> Any:
        """The numbers of rows, once they are known."""
        return {"rows": self._rows}

    def set_state(self, state: Any) -> None:
        self._rows = None if state["rows"] is None else np.array(state["rows"])
