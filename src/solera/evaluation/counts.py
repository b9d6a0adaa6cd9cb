"""Metrics of what was counted: confusion matrices, hits and misses of labels, sums of squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np

from solera.core.clients import BoolArray, FloatArray, IntArray
from solera.core.replies import map_leaves
from solera.evaluation.figure import Figure, measured


def countable(counts: dict[str, Any]) -> dict[str, Any]:
    """What adds up of counts of clients, each by itself; ``clients`` is 1 where there are rows."""
    rows = np.asarray(counts["rows"])
    about: dict[str, Any] = {"clients": 1 * (rows > 0)}
    if "exact" in counts:
        about["known"] = rows[:, None] - counts["unknown"]
        about["exact_rows"] = rows
    return {**counts, **about}


LOST = 1e-12
"""What rounding leaves of Σy² where all y are the same."""
ABOUT_ROWS = ("rows", "clients", "asked", "absent")
"""What folded counts say of the rows behind them."""


def figures_of(
    metrics: Mapping[str, float], counts: Mapping[str, Any], **about: Any
) -> dict[str, Figure]:
    """Metrics of folded counts, with the rows these rest on."""
    rows = int(counts["rows"])
    told = {"asked": 1} | {name: int(counts[name]) for name in ABOUT_ROWS[1:5] if name in counts}
    defined = {name: value for name, value in metrics.items() if not isnan(value)}
    return measured(defined, rows=rows, **told | about)


def summed(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The counts of several clients as one."""
    total: dict[str, Any] = map_leaves(lambda *leaves: sum(leaves), *counts)
    return total


def metrics_of(counts: dict[str, Any]) -> dict[str, float]:
    """The metrics of folded counts that these define."""
    found = metrics_of_many(map_leaves(lambda leaf: np.asarray(leaf)[None], counts))
    return {name: float(v[0]) for name, v in found.items() if not np.isnan(v[0])}


def metrics_of_many(counts: dict[str, Any]) -> dict[str, FloatArray]:
    """The metrics of many clients' counts, whose first axis is the client; NaN is not defined."""
    if "confusion" in counts:
        return class_metrics(counts["confusion"])
    return label_metrics(counts) if "exact" in counts else number_metrics(counts)


def class_metrics(confusion: IntArray) -> dict[str, FloatArray]:
    """From confusion matrices, clients × true × predicted classes.

    Macro means are over classes that occur, in truth or as a prediction. Sensitivity and
    specificity are those of the second of two classes, and means over all classes of more.
    """
    rows = confusion.sum(axis=(1, 2))[:, None]
    hits = np.diagonal(confusion, axis1=1, axis2=2)
    true, predicted = confusion.sum(axis=2), confusion.sum(axis=1)
    present, others = true > 0, rows - true
    occurs = present | (predicted > 0)
    recall = ratio(hits, true)
    specificity = ratio(others - predicted + hits, others)
    judged = np.arange(true.shape[1]) > 0 if true.shape[1] == 2 else np.ones(true.shape[1], bool)
    sensitive = _mean_where(recall, present & judged, np.nan)
    specific = _mean_where(specificity, (others > 0) & judged, np.nan)
    return {
        "accuracy": ratio(hits.sum(axis=1), rows[:, 0]),
        "balanced_accuracy": _mean_where(recall, present),
        "macro_precision": _mean_where(ratio(hits, predicted), occurs),
        "macro_recall": _mean_where(recall, occurs),
        "macro_f1": _mean_where(ratio(2 * hits, true + predicted), occurs),
        "sensitivity": sensitive,
        "specificity": specific,
        "false_positive_rate": 1 - specific,
    }


def label_counts(predicted: BoolArray, truth: BoolArray, known: BoolArray) -> dict[str, BoolArray]:
    """What every row adds to the counts of labels; one of which none is known adds nothing."""
    judged = np.any(known, axis=1)
    predicted, truth = predicted & known, truth & known
    return {
        "true_positive": truth & predicted,
        "false_positive": ~truth & predicted,
        "false_negative": truth & ~predicted,
        "unknown": judged[:, None] & ~known,
        "exact": (truth == predicted).all(axis=1) & judged,
        "rows": judged,
    }


def label_metrics(counts: dict[str, Any]) -> dict[str, FloatArray]:
    """From true positives, false positives and false negatives, clients × labels.

    Macro means are over labels that occur, in truth or as a prediction. ``known`` are
    the rows of which each label is known: all but the ``unknown`` ones, where nothing is withheld.
    """
    hits, extra, missed = (
        counts[name] for name in ("true_positive", "false_positive", "false_negative")
    )
    misses = extra + missed
    rows = counts["rows"]
    occurs, present = hits + misses > 0, hits + missed
    known = counts.get("known", rows[:, None] - counts.get("unknown", 0))
    absent = known - present
    recall = ratio(hits, present)
    metrics = {
        "subset_accuracy": _mean(counts["exact"], counts.get("exact_rows", rows)),
        "hamming_loss": ratio(misses.sum(axis=1), (known + 0 * hits).sum(axis=1)),
        "micro_f1": ratio(2 * hits.sum(axis=1), (2 * hits + misses).sum(axis=1)),
        "macro_precision": _mean_where(ratio(hits, hits + extra), occurs),
        "macro_recall": _mean_where(recall, occurs),
        "macro_f1": _mean_where(ratio(2 * hits, 2 * hits + misses), occurs),
        "sensitivity": _mean_where(recall, present > 0, np.nan),
        "specificity": _mean_where(ratio(absent - extra, absent), absent > 0, np.nan),
    }
    for name in ("samples_f1", "samples_jaccard"):
        if name in counts:
            metrics[name] = _mean(counts[name], rows)
    return metrics


def number_metrics(counts: dict[str, Any]) -> dict[str, FloatArray]:
    """From sums of squares, clients × outputs; R² is the mean over outputs.

    Σy² − (Σy)²/n is the same about any pivot of y, and loses no digits about one near its mean.
    R² is not defined where nothing is left of it.
    """
    rows = counts["rows"][:, None]
    spread = counts["y2"] - counts["y"] ** 2 / rows
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = np.where(spread > LOST * counts["y2"], 1 - counts["error2"] / spread, np.nan)
    return {
        "mse": (counts["error2"] / rows).mean(axis=1),
        "rmse": np.sqrt(counts["error2"] / rows).mean(axis=1),
        "mae": (counts["error"] / rows).mean(axis=1),
        "r2": r2.mean(axis=1),
    }


def _mean_where(values: FloatArray, chosen: BoolArray, otherwise: float = 0.0) -> FloatArray:
    """The mean of the chosen values of every line, and ``otherwise`` where none is chosen."""
    means = ratio((values * chosen).sum(axis=1), chosen.sum(axis=1))
    return np.where(chosen.any(axis=1), means, otherwise)


def _mean(total: Any, rows: Any) -> FloatArray:
    return np.where(np.asarray(rows) > 0, ratio(total, rows), np.nan)


def ratio(a: Any, b: Any) -> FloatArray:
    """a / b, and 0 where b is 0."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    quotients: FloatArray = np.divide(a, b, out=np.zeros_like(a), where=b > 0)
    return quotients
