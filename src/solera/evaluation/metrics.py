"""The one table of metrics: what each is called, which way is better, and what it needs."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Final, Literal

from solera.core.constraints import nearest
from solera.core.errors import UsageError

Mode = Literal["min", "max"]
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
    in_tables: whether tables that show a few metrics show it.
    logged: whether only learners and callbacks give it, as a number of a round.
    of_positive: whether it depends on which of two classes counts as positive.
    """

    name: str
    label: str
    targets: tuple[Target, ...]
    larger_is_better: bool = True
    unit: str = ""
    headline: bool = False
    needs_scores: bool = False
    in_tables: bool = True
    logged: bool = False
    of_positive: bool = False


_BOTH: Final[tuple[Target, ...]] = ("classes", "labels")
_EVERY: Final[tuple[Target, ...]] = (*_BOTH, "numbers")
_ALL: Final = (
    Metric("accuracy", "accuracy", ("classes",), headline=True),
    Metric("balanced_accuracy", "balanced accuracy", ("classes",)),
    Metric("macro_precision", "macro precision", _BOTH, in_tables=False),
    Metric("macro_recall", "macro recall", _BOTH, in_tables=False),
    Metric("macro_f1", "macro-F1", _BOTH),
    Metric("sensitivity", "sensitivity", _BOTH, in_tables=False, of_positive=True),
    Metric("specificity", "specificity", _BOTH, in_tables=False, of_positive=True),
    Metric("false_positive_rate", "false positive rate", ("classes",), larger_is_better=False,
           in_tables=False, of_positive=True),
    Metric("subset_accuracy", "subset accuracy", ("labels",), headline=True),
    Metric("micro_f1", "micro-F1", ("labels",)),
    Metric("hamming_loss", "Hamming loss", ("labels",), larger_is_better=False),
    Metric("samples_f1", "F1 of a row", ("labels",), in_tables=False),
    Metric("samples_jaccard", "Jaccard index of a row", ("labels",), in_tables=False),
    Metric("mse", "MSE", ("numbers",), larger_is_better=False, unit="target²"),
    Metric("rmse", "RMSE", ("numbers",), larger_is_better=False, unit="target", in_tables=False),
    Metric("mae", "MAE", ("numbers",), larger_is_better=False, unit="target"),
    Metric("r2", "R²", ("numbers",), headline=True),
    Metric("auroc", "AUROC", _BOTH, needs_scores=True, of_positive=True),
    Metric("auprc", "AUPRC", _BOTH, needs_scores=True, of_positive=True),
    Metric("log_loss", "log-loss", _BOTH, larger_is_better=False, needs_scores=True),
    Metric("brier", "Brier score", _BOTH, larger_is_better=False, needs_scores=True),
    Metric("ece", "ECE", _BOTH, larger_is_better=False, needs_scores=True),
    Metric("quantile_loss", "quantile loss", ("numbers",), larger_is_better=False, unit="target",
           needs_scores=True),
    Metric("argmax_accuracy", "argmax accuracy", ("labels",), logged=True),
    Metric("macro_f1_harmonic", "macro-F1 of macro precision and recall", ("labels",), logged=True),
    Metric("ranking_loss", "ranking loss", ("labels",), larger_is_better=False, logged=True),
    Metric("loss", "loss", _EVERY, larger_is_better=False, logged=True),
    Metric("score", "score", _EVERY, logged=True),
)  # fmt: skip
METRICS: Final = {metric.name: metric for metric in _ALL}
EVALUATED: Final = tuple(metric.name for metric in _ALL if not metric.logged)
"""What :func:`solera.learn.evaluation.evaluate` can measure."""
OF_POSITIVE: Final = {metric.name for metric in _ALL if metric.of_positive}


def headline_metric(metrics: Container[str]) -> str | None:
    """Which of some metrics sums up the model."""
    return next((m.name for m in _ALL if m.headline and m.name in metrics), None)


def headline_of(target: str) -> str:
    """The metric that sums up a model of such a target, which ``score`` gives."""
    return next(m.name for m in _ALL if m.headline and target in m.targets)


HELD_OUT: Final = "held_out_"
"""How numbers of a round begin that are of rows which nobody trains on."""
_PREFIX: Final = re.compile(rf"(?:(?:validation|test|train|rows)(?:_\d+)?_)?(?:{HELD_OUT})?")


def find_metric(name: str) -> Metric | None:
    """What is known of a metric, also of ``validation_loss`` and ``quantile_loss_0.9``."""
    name = _PREFIX.sub("", name, count=1)
    return METRICS.get("quantile_loss" if name.startswith("quantile_loss_") else name)


def metric_label(name: str) -> str:
    """``macro_f1`` as ``macro-F1``, ``validation_mse`` as ``validation MSE``."""
    if name in METRICS:
        return METRICS[name].label
    if name.startswith(HELD_OUT):
        return f"{metric_label(name.removeprefix(HELD_OUT))} of held-out rows"
    part, _, rest = name.partition("_")
    return f"{part} {metric_label(rest)}" if rest else part


def sign(metric: str, mode: Mode | None = None, call: str = "") -> int:
    """What a metric is multiplied by so that larger is better.

    The table says it, or ``mode`` of a number that is not in it. ``call`` is the line to write
    where neither does.
    """
    if mode is not None:
        return 1 if mode == "max" else -1
    about = find_metric(metric)
    if about is None:
        raise UsageError(
            f"whether {metric!r} should be large or small is not known",
            hint=f"write {call}" if call else nearest(metric, METRICS),
        )
    return 1 if about.larger_is_better else -1
