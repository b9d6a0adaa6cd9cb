"""The one table of metrics: what each is called, which way is better, and what it needs."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final, Literal

Target = Literal["classes", "labels", "numbers"]


@dataclass(frozen=True)
class Metric:
    """What is known of a metric before anything is measured.

    Parameters
    ----------
    name: what code, files and tables call it.
    label: what a person reads.
    targets: what a model must predict to be measured by it.
    larger_is_better: which direction is good.
    unit: "" for a share or a ratio, "target" and "target²" where it has the target's unit.
    headline: whether it sums a model up, as ``score`` does.
    needs_scores: whether it follows from probabilities, which clients count only when asked to.
    """

    name: str
    label: str
    targets: tuple[Target, ...]
    larger_is_better: bool = True
    unit: str = ""
    headline: bool = False
    needs_scores: bool = False


_BOTH: Final[tuple[Target, ...]] = ("classes", "labels")
_ALL: Final = (
    Metric("accuracy", "accuracy", ("classes",), headline=True),
    Metric("balanced_accuracy", "balanced accuracy", ("classes",)),
    Metric("macro_precision", "macro precision", _BOTH),
    Metric("macro_recall", "macro recall", _BOTH),
    Metric("macro_f1", "macro-F1", _BOTH),
    Metric("subset_accuracy", "subset accuracy", ("labels",), headline=True),
    Metric("micro_f1", "micro-F1", ("labels",)),
    Metric("hamming_loss", "Hamming loss", ("labels",), larger_is_better=False),
    Metric("mse", "MSE", ("numbers",), larger_is_better=False, unit="target²"),
    Metric("mae", "MAE", ("numbers",), larger_is_better=False, unit="target"),
    Metric("r2", "R²", ("numbers",), headline=True),
    Metric("auroc", "AUROC", _BOTH, needs_scores=True),
    Metric("auprc", "AUPRC", _BOTH, needs_scores=True),
    Metric("sensitivity", "sensitivity", _BOTH, needs_scores=True),
    Metric("specificity", "specificity", _BOTH, needs_scores=True),
    Metric("log_loss", "log-loss", _BOTH, larger_is_better=False, needs_scores=True),
    Metric("brier", "Brier score", _BOTH, larger_is_better=False, needs_scores=True),
    Metric("ece", "ECE", _BOTH, larger_is_better=False, needs_scores=True),
    Metric("loss", "loss", ("classes", "labels", "numbers"), larger_is_better=False),
)
METRICS: Final = {metric.name: metric for metric in _ALL}


def headline_metric(metrics: Container[str]) -> str | None:
    """Which of some metrics sums up the model."""
    return next((m.name for m in _ALL if m.headline and m.name in metrics), None)


def headline_of(target: str) -> str:
    """The metric that sums up a model of such a target, which ``score`` gives."""
    return next(m.name for m in _ALL if m.headline and target in m.targets)


def sign(metric: str) -> int:
    """What a metric is multiplied by so that larger is better."""
    known = METRICS.get(metric)
    return 1 if known is None or known.larger_is_better else -1
