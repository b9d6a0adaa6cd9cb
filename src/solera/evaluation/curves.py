"""ROC, precision–recall and calibration curves on an even grid, so that they can be averaged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solera.core.clients import FloatArray
from solera.evaluation.scores import CALIBRATION_BINS, Scores

GRID = np.linspace(0, 1, 101)
"""The false positive rates and the recalls at which curves are kept."""


@dataclass(frozen=True)
class Curves:
    """The curves of one model on some rows.

    Parameters
    ----------
    roc: the true positive rate at each false positive rate of :data:`GRID`.
    precision: the precision at each recall of :data:`GRID`.
    score, share: the mean score and the share of positives in each tenth that holds rows, and
        None in the others.
    """

    roc: list[float]
    precision: list[float]
    score: list[float | None]
    share: list[float | None]


def curves_of(scores: Scores) -> Curves | None:
    """The mean curves of all classes or labels that both occur and miss; None if there are none.

    With two classes these are the curves of the second (Fawcett 2006, section 9, of more).
    """
    known = scores.known
    if not known:
        return None
    roc = np.mean([_at(GRID, *scores.roc(i)) for i in known], axis=0)
    precision = np.mean([_precision(scores, i) for i in known], axis=0)
    rows, positives, totals = (np.zeros(CALIBRATION_BINS) for _ in range(3))
    for i in known:
        found = scores.calibration(i)
        tenth = np.minimum((found["score"] * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
        np.add.at(rows, tenth, found["rows"])
        np.add.at(positives, tenth, found["rows"] * found["share"])
        np.add.at(totals, tenth, found["rows"] * found["score"])
    return Curves(roc.tolist(), precision.tolist(), _ratio(totals, rows), _ratio(positives, rows))


def _at(grid: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    return np.asarray(np.interp(grid, x, y))


def _precision(scores: Scores, i: int) -> FloatArray:
    """The precision where a recall is first reached."""
    precision, recall = scores.precision_recall(i)
    first = np.searchsorted(recall, GRID - 1e-12, side="left")
    return precision[np.minimum(first, len(precision) - 1)]


def _ratio(top: FloatArray, bottom: FloatArray) -> list[float | None]:
    return [float(a / b) if b else None for a, b in zip(top, bottom, strict=True)]
