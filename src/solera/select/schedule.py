"""Whom to choose so that a round ends before its deadline.

The estimated time of a round is T(S) = T_d(S) + Θ(S) plus a fixed overhead: the model goes out at
the pace of the slowest link, clients train in parallel and upload one after the other. Adding
client k to S makes it longer by (Nishio & Yonetani 2019)

    T_inc(S, k) = T_d(S ∪ k) − T_d(S) + t_UL + max(0, t_UD − Θ(S))
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solera.core.clients import BoolArray, FloatArray, IntArray

_EVEN = 1e-9
"""Classes more even than this count as even, and the time alone decides."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Positions in the order of their uploads, the estimated seconds, and when uploads begin."""

    chosen: IntArray
    seconds: float
    first_upload: float


def greedy_schedule(
    training: FloatArray,
    uploading: FloatArray,
    deadline: float,
    *,
    overhead: float = 0.0,
    counts: FloatArray | None = None,
    term: str = "variance",
) -> Schedule:
    """Add the candidate of the smallest T_inc(S, k), or with class counts of the smallest
    T_inc(S, k)·CV(S ∪ k), while the round stays below its deadline.

    A candidate that does not fit now never fits later, because T(S ∪ k) only grows with S.
    """
    places = np.arange(len(training))
    balance = None if counts is None else _Balance(counts, term)
    chosen: list[int] = []
    sent = elapsed = first = 0.0
    training = training.copy()
    while True:
        longer = np.maximum(uploading - sent, 0) + uploading + np.maximum(training - elapsed, 0)
        fits = overhead + sent + elapsed + longer < deadline
        left = int(np.count_nonzero(fits))
        if not left:
            break
        if 2 * left < len(places):
            places, training, uploading = places[fits], training[fits], uploading[fits]
            longer = longer[fits]
            if balance is not None:
                balance.keep(fits)
            fits = np.ones(left, dtype=bool)
        best = _smallest(np.where(fits, longer, np.inf), balance)
        if not chosen:
            first = float(training[best])
        chosen.append(int(places[best]))
        sent, elapsed = (
            max(sent, float(uploading[best])),
            max(elapsed, float(training[best])) + float(uploading[best]),
        )
        training[best] = np.inf  # chosen once
        if balance is not None:
            balance.take(best)
    seconds = overhead + sent + elapsed if chosen else 0.0
    return Schedule(np.array(chosen, dtype=np.int64), seconds, sent + first)


def _smallest(longer: FloatArray, balance: _Balance | None) -> int:
    if balance is None:
        return int(longer.argmin())
    cost = longer * np.maximum(balance.unevenness(), _EVEN)
    return int(cost.argmin())


class _Balance:
    """The coefficient of variation of the class totals of S ∪ k, for every candidate k.

    Eq. 4.11 of the thesis is variance over mean, ``term="variance"``; ``"deviation"`` is the
    standard deviation over the mean.
    """

    def __init__(self, counts: FloatArray, term: str) -> None:
        self.counts = counts
        self.squares = (counts**2).sum(axis=1)
        self.sizes = counts.sum(axis=1)
        self.total = np.zeros(counts.shape[1])
        self.term = term

    def unevenness(self) -> FloatArray:
        classes = len(self.total)
        mean = (self.total.sum() + self.sizes) / classes
        squares = self.total @ self.total + 2 * self.counts @ self.total + self.squares
        variance = np.maximum(squares / classes - mean**2, 0)
        spread = variance if self.term == "variance" else np.sqrt(variance)
        return np.asarray(np.divide(spread, mean, out=np.zeros_like(mean), where=mean > 0))

    def take(self, place: int) -> None:
        self.total = self.total + self.counts[place]

    def keep(self, these: BoolArray) -> None:
        self.counts, self.squares = self.counts[these], self.squares[these]
        self.sizes = self.sizes[these]
