"""Confidence intervals of metrics, from the counts and sums that the metrics come from.

Each holds in repeated draws of the rows: ``benchmarks/interval_coverage.py`` simulates how often.
One that would not is not given: of an area under the ROC curve with fewer than ten rows of a class,
of R² without the sums of fourth powers.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from solera.core.clients import IntArray
from solera.core.errors import UsageError
from solera.evaluation.counts import LOST

LEAST_ROWS = 10
"""With fewer rows of the rarer class, intervals of shares are exact, and others not given."""
_STEPS = 10_000

Interval = tuple[float, float]


def quantile(level: float) -> float:
    """How many standard errors a two-sided interval of this level reaches."""
    if not 0 < level < 1:
        raise UsageError(f"a level of confidence is between 0 and 1, not {level}")
    return NormalDist().inv_cdf((1 + level) / 2)


def wilson(share: Any, rows: Any, z: float = 1.959963984540054) -> tuple[Any, Any]:
    """The interval of a proportion (Wilson 1927)."""
    share, rows = np.asarray(share, dtype=float), np.asarray(rows, dtype=float)
    middle = share + z**2 / (2 * rows)
    half = z * np.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    scale = 1 + z**2 / rows
    return (middle - half) / scale, (middle + half) / scale


def of_share(hits: int, rows: int, level: float = 0.95) -> Interval:
    """Of a proportion: Wilson's, or the exact one of Clopper & Pearson (1934) where one is rare."""
    z = quantile(level)
    misses = rows - hits
    if min(hits, misses) >= LEAST_ROWS:
        low, high = wilson(hits / rows, rows, z)
        return float(low), float(high)
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = betaincinv(hits, misses + 1, tail) if hits else 0.0
    high = betaincinv(hits + 1, misses, 1 - tail) if misses else 1.0
    return float(low), float(high)


def of_area(
    areas: Interval, variance: float, positives: int, negatives: int, level: float = 0.95
) -> Interval | None:
    """Of an area under the ROC curve that is known to be between two.

    The areas θ with |θ̂ − θ| ≤ z √(c V(θ)) (Newcombe 2006, method 5), where V is the variance of
    Hanley & McNeil (1982) with one number of rows for both classes, and c how many times larger
    that of DeLong et al. (1988) is at θ̂, if it is.
    """
    if min(positives, negatives) < LEAST_ROWS:
        return None
    theta = np.linspace(0, 1, _STEPS + 1)
    others = (positives + negatives) / 2 - 1
    expected = (
        theta * (1 - theta) * (1 + others * ((1 - theta) / (2 - theta) + theta / (1 + theta)))
    )
    expected /= positives * negatives
    low, high = areas
    at_estimate = np.interp((low + high) / 2, theta, expected)
    scale = max(1.0, variance / at_estimate) if at_estimate > 0 else 1.0
    reach = quantile(level) * np.sqrt(scale * expected)
    agreeing = theta[(low - theta <= reach) & (theta - high <= reach)]
    return float(agreeing[0]), float(agreeing[-1])


def area_variance(negatives: Any, positives: Any) -> float:
    """The variance of an area under the ROC curve, from rows by score (DeLong et al. 1988)."""
    total = 0.0
    for rows, others in ((positives, negatives), (negatives, positives)):
        below = (np.cumsum(others) - others / 2) / others.sum()
        mean = np.average(below, weights=rows)
        total += np.average((below - mean) ** 2, weights=rows) / max(rows.sum() - 1, 1)
    return float(total)


def of_r2(sums: dict[str, Any], level: float = 0.95) -> Interval | None:
    """Of R² of one output, from sums about a pivot: e is the error, y beyond the pivot.

    log(1 − R²) = log Σe² − log Σ(y − ȳ)² varies by the variance of e²/Σe² − (y − ȳ)²/Σ(y − ȳ)²
    over rows (the delta method), and by no less than 4 R²/n, as it does where both are normal.
    """
    if "moments" not in sums:
        return None
    rows = float(sums["rows"])
    if rows <= 3:
        return None
    e2, y, y2 = (float(np.squeeze(sums[name])) / rows for name in ("error2", "y", "y2"))
    e4, e2y, e2y2, y3, y4 = (np.squeeze(sums["moments"]) / rows).tolist()
    spread = y2 - y**2
    if not e2 or spread <= LOST * y2:
        return None
    fourth = y4 - 4 * y * y3 + 6 * y**2 * y2 - 3 * y**4
    joint = e2y2 - 2 * y * e2y + y**2 * e2
    from scipy.special import stdtrit

    variance = max(
        e4 / e2**2 + fourth / spread**2 - 2 * joint / (e2 * spread), 4 * (1 - e2 / spread)
    )
    unexplained = np.log(e2 / spread * (rows - 1) / rows)
    half = stdtrit(rows - 2, (1 + level) / 2) * np.sqrt(variance / (rows - 3))
    return float(1 - np.exp(unexplained + half)), float(1 - np.exp(unexplained - half))


def intervals_of(counts: dict[str, Any], level: float = 0.95) -> dict[str, Interval]:
    """Of the metrics of folded counts that have an interval."""
    quantile(level)
    if "confusion" in counts:
        return _of_confusion(counts["confusion"], level)
    if "exact" in counts:
        rows = int(counts.get("exact_rows", counts["rows"]))
        return {"subset_accuracy": of_share(int(counts["exact"]), rows, level)} if rows else {}
    r2 = of_r2(counts, level)
    return {} if r2 is None else {"r2": r2}


def _of_confusion(confusion: IntArray, level: float) -> dict[str, Interval]:
    shares = {"accuracy": (np.trace(confusion), confusion.sum())}
    if len(confusion) == 2:
        (true_negative, false_positive), (_, true_positive) = confusion
        negatives, positives = confusion.sum(axis=1)
        shares["sensitivity"] = true_positive, positives
        shares["specificity"] = true_negative, negatives
        shares["false_positive_rate"] = false_positive, negatives
    return {
        name: of_share(int(hits), int(rows), level) for name, (hits, rows) in shares.items() if rows
    }
