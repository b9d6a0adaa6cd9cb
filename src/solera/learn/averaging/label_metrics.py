"""Scores for several labels per row, under the names the literature gives them."""

from __future__ import annotations

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray
from solera.evaluation.counts import label_counts, label_metrics, ratio

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

    Labels that are −1 are unknown and left out, and so are rows of which none is known. A label is
    predicted where z exceeds its threshold. ``subset_accuracy``, ``macro_f1`` and the
    like are those of :func:`solera.evaluation.counts.label_metrics`; ``macro_f1_harmonic`` is the
    harmonic mean of macro precision and macro recall (Eq. 5.3 of the MLFedAvg thesis).
    ``argmax_accuracy`` counts rows whose highest output is the first of their labels: Keras's
    categorical accuracy, which that thesis prints as subset accuracy.
    """
    marks = label_counts(z > thresholds, truth > 0, truth >= 0)
    counts = {name: mark.sum(axis=0)[None] for name, mark in marks.items()}
    metrics = label_metrics(counts)
    precision, recall = metrics["macro_precision"], metrics["macro_recall"]
    metrics["macro_f1_harmonic"] = ratio(2 * precision * recall, precision + recall)
    counted = {name: float(metrics[name][0]) for name in SCORES if name in metrics}
    rows = max(int(counts["rows"][0]), 1)
    means = {name: float(value.sum() / rows) for name, value in _row_scores(z, truth).items()}
    return counted | means


def _row_scores(z: Array, truth: Array) -> dict[str, FloatArray]:
    """What is a mean over rows, row by row; 0 where nothing is known.

    ``ranking_loss`` is the share of pairs (label present, label absent) in the wrong order.
    """
    known, positive, absent = truth >= 0, truth > 0, truth == 0
    labels = known.sum(axis=1)
    losses = (np.maximum(z, 0) - z * positive + np.log1p(np.exp(-np.abs(z)))) * known
    highest = np.where(known, z, -np.inf).argmax(axis=1)
    right = (highest == np.where(known, positive, -1).argmax(axis=1)) & (labels > 0)
    above = [((z[:, [j]] <= z) & absent).sum(axis=1) for j in range(z.shape[1])]
    wrong = np.transpose(above) * positive
    pairs = positive.sum(axis=1) * absent.sum(axis=1)
    return {
        "argmax_accuracy": right.astype(float),
        "loss": ratio(losses.sum(axis=1), labels),
        "ranking_loss": ratio(wrong.sum(axis=1), pairs),
    }


def tune_thresholds(z: Array, y: Array) -> FloatArray:
    """For every label the threshold on z with the best F1; 0 where no row is known to have it."""
    cuts = [_threshold(z[known, j], y[known, j] > 0) for j, known in enumerate((y >= 0).T)]
    return np.array(cuts)


def _threshold(z: Array, positive: BoolArray) -> float:
    """Half-way between two neighbours, of the rows sorted by z."""
    if not positive.any():
        return 0.0
    order = np.argsort(-z, kind="stable")
    ranked = z[order].astype(np.float64)
    hits = np.cumsum(positive[order])
    f1 = 2 * hits / (np.arange(1, len(z) + 1) + positive.sum())
    following = np.append(ranked[1:], ranked[-1] - 1)
    f1[ranked == following] = -1  # equal outputs cannot be separated
    best = f1.argmax()
    return float((ranked[best] + following[best]) / 2)
