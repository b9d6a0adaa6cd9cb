"""Metrics of what was counted: confusion matrices, hits and misses of labels, sums of squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.clients import BoolArray, FloatArray, IntArray
from solera.core.replies import map_leaves


def summed(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The counts of several clients as one."""
    total: dict[str, Any] = map_leaves(lambda *leaves: sum(leaves), *counts)
    return total


def rows_counted(counts: dict[str, Any]) -> Any:
    """Rows behind folded counts, or behind those of each client."""
    return counts["confusion"].sum(axis=(-2, -1)) if "confusion" in counts else counts["rows"]


def rows_untold(counts: dict[str, Any]) -> int:
    """Rows that clients have and whose counts they withheld or replaced; clients come first.

    Of folded counts this is the least there can be.
    """
    rows = np.asarray(counts["rows"])
    if "confusion" in counts:
        return int(np.abs(rows - rows_counted(counts)).sum())
    return int(rows[~_tell(counts)].sum())


def told(counts: dict[str, Any]) -> dict[str, Any]:
    """The counts of many clients folded; sums of numbers with the rows of those that tell them.

    Where nobody does, with all rows.
    """
    total: dict[str, Any] = map_leaves(lambda leaf: leaf.sum(axis=0), counts)
    if "error2" not in counts or not _tell(counts).any():
        return total
    return {**total, "rows": np.asarray(counts["rows"])[_tell(counts)].sum()}


def _tell(counts: dict[str, Any]) -> BoolArray:
    """Which clients tell any of their sums."""
    rows = np.asarray(counts["rows"])
    sums = [np.asarray(leaf).reshape(len(rows), -1) for n, leaf in counts.items() if n != "rows"]
    return np.asarray(np.concatenate(sums, axis=1).any(axis=1))


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


def label_metrics(counts: dict[str, Any]) -> dict[str, FloatArray]:
    """From true positives, false positives and false negatives, clients × labels.

    Macro means are over labels that occur, in truth or as a prediction.
    """
    hits, extra, missed = (
        counts[name] for name in ("true_positive", "false_positive", "false_negative")
    )
    misses = extra + missed
    rows = counts["rows"]
    occurs, present = hits + misses > 0, hits + missed
    absent = rows[:, None] - present
    recall = ratio(hits, present)
    metrics = {
        "subset_accuracy": ratio(counts["exact"], rows),
        "hamming_loss": ratio(misses.sum(axis=1), rows * hits.shape[1]),
        "micro_f1": ratio(2 * hits.sum(axis=1), (2 * hits + misses).sum(axis=1)),
        "macro_precision": _mean_where(ratio(hits, hits + extra), occurs),
        "macro_recall": _mean_where(recall, occurs),
        "macro_f1": _mean_where(ratio(2 * hits, 2 * hits + misses), occurs),
        "sensitivity": _mean_where(recall, present > 0, np.nan),
        "specificity": _mean_where(ratio(absent - extra, absent), absent > 0, np.nan),
    }
    sums = {name: counts[name] for name in ("samples_f1", "samples_jaccard") if name in counts}
    told = counts.get("samples_rows", rows)
    return metrics | {name: ratio(total, told) for name, total in sums.items()}


def number_metrics(counts: dict[str, Any]) -> dict[str, FloatArray]:
    """From sums of squares, clients × outputs; R² is the mean over outputs.

    Σy² − (Σy)²/n is the same about any pivot of y, and loses no digits about one near its mean.
    """
    rows = counts["rows"][:, None]
    spread = counts["y2"] - counts["y"] ** 2 / rows
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = np.where(spread > 0, 1 - counts["error2"] / spread, 0.0)
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


def ratio(a: Any, b: Any) -> FloatArray:
    """a / b, and 0 where b is 0."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    quotients: FloatArray = np.divide(a, b, out=np.zeros_like(a), where=b > 0)
    return quotients
