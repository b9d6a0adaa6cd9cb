"""AUROC, AUPRC, calibration and the like from counts of scores by bin.

Where in its bin a score lies is not known, so a metric is known to lie between two numbers. One
between them is given, and how far the metric of the rows themselves can be from it, its *bound*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import FloatArray, IntArray
from solera.core.pictures import new_figure
from solera.evaluation.intervals import (
    Interval,
    area_variance,
    of_area,
    of_share,
    quantile,
    wilson,
)

CALIBRATION_BINS = 10
CALIBRATION_EDGES = np.linspace(0, 1, CALIBRATION_BINS + 1)


@dataclass(frozen=True)
class Scores:
    """How many rows have which score, and what follows from that.

    Parameters
    ----------
    names: what was asked of every row: the second of two classes, each of more classes, or labels.
    edges: between the bins; a bin holds scores above its lower and up to its upper edge.
    counts: rows by name, by whether the row is of that class, and by bin.
    loss, brier, judged: the sums of −log p and of squared errors, and over how many rows.
    threshold: rows with a higher score are called positive; None of more than two classes, of
        which a model chooses the one with the highest score.
    """

    names: tuple[str, ...]
    edges: FloatArray
    counts: IntArray
    loss: float
    brier: float
    judged: int
    threshold: float | None = 0.5

    @property
    def rows(self) -> int:
        """How many rows were counted, of the class or label of which the fewest were."""
        return int(self.counts.sum(axis=(1, 2)).min()) if len(self.counts) else 0

    @property
    def known(self) -> list[int]:
        """The classes or labels that both occur and miss."""
        known: list[int] = np.flatnonzero(self.counts.sum(axis=2).all(axis=1)).tolist()
        return known

    # --- single numbers ---

    def ranges(self) -> dict[str, tuple[float, float]]:
        """The least and the largest value that every metric of the rows can have.

        With more than two classes, and with labels, means over those that both occur and miss.
        A metric that nothing is known of is left out.
        """
        known = self.known
        found: dict[str, tuple[float, float]] = {}
        if known:
            each = {
                "auroc": [self._auroc(i) for i in known],
                "auprc": [self._auprc(i) for i in known],
                "ece": [self._ece(i) for i in known],
            }
            if self.threshold is not None:
                above = [self._above(i, self.threshold) for i in known]
                each["sensitivity"] = [positives for _, positives in above]
                each["specificity"] = [_complement(negatives) for negatives, _ in above]
                if len(self.names) == 1:
                    each["false_positive_rate"] = [negatives for negatives, _ in above]
            for name, values in each.items():
                low, high = np.mean(values, axis=0)
                found[name] = float(low), float(high)
        if self.judged:
            found["log_loss"] = (self.loss / self.judged,) * 2
            found["brier"] = (self.brier / self.judged,) * 2
        return found

    def metrics(self) -> dict[str, float]:
        """Every metric: the middle of its range; for the ECE rows lie amid their bins.

        So the AUROC counts rows of one bin as ties.
        """
        found = {name: (low + high) / 2 for name, (low, high) in self.ranges().items()}
        if "ece" in found:
            found["ece"] = float(np.mean([self._calibration_error(i)[0] for i in self.known]))
        return found

    def bounds(self) -> dict[str, float]:
        """How far every metric of the rows themselves can be from that of :meth:`metrics`."""
        found = self.metrics()
        return {
            name: max(high - found[name], found[name] - low)
            for name, (low, high) in self.ranges().items()
        }

    def intervals(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Confidence intervals of one class against the other, from the counts and their bounds.

        See :mod:`solera.evaluation.intervals`; rows of one bin are ties.
        """
        quantile(level)
        if len(self.counts) != 1 or self.threshold is None or not self.known:
            return {}
        negatives, positives = (int(n) for n in self.counts[0].sum(axis=1))
        below, above = self._above(0, self.threshold)
        intervals = {
            "sensitivity": _share_range(above, positives, level),
            "specificity": _share_range(_complement(below), negatives, level),
            "false_positive_rate": _share_range(below, negatives, level),
        }
        variance = area_variance(*self.counts[0])
        area = of_area(self._auroc(0), variance, positives, negatives, level)
        return intervals if area is None else {"auroc": area, **intervals}

    def _auroc(self, i: int) -> tuple[float, float]:
        """The area at the least and at the most, wherever in their bins the rows are."""
        return _pairs(*self.counts[i])

    def _auprc(self, i: int) -> tuple[float, float]:
        return precision_between(self.counts[i], self.counts[i])

    def _above(self, i: int, threshold: float) -> tuple[Interval, Interval]:
        """The share of the negatives, and of the positives, above the threshold."""
        certain = int(np.searchsorted(self.edges, threshold, side="left")) + 1
        possible = int(np.searchsorted(self.edges, threshold, side="right"))
        negative, positive = (
            (
                float(counts[certain:].sum() / counts.sum()),
                float(counts[possible:].sum() / counts.sum()),
            )
            for counts in self.counts[i]
        )
        return negative, positive

    def _ece(self, i: int) -> tuple[float, float]:
        error, off = self._calibration_error(i)
        return max(0.0, error - off), min(1.0, error + off)

    def _calibration_error(self, i: int) -> tuple[float, float]:
        """Expected calibration error Σ_b n_b/n |share of positives − mean score| (Naeini 2015).

        Over ten bins; and how far it may be off: a score that is off by h changes it by at most
        h/n.
        """
        counted = self.calibration(i)
        rows = counted["rows"]
        error = float((rows * np.abs(counted["share"] - counted["score"])).sum() / rows.sum())
        return error, float(counted["off"])

    # --- curves ---

    @property
    def _ends(self) -> FloatArray:
        return np.concatenate([[0.0], self.edges, [1.0]])

    def _drawn(self, i: int) -> Any:
        """The counts that curves are of."""
        return self.counts[i]

    def roc(self, i: int = 0) -> tuple[FloatArray, FloatArray]:
        """False and true positive rates at the edges of the bins, from (0, 0) to (1, 1)."""
        negatives, positives = self._drawn(i)[:, ::-1]
        rates = [np.concatenate([[0.0], np.cumsum(n) / n.sum()]) for n in (negatives, positives)]
        return rates[0], rates[1]

    def precision_recall(self, i: int = 0) -> tuple[FloatArray, FloatArray]:
        """Precision and recall at the edges of the bins, from the highest score down."""
        negatives, positives = self._drawn(i)[:, ::-1]
        true, false = np.cumsum(positives), np.cumsum(negatives)
        some = true + false > 0
        return true[some] / (true + false)[some], true[some] / true[-1]

    def _average_precision(self, i: int) -> float:
        precision, recall = self.precision_recall(i)
        return float((precision * np.diff(recall, prepend=0.0)).sum())

    def calibration(self, i: int = 0, level: float = 0.95) -> dict[str, Any]:
        """Of ten equal bins: ``rows``, mean ``score``, ``share`` of positives and its band.

        ``low`` and ``high`` are Wilson's interval of the share, ``off`` is how far the scores are
        known, in the mean.
        """
        ends = self._ends
        middles = (ends[:-1] + ends[1:]) / 2
        tenths = _tenth(middles)
        rows, positives, scores = (np.zeros(CALIBRATION_BINS) for _ in range(3))
        off = 0.0
        for c, counts in enumerate(self.counts[i]):
            np.add.at(rows, tenths, counts)
            np.add.at(positives, tenths, counts * c)
            np.add.at(scores, tenths, counts * middles)
            off += float((counts * np.diff(ends) / 2).sum())
        some = rows > 0
        share, score = positives[some] / rows[some], scores[some] / rows[some]
        low, high = wilson(share, rows[some], quantile(level))
        return {
            "rows": rows[some],
            "score": score,
            "share": share,
            "low": low,
            "high": high,
            "off": off / max(rows.sum(), 1),
        }

    def plot(self, clients: dict[int, Scores] | None = None) -> Any:
        """A figure of the ROC, precision–recall and calibration curves, thin ones of clients."""
        figure = new_figure(figsize=(12, 4))
        roc, pr, calibration = figure.subplots(1, 3)
        for each in (clients or {}).values():
            if 0 in each.known:
                roc.plot(*each.roc(), color="0.7", lw=0.8)
                pr.plot(*each.precision_recall()[::-1], color="0.7", lw=0.8)
        for i in self.known:
            name = self.names[i]
            roc.plot(*self.roc(i), label=name)
            pr.plot(*self.precision_recall(i)[::-1], label=name)
            found = self.calibration(i)
            calibration.plot(found["score"], found["share"], marker="o", label=name)
            calibration.fill_between(found["score"], found["low"], found["high"], alpha=0.2)
        for ax in (roc, calibration):
            ax.plot([0, 1], [0, 1], color="0.6", ls=":", lw=1)
        labels = ("false positive rate", "true positive rate"), ("recall", "precision")
        for ax, (x, y) in zip(
            (roc, pr, calibration), (*labels, ("score", "share of positives")), strict=True
        ):
            ax.set(xlabel=x, ylabel=y, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        roc.legend()
        return figure


def precision_between(low: IntArray, high: IntArray) -> Interval:
    """Average precision, the mean of the precision at the score of every positive.

    Negatives and positives by the lowest and the highest bin they can be in. At the score of the
    k-th positive from above there are at least k true positives and at most the false ones that its
    bin or higher ones may hold; and the other way round.
    """
    (low_n, low_p), (high_n, high_p) = low, high
    bins = np.arange(len(low_p))
    lowest, highest = (np.repeat(bins, p)[::-1] for p in (low_p, high_p))
    k = np.arange(1, len(lowest) + 1)
    worst = k / (k + _from_above(high_n)[lowest])
    true, false = _from_above(high_p), _from_above(low_n) - low_n
    precision = np.divide(true, true + false, out=np.zeros(len(bins)), where=true > 0)
    pairs, which = np.unique(np.stack([lowest, highest]), axis=1, return_inverse=True)
    best = np.array([precision[a : b + 1].max() for a, b in pairs.T])[which.reshape(-1)]
    return float(worst.mean()), float(best.mean())


def _share_range(share: Interval, rows: int, level: float) -> Interval:
    low, high = (round(each * rows) for each in share)
    return of_share(low, rows, level)[0], of_share(high, rows, level)[1]


def _complement(share: tuple[float, float]) -> tuple[float, float]:
    return 1 - share[1], 1 - share[0]


def _from_above(counts: IntArray) -> IntArray:
    """How many are in each bin or a higher one."""
    return np.asarray(np.cumsum(counts[::-1])[::-1])


def _pairs(negatives: IntArray, positives: IntArray) -> tuple[float, float]:
    """Pairs of a positive and a negative in the right order, those of one bin as none or as all.

    P(positive above negative) as in Mann & Whitney; the mean of the two counts a tie as a half.
    """
    pairs = float(positives.sum()) * float(negatives.sum())
    below = np.cumsum(negatives)
    right = (positives * (below - negatives)).sum() / pairs
    return float(right), float((positives * below).sum() / pairs)


def _tenth(scores: FloatArray) -> IntArray:
    """Which of ten bins (low, high] scores are in; 0 is in the first."""
    return np.searchsorted(CALIBRATION_EDGES[1:-1], scores, side="left")
