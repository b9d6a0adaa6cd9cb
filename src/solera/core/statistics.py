"""Which of several methods is better, and whether chance explains it.

A table has one row per data set or seed and one column per method; larger is better. A pandas
frame lends its column names, otherwise methods are numbered. The tests are those of Demšar (2006),
*Statistical comparisons of classifiers over multiple data sets*, JMLR 7, except where a docstring
names another source. Tails are computed directly, never as 1 − cdf, so small p-values keep their
digits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial, inf, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solera.core.errors import DataError, UsageError

Floats = NDArray[np.float64]
ROUNDING = 1e-9
"""Values that differ by less, in parts of themselves, are tied."""
_FEW = 13
"""Rows up to which Wilcoxon's test is exact with ties, too, as in scipy."""


class FriedmanResult(NamedTuple):
    """``statistic`` (χ²) and ``p`` of the Friedman test, and the mean ``ranks`` (1 is best).

    ``f_statistic`` and ``f_p`` are the less conservative form of Iman & Davenport (1980).
    """

    statistic: float
    p: float
    ranks: Floats
    f_statistic: float
    f_p: float


def rank(table: Any) -> Floats:
    """The rank of every method in every row: 1 is the largest value, ties share the mean rank."""
    from scipy.stats import rankdata

    values, _ = _checked(table)
    ranks: Floats = rankdata(-values, axis=1)
    return ranks


def friedman(table: Any, tie_correction: bool = True) -> FriedmanResult:
    """Whether the k ≥ 2 methods differ at all over the N rows (Friedman 1937).

        χ² = 12 N / (k (k + 1)) · [Σ_j R_j² − k (k + 1)² / 4]        with k − 1 degrees of freedom
        F  = (N − 1) χ² / (N (k − 1) − χ²)        with k − 1 and (k − 1)(N − 1) degrees of freedom

    R_j is the mean rank of method j. ``tie_correction`` divides χ² by
    1 − Σ(t³ − t) / (N k (k² − 1)) over all groups of t equal values, as scipy does and Demšar does
    not. Where all rows agree, F is infinite and its p is the share of such tables,
    (1 / k!)^(N − 1). Where all values are tied there is nothing to tell apart: p = 1.
    """
    from scipy import stats

    ranks = rank(table)
    n, k = ranks.shape
    mean = ranks.mean(axis=0)
    chi2 = 12 * n / (k * (k + 1)) * float(((mean - (k + 1) / 2) ** 2).sum())
    if tie_correction:
        tied = sum(_tie_term(row) for row in ranks)
        untied = 1 - tied / (n * k * (k**2 - 1))
        chi2 = chi2 / untied if untied > 1e-12 else 0.0
    most = n * (k - 1)
    chi2 = min(chi2, float(most))
    agree = most - chi2 < 1e-9 * most
    f = inf if agree else (n - 1) * chi2 / (most - chi2)
    if agree:
        f_p = factorial(k) ** -float(n - 1)
    else:
        f_p = stats.f.sf(f, k - 1, (k - 1) * (n - 1)) if f else 1.0
    return FriedmanResult(chi2, float(stats.chi2.sf(chi2, k - 1)), mean, f, float(f_p))


def _tie_term(ranks: Floats) -> int:
    _, sizes = np.unique(ranks, return_counts=True)
    return int((sizes**3 - sizes).sum())


def nemenyi(ranks: ArrayLike, n: int, alpha: float = 0.05) -> float:
    """The critical difference: mean ranks over n rows that differ by as much differ significantly.

        CD = q_α √(k (k + 1) / (6 n)),    q_α = quantile of the studentised range / √2

    (Nemenyi 1963). The quantile is computed for any k and α; there is no table.
    """
    from scipy.stats import studentized_range

    k = np.size(ranks)
    if k < 2:
        raise UsageError.of("nemenyi", "ranks", ranks, "must hold at least two mean ranks")
    if n < 1:
        raise UsageError.of("nemenyi", "n", n, "must be at least 1")
    if not 0 < alpha < 1:
        raise UsageError.of("nemenyi", "alpha", alpha, "must be between 0 and 1")
    return float(studentized_range.isf(alpha, k, inf)) / sqrt(2) * sqrt(k * (k + 1) / (6 * n))


class Pair(NamedTuple):
    """Methods ``a`` and ``b``: the p-value, Holm's, and the rank-biserial ``effect``, > 0 for a."""

    a: Any
    b: Any
    p: float
    p_holm: float
    effect: float


def wilcoxon_holm(table: Any) -> list[Pair]:
    """Every pair of methods by Wilcoxon's signed-rank test, with Holm's correction (1979).

    Rows in which both are equal count half for either side, as in Demšar (2006, section 3.1.3).
    """
    values, names = _checked(table)
    pairs = list(combinations(range(len(names)), 2))
    p = [_wilcoxon(values[:, i], values[:, j]) for i, j in pairs]
    return [
        Pair(names[i], names[j], one, corrected, rank_biserial(values[:, i], values[:, j]))
        for (i, j), one, corrected in zip(pairs, p, holm(p).tolist(), strict=True)
    ]


def _wilcoxon(a: Floats, b: Floats) -> float:
    from scipy.stats import wilcoxon

    if not (a != b).any():
        return 1.0
    if len(a) <= _FEW:
        return _exact_wilcoxon(a - b)
    return float(min(wilcoxon(a, b, zero_method="zsplit").pvalue, 1.0))


def _exact_wilcoxon(gaps: Floats) -> float:
    """Twice the smaller tail of R₊ over all signs of the gaps, by counting the ways to each sum.

    With ties scipy goes through the 2ⁿ signs one by one, which takes seconds.
    """
    from scipy.stats import rankdata

    ranks = np.rint(2 * rankdata(np.abs(gaps))).astype(int)  # ties share a whole or a half rank
    ways = np.ones(1)
    for rank in ranks[gaps != 0]:
        none = np.zeros(rank)
        ways = np.concatenate([ways, none]) + np.concatenate([none, ways])
    reached = int(ranks[gaps > 0].sum())
    tail = min(ways[: reached + 1].sum(), ways[reached:].sum())
    return float(min(2 * tail / ways.sum(), 1.0))


def holm(p: ArrayLike) -> Floats:
    """p-values corrected for their number (Holm 1979): max over smaller ones of (m − i) p_(i)."""
    values = np.asarray(p, dtype=float)
    order = np.argsort(values, kind="stable")
    scaled = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(scaled, 1)
    return corrected


# --- confidence intervals ---


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval around it."""

    estimate: float
    low: float
    high: float


def t_interval(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """The mean and its interval x̄ ± t s / √n (Student 1908); one value gives no finite one."""
    from scipy.stats import t

    x = _sample(values, "t_interval", confidence)
    mean = float(x.mean())
    if len(x) == 1:
        return Interval(mean, -inf, inf)
    reach = float(t.isf((1 - confidence) / 2, len(x) - 1) * x.std(ddof=1) / sqrt(len(x)))
    return Interval(mean, mean - reach, mean + reach)


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[..., Any] = np.mean,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Any statistic and its bias-corrected and accelerated bootstrap interval (Efron 1987).

    ``statistic`` takes a sample and the keyword ``axis``, like ``np.mean`` and ``np.median``. Where
    leaving a value out never changes the statistic the acceleration is undefined; then the
    interval is that of the percentiles.
    """
    from scipy.stats import bootstrap

    x = _sample(values, "bootstrap_interval", confidence)
    estimate = float(statistic(x, axis=0))
    if len(x) == 1:
        return Interval(estimate, -inf, inf)
    if (x == x[0]).all():
        return Interval(estimate, estimate, estimate)
    options = {"confidence_level": confidence, "vectorized": True}
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore")  # an undefined acceleration is dealt with below
        draw = np.random.default_rng(seed)
        drawn = bootstrap((x,), statistic, random_state=draw, **options)
    low, high = map(float, drawn.confidence_interval)
    if not (np.isfinite(low) and np.isfinite(high)):
        tail = (1 - confidence) / 2
        low, high = map(float, np.quantile(drawn.bootstrap_distribution, [tail, 1 - tail]))
    return Interval(estimate, low, high)


def _sample(values: ArrayLike, owner: str, confidence: float) -> Floats:
    x = np.asarray(values, dtype=float)
    if not 0 < confidence < 1:
        raise UsageError.of(owner, "confidence", confidence, "must be between 0 and 1")
    if x.ndim != 1 or not len(x) or not np.isfinite(x).all():
        raise DataError(f"{owner} needs a list of finite numbers")
    return x


# --- effect sizes ---


def rank_biserial(a: ArrayLike, b: ArrayLike) -> float:
    """(R⁺ − R⁻) / (R⁺ + R⁻), R± the ranks of |a − b| where a is larger or smaller (Kerby 2014).

    The effect size of Wilcoxon's signed-rank test for paired values; from −1 to 1.
    """
    from scipy.stats import rankdata

    gap = _paired(a, b, "rank_biserial")
    ranks = rankdata(np.abs(gap))
    return float((np.sign(gap) * ranks).sum() / ranks.sum())


def _paired(a: ArrayLike, b: ArrayLike, owner: str) -> Floats:
    x, y = (_sample(values, owner, 0.5) for values in (a, b))
    if len(x) != len(y):
        raise DataError(f"{owner} needs pairs, not {len(x)} and {len(y)} values")
    return x - y


def _checked(table: Any) -> tuple[Floats, Sequence[Any]]:
    """The values of a table and the names of its columns, or an error that names the cell."""
    values = np.asarray(table, dtype=float)
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        raise DataError(
            f"the table is of shape {values.shape}",
            hint="rows are data sets or seeds, columns are at least two methods",
        )
    names = list(getattr(table, "columns", range(values.shape[1])))
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0].tolist()
        raise DataError(
            f"row {row} has no finite value for method {names[column]!r}",
            hint="leave out rows that not every method has finished",
        )
    return np.array([_tied(row) for row in values]), names


def _tied(row: Floats) -> Floats:
    """The values of a row, where those that only rounding tells apart are the same."""
    order = np.argsort(row)
    ordered = row[order]
    apart = np.diff(ordered) > ROUNDING * np.maximum(np.abs(ordered[1:]), np.abs(ordered[:-1]))
    first = np.concatenate([[0], np.cumsum(apart)])
    settled = np.empty_like(row)
    settled[order] = ordered[np.searchsorted(first, first)]
    return settled
