"""Scores for several labels per row, under the names the literature gives them."""

from __future__ import annotations

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray
from solera.evaluation.counts import label_metrics, ratio

SCORES = (
    "subset_accuracy",
    "macro_f1",
    "macro_f1_harmonic",
    "micro_f1",
    "hamming_loss",
    "ranking_loss",
    "argmax_accuracy",
    "loss",
)


def label_scores(z: Array, truth: Array, thresholds: Array | float = 0.0) -> dict[str, float]:
    """Scores of outputs z (before the sigmoid) against labels 0 and 1.

    A label is predicted where z exceeds its threshold. ``subset_accuracy``, ``macro_f1`` and the
    like are those of :func:`solera.evaluation.counts.label_metrics`; ``macro_f1_harmonic`` is the
    harmonic mean of macro precision and macro recall (Eq. 5.3 of the MLFedAvg thesis).
    ``argmax_accuracy`` counts rows whose highest output is the first of their labels: Keras's
    categorical accuracy, which that thesis prints as subset accuracy.
    """
    positive = truth > 0
    total = {
        name: given.sum(axis=0)[None] for name, given in _given(z > thresholds, positive).items()
    }
    counted = {name: float(value[0]) for name, value in _counted_scores(total).items()}
    means = {name: float(value.mean()) for name, value in _row_scores(z, positive).items()}
    return counted | means | {"ranking_loss": ranking_loss(z, positive)}


def score_changes(z: Array, truth: Array, thresholds: Array | float = 0.0) -> dict[str, FloatArray]:
    """By how much each of :func:`label_scores` changes when a row is left out, row by row."""
    positive = truth > 0
    given = _given(z > thresholds, positive)
    rest = {name: value.sum(axis=0) - value for name, value in given.items()}  # without the row
    now = label_scores(z, truth, thresholds)
    changes = {name: now[name] - value for name, value in _counted_scores(rest).items()}
    each = _row_scores(z, positive)
    each["ranking_loss"] = np.array([ranking_loss(z[[i]], positive[[i]]) for i in range(len(z))])
    others = max(len(z) - 1, 1)
    return changes | {name: (value - value.mean()) / others for name, value in each.items()}


def _given(predicted: BoolArray, positive: BoolArray) -> dict[str, Array]:
    """What every row adds to the counts of labels."""
    given = {
        "true_positive": predicted & positive,
        "false_positive": predicted & ~positive,
        "false_negative": ~predicted & positive,
        "exact": (predicted == positive).all(axis=1),
        "rows": np.ones(len(predicted), dtype=bool),
    }
    return {name: value.astype(np.int64) for name, value in given.items()}


def _counted_scores(counts: dict[str, Array]) -> dict[str, FloatArray]:
    """What follows from counts of labels, whose first axis is kept."""
    metrics = label_metrics(counts)
    precision, recall = metrics["macro_precision"], metrics["macro_recall"]
    metrics["macro_f1_harmonic"] = ratio(2 * precision * recall, precision + recall)
    return {name: metrics[name] for name in SCORES if name in metrics}


def _row_scores(z: Array, positive: BoolArray) -> dict[str, FloatArray]:
    """What is a mean over rows, row by row."""
    losses = np.maximum(z, 0) - z * positive + np.log1p(np.exp(-np.abs(z)))
    right = z.argmax(axis=1) == positive.argmax(axis=1)
    return {"argmax_accuracy": right.astype(float), "loss": losses.mean(axis=1)}


def ranking_loss(z: Array, positive: BoolArray) -> float:
    """The share of pairs (label present, label absent) of a row that are in the wrong order."""
    from sklearn.metrics import label_ranking_loss

    if z.shape[1] < 2:
        return 0.0
    return float(label_ranking_loss(positive, z))


def tune_thresholds(z: Array, y: Array) -> FloatArray:
    """For every label the threshold on z with the best F1; 0 where no row has the label.

    Rows are sorted by z; a threshold lies half-way between two neighbours.
    """
    positive = y > 0
    order = np.argsort(-z, axis=0, kind="stable")
    ranked = np.take_along_axis(z, order, axis=0).astype(np.float64)
    hits = np.cumsum(np.take_along_axis(positive, order, axis=0), axis=0)
    present = positive.sum(axis=0)
    f1 = 2 * hits / (np.arange(1, len(z) + 1)[:, None] + present)
    following = np.vstack([ranked[1:], ranked[-1:] - 1])
    f1[ranked == following] = -1  # equal outputs cannot be separated
    best = f1.argmax(axis=0)
    columns = np.arange(z.shape[1])
    cut = (ranked[best, columns] + following[best, columns]) / 2
    return np.where(present > 0, cut, 0.0)
