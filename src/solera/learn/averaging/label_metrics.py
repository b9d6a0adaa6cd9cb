"""Scores for several labels per row, under the names the literature gives them."""

from __future__ import annotations

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray
from solera.evaluation.counts import ratio

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

    A label is predicted where z exceeds its threshold. ``subset_accuracy`` counts rows with every
    label right. ``macro_f1`` is the mean of the labels' F1, 0 where it is undefined;
    ``macro_f1_harmonic`` the harmonic mean of macro precision and macro recall (Eq. 5.3 of the
    MLFedAvg thesis). ``argmax_accuracy`` counts rows whose highest output is the first of their
    labels: Keras's categorical accuracy, which that thesis prints as subset accuracy.
    """
    positive = truth > 0
    predicted = z > thresholds
    hits = (predicted & positive).sum(axis=0)
    guessed, present = predicted.sum(axis=0), positive.sum(axis=0)
    precision, recall = ratio(hits, guessed).mean(), ratio(hits, present).mean()
    wrong = predicted != positive
    return {
        "subset_accuracy": float((~wrong).all(axis=1).mean()),
        "macro_f1": float(ratio(2 * hits, guessed + present).mean()),
        "macro_f1_harmonic": float(ratio(2 * precision * recall, precision + recall)),
        "micro_f1": float(ratio(2 * hits.sum(), guessed.sum() + present.sum())),
        "hamming_loss": float(wrong.mean()),
        "ranking_loss": ranking_loss(z, positive),
        "argmax_accuracy": float((z.argmax(axis=1) == positive.argmax(axis=1)).mean()),
        "loss": float((np.maximum(z, 0) - z * positive + np.log1p(np.exp(-np.abs(z)))).mean()),
    }


def score_changes(z: Array, truth: Array, thresholds: Array | float = 0.0) -> dict[str, FloatArray]:
    """By how much each of :func:`label_scores` changes when a row is left out, row by row."""
    positive = truth > 0
    predicted = z > thresholds
    hit, wrong = predicted & positive, predicted != positive
    rest = [x.sum(axis=0) - x for x in (hit, predicted, positive)]  # without the row
    hits, guessed, present = (x.astype(float) for x in rest)
    precision, recall = ratio(hits, guessed).mean(axis=1), ratio(hits, present).mean(axis=1)
    both = (guessed + present).sum(axis=1)
    left = {
        "macro_f1": ratio(2 * hits, guessed + present).mean(axis=1),
        "macro_f1_harmonic": ratio(2 * precision * recall, precision + recall),
        "micro_f1": ratio(2 * hits.sum(axis=1), both),
    }
    losses = np.maximum(z, 0) - z * positive + np.log1p(np.exp(-np.abs(z)))
    each = {
        "subset_accuracy": (~wrong).all(axis=1),
        "hamming_loss": wrong.mean(axis=1),
        "ranking_loss": np.array([ranking_loss(z[[i]], positive[[i]]) for i in range(len(z))]),
        "argmax_accuracy": z.argmax(axis=1) == positive.argmax(axis=1),
        "loss": losses.mean(axis=1),
    }
    now = label_scores(z, truth, thresholds)
    changes = {name: now[name] - value for name, value in left.items()}
    others = max(len(z) - 1, 1)
    return changes | {name: (value - value.mean()) / others for name, value in each.items()}


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
