"""Risk sets of Cox's model, with Efron's ties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solera.core.clients import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class EfronSums:
    """What the risk sets at the times of events add to likelihood, score and information.

    Σ log S₀, Σ S₁/S₀ and Σ S₁S₁ᵀ/S₀² over events, where S₀ and S₁ add up r = exp(xᵀβ) and r x over
    who is at risk. The sum of S₂/S₀ is one over rows, with weights r (Σ 1/S₀ over the events that a
    row is at risk at, less its share in those of its own time): ``at_risk`` and ``tied`` hold both,
    for each time.
    """

    log_hazards: float
    means: FloatArray
    products: FloatArray
    at_risk: FloatArray
    tied: FloatArray

    @classmethod
    def of(cls, at_risk: FloatArray, tied: FloatArray, events: IntArray) -> EfronSums:
        """Sums of r and r x, times × (1 + columns), at risk and with the event, for each time.

        Of d events at one time, the l-th sees those at risk less l/d of the events (Efron 1977).
        """
        time = np.repeat(np.arange(len(events)), events)
        first = np.cumsum(events) - events
        before = (np.arange(len(time)) - first[time]) / events[time]
        sums = at_risk[time] - before[:, None] * tied[time]
        hazard = sums[:, 0]
        mean = sums[:, 1:] / hazard[:, None]
        return cls(
            float(np.log(hazard).sum()),
            mean.sum(axis=0),
            mean.T @ mean,
            np.bincount(time, weights=1 / hazard, minlength=len(events)).astype(float),
            np.bincount(time, weights=before / hazard, minlength=len(events)).astype(float),
        )


def partial_likelihood(
    X: FloatArray, time: FloatArray, event: BoolArray, coef: FloatArray
) -> FloatArray:
    """The logarithm of Efron's partial likelihood, its gradient, and the information's triangle.

    One after the other in a vector.
    """
    order = np.argsort(-time, kind="stable")
    X, time, event = X[order], time[order], event[order]
    eta = X @ coef
    eta = eta - eta.max()
    r = np.exp(eta)
    row = np.column_stack([r, r[:, None] * X])
    at, first, events = np.unique(-time[event], return_index=True, return_counts=True)
    at_risk = np.cumsum(row, axis=0)[np.searchsorted(-time, at, side="right") - 1]
    tied = np.add.reduceat(row[event], first, axis=0) if len(at) else at_risk
    sums = EfronSums.of(at_risk, tied, events)
    # a row is at risk at its own time and all before it, which come after it here
    later = np.append(np.cumsum(sums.at_risk[::-1])[::-1], 0.0)
    weight = later[np.searchsorted(at, -time)]
    weight[event] -= np.repeat(sums.tied, events)
    information = X.T @ ((r * weight)[:, None] * X) - sums.products
    likelihood = eta[event].sum() - sums.log_hazards
    score = X[event].sum(axis=0) - sums.means
    return np.concatenate([[likelihood], score, information[np.triu_indices(len(coef))]])
