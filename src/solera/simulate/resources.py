"""What simulated clients can do: how fast they train, how fast their link is, what they allow.

The model of the thesis (after Yoshida et al. 2020): every client has a usual speed γ_k ~ U(10, 100)
samples per second and a usual link θ_k of 1.4 Mbit/s. In every round both are drawn anew from a
normal distribution with σ = 0.1 of the usual value, truncated at ±20 % of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from solera.core import rng
from solera.core.clients import BoolArray, FloatArray
from solera.core.component import Component
from solera.core.constraints import Fraction, NonNegative, ProperFraction
from solera.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class State:
    """Speed in samples per second and link in bits per second of some clients."""

    speed: FloatArray
    link: FloatArray


class Resources(Component):
    """Speeds and links of simulated clients, the same for the same (seed, round, client).

    Parameters
    ----------
    speed: samples per second, one number for all or (low, high) of a uniform distribution.
    link: bits per second, likewise.
    variation: how far a round's value may be from the usual one, as a fraction r_var of it.
    spread: its standard deviation, as a fraction of the usual value.
    upload: probability r_UL that a client lets rows of its own be sent to the coordinator.
    reports: what clients tell selectors: ``"now"``, the values of this round, or ``"usual"``.
    """

    def __init__(
        self,
        *,
        speed: float | tuple[float, float] = (10.0, 100.0),
        link: float | tuple[float, float] = 1.4e6,
        variation: ProperFraction = 0.2,
        spread: NonNegative = 0.1,
        upload: Fraction = 0.01,
        reports: Literal["now", "usual"] = "now",
    ) -> None:
        self.speed = speed
        self.link = link
        self.variation = variation
        self.spread = spread
        self.upload = upload
        self.reports = reports

    def usual(self, seed: int, clients: ArrayLike) -> State:
        """The values that every round's vary around."""
        keys = rng.stream_keys(seed, "resources", 0, clients)
        speed = _between(self.speed, rng.uniform(keys, 0))
        link = _between(self.link, rng.uniform(keys, 1))
        return State(speed, link)

    def now(self, seed: int, round: int, clients: ArrayLike) -> State:
        """The values of one round."""
        usual = self.usual(seed, clients)
        keys = rng.stream_keys(seed, "resources/now", round, clients)
        return State(
            usual.speed * self._factor(rng.uniform(keys, 0)),
            usual.link * self._factor(rng.uniform(keys, 1)),
        )

    def reported(self, seed: int, round: int, clients: ArrayLike) -> State:
        """What clients say about themselves."""
        now = self.reports == "now"
        return self.now(seed, round, clients) if now else self.usual(seed, clients)

    def allows_upload(self, seed: int, clients: ArrayLike) -> BoolArray:
        """Who lets rows be sent to the coordinator; a client never changes its mind."""
        keys = rng.stream_keys(seed, "resources", 0, clients)
        return np.asarray(rng.uniform(keys, 2) < self.upload)

    def _factor(self, u: FloatArray) -> FloatArray:
        """1 + σ·z, z normal and truncated, from uniform numbers."""
        if not self.spread or not self.variation:
            return np.ones_like(u)
        from scipy.special import ndtr, ndtri

        low = ndtr(-self.variation / self.spread)
        return np.asarray(1 + self.spread * ndtri(low + u * (1 - 2 * low)))

    def check_params(self) -> None:
        super().check_params()
        for name in ("speed", "link"):
            low, high = _bounds(getattr(self, name))
            if not 0 < low <= high < np.inf:
                rule = "must be > 0, or (low, high) with 0 < low ≤ high"
                raise UsageError.of(self, name, getattr(self, name), rule)


def _bounds(value: float | tuple[float, float]) -> tuple[float, float]:
    if isinstance(value, tuple | list):
        low, high = value
        return float(low), float(high)
    return float(value), float(value)


def _between(value: float | tuple[float, float], u: FloatArray) -> FloatArray:
    low, high = _bounds(value)
    return low + (high - low) * u
