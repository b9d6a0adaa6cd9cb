"""What an attack proves about ε: if it tells too well, the mechanism cannot be (ε, δ)-private.

(ε, δ)-differential privacy allows no test with TPR > e^ε FPR + δ (Kairouz, Oh & Viswanath 2015).
So counted guesses bound ε from below; what is left to chance is in the ``confidence``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from solera.core.clients import FloatArray, IntArray
from solera.core.errors import UsageError


def interval(hits: Any, trials: int, confidence: float) -> tuple[FloatArray, FloatArray]:
    """The Clopper–Pearson interval of a probability; each side errs with (1 − confidence)/2."""
    from scipy.stats import beta

    k = np.asarray(hits)
    if trials < 1 or (k < 0).any() or (k > trials).any():
        raise UsageError(f"interval(hits={hits}, trials={trials}): hits are some of the trials")
    tail = (1 - confidence) / 2
    low = np.where(k == 0, 0.0, beta.ppf(tail, np.maximum(k, 1), trials - k + 1))
    high = np.where(k == trials, 1.0, beta.ppf(1 - tail, k + 1, np.maximum(trials - k, 1)))
    return low, high


def epsilon_of_test(
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
) -> float:
    """The least ε under which a test with these counts can exist, ≥ 0.

    max ln((TPR − δ)/FPR), ln((TNR − δ)/FNR) with the interval's less favourable ends (Jagielski,
    Ullman & Oprea 2020, "Auditing differentially private machine learning", section 4).
    """
    counts = np.array([true_positives]), positives, np.array([false_positives]), negatives
    return float(_bounds(*counts, delta, confidence)[0])


def _bounds(
    true: IntArray, positives: int, false: IntArray, negatives: int, delta: float, confidence: float
) -> FloatArray:
    """:func:`epsilon_of_test` of several tests."""
    tpr, _ = interval(true, positives, confidence)
    _, fpr = interval(false, negatives, confidence)
    best = np.zeros(len(true))
    for most, least in ((tpr - delta, fpr), (1 - fpr - delta, 1 - tpr)):
        good = (most > 0) & (least > 0)
        best[good] = np.maximum(best[good], np.log(most[good] / least[good]))
    return best


def epsilon_of_scores(
    present: Any, absent: Any, *, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """The least ε under which scores with and without the secret can differ so much.

    Every other score chooses the threshold, the rest counts, so that the choice costs no
    confidence. A higher score says that the secret was there.
    """
    inside, outside = np.asarray(present, dtype=float), np.asarray(absent, dtype=float)
    if min(len(inside), len(outside)) < 4:
        raise UsageError("an attack needs at least 4 scores of each kind to be counted")
    threshold = _best_threshold(inside[::2], outside[::2], delta, confidence)
    inside, outside = inside[1::2], outside[1::2]
    hits, false = (int((scores >= threshold).sum()) for scores in (inside, outside))
    counts = hits, len(inside), false, len(outside)
    return epsilon_of_test(*counts, delta=delta, confidence=confidence)


def _best_threshold(
    inside: FloatArray, outside: FloatArray, delta: float, confidence: float
) -> float:
    cuts = np.unique(np.concatenate([inside, outside]))
    true, false = (
        len(scores) - np.searchsorted(np.sort(scores), cuts) for scores in (inside, outside)
    )
    found = _bounds(true, len(inside), false, len(outside), delta, confidence)
    ties = np.flatnonzero(np.isclose(found, found.max()))
    return float(cuts[ties[len(ties) // 2]])


def epsilon_of_guesses(
    correct: int, guesses: int, secrets: int, *, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """The least ε under which so many guesses about coin flips of one run can be right.

    Each of ``secrets`` rows was put in or left out by a fair coin; the attacker guessed some. Under
    (ε, δ) the right guesses are at most Binomial(guesses, e^ε/(1 + e^ε)), apart from δ (Steinke,
    Nasr & Jagielski 2023, "Privacy auditing with one (1) training run", Theorem 5.2).
    """
    from scipy.stats import binom

    if not 0 <= correct <= guesses <= secrets:
        raise UsageError(f"{correct} right of {guesses} guesses about {secrets} rows")

    def possible(epsilon: float) -> bool:
        p = 1 / (1 + math.exp(-epsilon))
        chance = float(binom.sf(correct - 1, guesses, p))
        if delta:
            steps = np.arange(1, correct + 1)
            between = binom.sf(correct - 1 - steps, guesses, p) - chance
            chance += 2 * secrets * delta * float(np.max(between / steps, initial=0.0))
        return chance > 1 - confidence

    if possible(0.0):
        return 0.0
    low, high = 0.0, 50.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if possible(middle) else (middle, high)
    return low


def roc(present: Any, absent: Any) -> tuple[float, dict[float, float]]:
    """The area under the ROC curve, and the true positive rate at small false positive rates."""
    inside, outside = np.asarray(present, dtype=float), np.sort(np.asarray(absent, dtype=float))
    below = np.searchsorted(outside, inside, side="left")
    upto = np.searchsorted(outside, inside, side="right")
    area = float((below + upto).mean() / (2 * len(outside)))
    rates = {}
    for rate in (0.001, 0.01, 0.1):
        cut = outside[len(outside) - 1 - int(rate * len(outside))]
        rates[rate] = float((inside > cut).mean())
    return area, rates
