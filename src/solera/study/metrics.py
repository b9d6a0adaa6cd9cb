"""The metrics that studies know, which of them sum a model up, and which way is better."""

from __future__ import annotations

from collections.abc import Container

SCORE_METRICS = (
    "auroc", "auprc", "sensitivity", "specificity", "log_loss", "brier", "ece",
)  # fmt: skip
"""What follows from probabilities; see :mod:`solera.learn.score_metrics`."""
METRICS = (
    "accuracy", "balanced_accuracy", "macro_precision", "macro_recall", "macro_f1",
    "subset_accuracy", "micro_f1", "hamming_loss", "mse", "mae", "r2",
    *SCORE_METRICS,
)  # fmt: skip
"""What a study file may name; see :mod:`solera.learn.evaluation`."""
SCORES = ("accuracy", "subset_accuracy", "r2")
"""The metric that sums up a model, for classes, labels and numbers."""
LOWER_IS_BETTER = ("hamming_loss", "mse", "mae", "loss", "log_loss", "brier", "ece")


def score_name(metrics: Container[str]) -> str | None:
    """Which of some metrics sums up the model."""
    return next((name for name in SCORES if name in metrics), None)


def sign(metric: str) -> int:
    """What a metric is multiplied by so that larger is better."""
    return -1 if metric in LOWER_IS_BETTER else 1
