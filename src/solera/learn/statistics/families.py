"""Families of generalised linear models: links, variances, deviances and likelihoods.

McCullagh & Nelder 1989, *Generalized Linear Models*, ch. 2. Every family has one link: the
identity for the normal, the logit for the binomial, the logarithm for Poisson and gamma.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from solera.core.clients import BoolArray, FloatArray

Name = Literal["gaussian", "binomial", "poisson", "gamma"]
Of = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Family:
    """What the mean is, and how responses spread around it.

    ``mean``: μ from η. ``link``: the inverse. ``slope``: dμ/dη at μ. ``variance``: V(μ). ``start``:
    means to begin with, from responses alone. ``deviance``: of every row (y, μ). ``likelihood``:
    log p of every row (y, μ, weight, scale). ``allowed``: which responses there may be.
    ``dispersed``: the scale is estimated and not 1.
    """

    mean: Of
    link: Of
    slope: Of
    variance: Of
    start: Of
    deviance: Callable[[FloatArray, FloatArray], FloatArray]
    likelihood: Callable[[FloatArray, FloatArray, FloatArray, float], FloatArray]
    allowed: Callable[[FloatArray], BoolArray]
    responses: str
    dispersed: bool
    ratios: str | None = None

    def residual(self, y: FloatArray, mu: FloatArray) -> FloatArray:
        """(y − μ) / (dμ/dη), what is added to η in the working response."""
        return np.asarray((y - mu) / self.slope(mu))

    def weight(self, mu: FloatArray) -> FloatArray:
        """(dμ/dη)² / V(μ), the working weight."""
        return np.asarray(self.slope(mu) ** 2 / self.variance(mu))


def _logistic(eta: FloatArray) -> FloatArray:
    small = np.exp(-np.abs(eta))  # keeps its digits where μ is near 0
    return np.asarray(np.where(eta < 0, small, 1.0) / (1 + small))


def _logit(mu: FloatArray) -> FloatArray:
    return np.asarray(np.log(mu / (1 - mu)))


def _times_log(y: FloatArray, x: FloatArray) -> FloatArray:
    """y log x, 0 where y is."""
    return np.asarray(y * np.log(np.where(y == 0, 1.0, x)))


def _ones(mu: FloatArray) -> FloatArray:
    return np.ones_like(mu)


def _same(mu: FloatArray) -> FloatArray:
    return mu


def _spread(mu: FloatArray) -> FloatArray:
    return mu * (1 - mu)


def _gaussian(y: FloatArray, mu: FloatArray, w: FloatArray, s: float) -> FloatArray:
    return np.asarray(-0.5 * (w * (y - mu) ** 2 / s + np.log(2 * np.pi * s / w)))


def _bernoulli(y: FloatArray, mu: FloatArray, w: FloatArray, s: float) -> FloatArray:
    return np.asarray(w * (_times_log(y, mu) + _times_log(1 - y, 1 - mu)))


def _poisson(y: FloatArray, mu: FloatArray, w: FloatArray, s: float) -> FloatArray:
    from scipy.special import gammaln

    return np.asarray(w * (_times_log(y, mu) - mu - gammaln(y + 1)))


def _gamma(y: FloatArray, mu: FloatArray, w: FloatArray, s: float) -> FloatArray:
    from scipy.special import gammaln

    shape = w / s
    return np.asarray(
        _times_log(shape, shape * y / mu) - shape * y / mu - gammaln(shape) - np.log(y)
    )


FAMILIES: dict[str, Family] = {
    "gaussian": Family(
        mean=_same,
        link=_same,
        slope=_ones,
        variance=_ones,
        start=_same,
        deviance=lambda y, mu: (y - mu) ** 2,
        likelihood=_gaussian,
        allowed=np.isfinite,
        responses="numbers",
        dispersed=True,
    ),
    "binomial": Family(
        mean=_logistic,
        link=_logit,
        slope=_spread,
        variance=_spread,
        start=lambda y: (y + 0.5) / 2,
        deviance=lambda y, mu: -2 * (_times_log(y, mu) + _times_log(1 - y, 1 - mu)),
        likelihood=_bernoulli,
        allowed=lambda y: (y == 0) | (y == 1),
        responses="two classes",
        dispersed=False,
        ratios="odds ratio",
    ),
    "poisson": Family(
        mean=np.exp,
        link=np.log,
        slope=_same,
        variance=_same,
        start=lambda y: y + 0.1,
        deviance=lambda y, mu: 2 * (_times_log(y, y / mu) - (y - mu)),
        likelihood=_poisson,
        allowed=lambda y: (y >= 0) & (y == np.floor(y)),
        responses="counts, as floats",
        dispersed=False,
        ratios="rate ratio",
    ),
    "gamma": Family(
        mean=np.exp,
        link=np.log,
        slope=_same,
        variance=np.square,
        start=_same,
        deviance=lambda y, mu: 2 * ((y - mu) / mu - np.log(y / mu)),
        likelihood=_gamma,
        allowed=lambda y: y > 0,
        responses="positive numbers",
        dispersed=True,
        ratios="ratio of means",
    ),
}
