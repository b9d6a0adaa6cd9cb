"""Metrics of counts that carry noise: about how much they are, and between what.

In a closed job cells of few persons are told with normal noise of deviation 1, each cell with its
own. What is known exactly, such as how many rows there are, takes some of it away: a sum with the
weights w over cells that have a known sum varies by Σ (w − w̄)².
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import BoolArray, FloatArray, IntArray
from solera.evaluation.intervals import Interval, quantile, wilson
from solera.evaluation.scores import Scores, precision_between

DEVIATIONS = 3.0
"""How many deviations of the noise bounds leave for it: 99.7 % of draws lie within them."""

_ROUNDING = 1e-6

Between = tuple[float, float, float]
"""The least, the likeliest and the largest that a number can be."""


def settled(counts: Any, total: Any) -> FloatArray:
    """Noised counts that add up to a known total along the last axis."""
    counts = np.asarray(counts, dtype=float)
    rest = np.asarray(total) - counts.sum(axis=-1)
    return np.asarray(counts + np.expand_dims(rest, -1) / counts.shape[-1])


def first_cell(counts: Any, total: int) -> Between:
    """How many rows are in the first of a list of noised cells that have so many together."""
    hits = float(settled(counts, total)[0])
    reach = DEVIATIONS * np.sqrt(1 - 1 / len(counts))
    low = np.clip(np.ceil(hits - reach), 0, total - 1)
    high = np.clip(np.floor(hits + reach), low + 1, total)
    return float(low), float(np.clip(hits, low, high)), float(high)


@dataclass(frozen=True)
class NoisedTables:
    """A table of classes, or one of every label, true × predicted.

    Parameters
    ----------
    counts: tables × true × predicted, settled.
    cells: how many cells have one known sum: those of a line of the table, or all and more.
    """

    counts: FloatArray
    cells: int

    def ratio(self, top: FloatArray, bottom: FloatArray, together: bool = False) -> FloatArray:
        """Between what Σ top·cells / Σ bottom·cells is, for weights classes × true × predicted.

        All θ for which Σ (top − θ bottom)·cells is within its deviations of 0 (Fieller 1954);
        least and largest, each by class or table, or of all tables ``together``.
        """
        a, b = (self._sum(weights, together) for weights in (top, bottom))
        z2 = DEVIATIONS**2
        square = b**2 - z2 * self._covariance(bottom, bottom, together)
        middle = a * b - z2 * self._covariance(top, bottom, together)
        last = a**2 - z2 * self._covariance(top, top, together)
        reach = np.sqrt(np.maximum(middle**2 - square * last, 0.0))
        bounded = (square > 0) & (b > 0)
        square = np.where(bounded, square, 1.0)
        low = np.where(bounded, (middle - reach) / square, 0.0)
        high = np.where(bounded, (middle + reach) / square, 1.0)
        return np.clip([low, high], 0.0, 1.0)

    def is_certain(self, weights: FloatArray) -> BoolArray:
        """Whether some row is surely in these cells."""
        reach = DEVIATIONS * np.sqrt(np.maximum(self._covariance(weights, weights), 0.0))
        return np.asarray(self._sum(weights) > reach)

    def _sum(self, weights: FloatArray, together: bool = False) -> Any:
        total = (self.counts * weights).sum(axis=(-2, -1))
        return total.sum() if together else total

    def _covariance(self, v: FloatArray, w: FloatArray, together: bool = False) -> Any:
        by_line = self.cells == v.shape[-1]
        v, w = (each if by_line else each.reshape(len(each), 1, -1) for each in (v, w))
        shared = v.sum(axis=-1) * w.sum(axis=-1) / self.cells
        total = ((v * w).sum(axis=-1) - shared).sum(axis=-1)
        return total.sum() * len(self.counts) if together else total


def table_bounds(tables: NoisedTables, target: str) -> dict[str, Interval]:
    """Of the metrics of classes or labels that follow from these tables.

    Of means over classes that occur it is left open whether one occurs that may be empty.
    """
    k = tables.counts.shape[-1]
    line = np.broadcast_to(np.eye(k)[:, :, None], (k, k, k))
    true, said = line, line.transpose(0, 2, 1)
    if target == "labels":
        true, said = true[1:], said[1:]
    hit, others = true * said, 1 - true
    occurs, present = tables.is_certain(true + said), tables.is_certain(true)
    recall = tables.ratio(hit, true)
    specificity = tables.ratio(others - said + hit, others)
    judged = slice(1, None) if target == "classes" and k == 2 else slice(None)
    sensitive = _mean(recall[:, judged], present[judged])
    specific = _mean(specificity[:, judged], tables.is_certain(others)[judged])
    bounds = {
        "macro_precision": _mean(tables.ratio(hit, said), occurs),
        "macro_recall": _mean(recall, occurs),
        "macro_f1": _mean(tables.ratio(2 * hit, true + said), occurs),
        "sensitivity": sensitive,
        "specificity": specific,
    }
    if target == "classes":
        wrong_alarms = 1 - specific[1], 1 - specific[0]
        more = {"balanced_accuracy": _mean(recall, present), "false_positive_rate": wrong_alarms}
        return bounds | more
    missed = true + said - 2 * hit
    low, high = tables.ratio(missed, np.ones_like(hit), together=True).tolist()
    micro = tables.ratio(2 * hit, true + said, together=True).tolist()
    return bounds | {"hamming_loss": (low, high), "micro_f1": (micro[0], micro[1])}


def _mean(bounds: FloatArray, certain: BoolArray) -> Interval:
    """Of a mean over those that certainly count, and over any of the others."""
    low, high = bounds

    def least(values: FloatArray) -> float:
        first, rest = values[certain], np.sort(values[~certain])
        sums = first.sum() + np.concatenate([[0.0], np.cumsum(rest)])
        sizes = len(first) + np.arange(len(rest) + 1)
        return float((sums[sizes > 0] / sizes[sizes > 0]).min())

    return least(low), -least(-high)


@dataclass(frozen=True)
class NoisedScores(Scores):
    """Scores of rows by bins that hold enough persons each; every count of a bin carries noise.

    ``edges`` and ``counts`` are lists, since every name has bins of its own.

    Parameters
    ----------
    means: by name, the mean score of the rows of a bin.
    exact: whether the totals of both are known, so that the counts are settled.
    """

    means: Sequence[FloatArray] = ()
    exact: bool = True

    @property
    def rows(self) -> int:
        return round(min(float(each.sum()) for each in self.counts))

    @property
    def grid(self) -> str:
        """What curves and areas rest on, in words."""
        sizes = sorted({each.shape[1] for each in self.counts})
        bins = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        return f"{bins} bins of scores, whose counts carry noise"

    @property
    def known(self) -> list[int]:
        return [i for i, each in enumerate(self.counts) if (each.sum(axis=1) > 0).all()]

    def ranges(self) -> dict[str, Interval]:
        known = self.known
        if not known:
            return {}
        each = {"auroc": [self._auroc(i) for i in known], "auprc": [self._auprc(i) for i in known]}
        means = {name: np.mean(values, axis=0).tolist() for name, values in each.items()}
        return {name: (low, high) for name, (low, high) in means.items()}

    def metrics(self) -> dict[str, float]:
        """The area, with rows of one bin as ties, and the one under the curve that is drawn."""
        if not self.known:
            return {}
        areas = [_area(self.counts[i], 0.5) for i in self.known]
        found = {
            "auroc": float(np.mean(areas)),
            "auprc": float(np.mean([self._average_precision(i) for i in self.known])),
        }
        return {name: float(np.clip(found[name], *span)) for name, span in self.ranges().items()}

    def intervals(self, level: float = 0.95) -> dict[str, Interval]:
        quantile(level)
        return {}

    def calibration(self, i: int = 0, level: float = 0.95) -> dict[str, Any]:
        """Of every bin: ``rows``, mean ``score``, ``share`` of positives and its band.

        ``low`` and ``high`` are Wilson's interval, with room for the noise.
        """
        negatives, positives = self._drawn(i)
        rows = negatives + positives
        some = (rows >= 1) & np.isfinite(self.means[i])
        share = positives[some] / rows[some]
        reach = DEVIATIONS * np.sqrt(share**2 + (1 - share) ** 2) / rows[some]
        z = quantile(level)
        low, _ = wilson(np.maximum(share - reach, 0.0), rows[some], z)
        _, high = wilson(np.minimum(share + reach, 1.0), rows[some], z)
        score = self.means[i][some]
        low, high = np.maximum(low, 0.0), np.minimum(high, 1.0)
        band = {"low": low, "high": high, "off": 0.0}
        return {"rows": rows[some], "score": score, "share": share, **band}

    def _drawn(self, i: int) -> Any:
        return np.maximum(self.counts[i], 0.0)

    def plot(self, clients: Any = None) -> Any:
        """The curves that follow from the bins; the figure says which these are."""
        figure = super().plot()
        figure.suptitle(f"from {self.grid}")
        return figure

    def _auroc(self, i: int) -> Interval:
        """The area wherever in their bins the rows are, and whatever the noise is."""
        counts = self.counts[i]
        totals = counts.sum(axis=1)
        if not self.exact and totals.min() <= 2 * DEVIATIONS * np.sqrt(counts.shape[1]):
            return 0.0, 1.0
        low = _area(counts, 0.0) - DEVIATIONS * self._area_deviation(counts, 0.0)
        high = _area(counts, 1.0) + DEVIATIONS * self._area_deviation(counts, 1.0)
        return max(low, 0.0), min(high, 1.0)

    def _area_deviation(self, counts: FloatArray, ties: float) -> float:
        """How much the area varies with the noise of the counts, by its derivatives."""
        area = _area(counts, ties)
        (negatives, positives), totals = counts, counts.sum(axis=1)
        below = np.cumsum(negatives) - (1 - ties) * negatives
        above = totals[1] - np.cumsum(positives) + ties * positives
        slopes = np.stack([(above / totals[1] - area), (below / totals[0] - area)])
        if self.exact:
            slopes -= slopes.mean(axis=1, keepdims=True)
        return float(np.sqrt(((slopes / totals[:, None]) ** 2).sum()))

    def _auprc(self, i: int) -> Interval:
        """Average precision between the curves of fewest and of most positives above each edge."""
        spans = np.array([precision_between(*ends) for ends in _ends(self.counts[i], self.exact)])
        return float(spans[:, 0].min()), float(spans[:, 1].max())


def _ends(counts: FloatArray, exact: bool) -> Iterator[tuple[IntArray, IntArray]]:
    """Negatives and positives by the lowest and the highest bin they can be in.

    Where their totals are not known, once with the least and once with the largest.
    """
    bins = counts.shape[1]
    above = np.cumsum(counts[:, ::-1], axis=1)
    summed = np.arange(1, bins + 1)
    reach = DEVIATIONS * np.sqrt(summed * (bins - summed) / bins if exact else summed)
    reach = reach + _ROUNDING
    fewest = np.maximum.accumulate(np.maximum(np.ceil(above - reach), 0.0), axis=1)
    most = np.maximum(np.floor(above + reach), 0.0)
    most = np.maximum(np.minimum.accumulate(most[:, ::-1], axis=1)[:, ::-1], fewest)
    for totals in (np.rint(above[:, -1]),) if exact else (fewest[:, -1], most[:, -1]):
        totals = np.maximum(totals, 1.0)[:, None]
        low, high = (np.minimum(one, totals) for one in (fewest, most))
        low[:, -1:] = high[:, -1:] = totals
        low, high = (np.diff(one, axis=1, prepend=0)[:, ::-1].astype(int) for one in (low, high))
        yield low, high


def _area(counts: FloatArray, ties: float) -> float:
    """The share of pairs in the right order; of those in one bin so large a part."""
    negatives, positives = counts
    below = np.cumsum(negatives) - (1 - ties) * negatives
    return float((positives * below).sum() / (negatives.sum() * positives.sum()))
