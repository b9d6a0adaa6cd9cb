"""How good a selection was: when a score was reached, at what cost, and how fairly.

All functions read a learner's ``history_``, or what :class:`Selections` recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solera.core.clients import FloatArray, IntArray
from solera.core.errors import DataError, UsageError
from solera.core.rounds import Callback, Round
from solera.evaluation.metrics import HELD_OUT, sign

History = Sequence[Mapping[str, Any]]
HELD_OUT_LOSS = HELD_OUT + "loss"


class Selections(Callback):
    """Records who was chosen and who took part in every round.

    ``chosen_`` and ``took_part_`` count the rounds of every client.
    """

    chosen_: IntArray = np.zeros(0, dtype=np.int64)
    took_part_: IntArray = np.zeros(0, dtype=np.int64)

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        if not start:
            self.reset()

    def on_round(self, learner: Any, round: Round) -> None:
        clients = len(round.federation)
        if not len(self.chosen_):
            self.chosen_ = self.took_part_ = np.zeros(clients, dtype=np.int64)
        failed = [failure.client for failure in round.failures]
        took_part = np.setdiff1d(round.clients, failed)
        self.chosen_ = self.chosen_ + np.bincount(round.chosen, minlength=clients)
        self.took_part_ = self.took_part_ + np.bincount(took_part, minlength=clients)


def curve(history: History, metric: str) -> FloatArray:
    """The metric of every round; NaN where a round has none."""
    return np.array([entry.get(metric, np.nan) for entry in history], dtype=float)


def rounds_to(history: History, target: float, metric: str = "score") -> int | None:
    """RoA@x: after how many rounds the metric first reached the target, or None.

    Whether it rises or falls to it is in the table of metrics.
    """
    direction = sign(metric)
    reached = np.flatnonzero(direction * curve(history, metric) >= direction * target)
    return int(reached[0]) + 1 if len(reached) else None


def time_to(history: History, target: float, metric: str = "score") -> float | None:
    """ToA@x: the cumulative virtual time of that round in seconds, or None."""
    rounds = rounds_to(history, target, metric)
    if rounds is None:
        return None
    if "time" not in history[rounds - 1]:
        raise UsageError(
            "the history has no time", hint="use so.simulate(clock=so.simulation.VirtualClock())"
        )
    return float(history[rounds - 1]["time"])


def area_under(history: History, metric: str = HELD_OUT_LOSS, *, over: str = "round") -> float:
    """Area under the curve of a metric over rounds, or over ``"time"``, by trapezoids.

    It is divided by the width, so that runs of different lengths compare: a mean height. The loss
    of held-out rows is that of the global model, which ``so.callbacks.Evaluate(X, y)`` logs;
    ``"loss"`` is of the training rows of those who were chosen, and falls when easy ones are.
    """
    y, x = curve(history, metric), curve(history, over)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if not len(x):
        raise DataError(
            f"no round has both {metric!r} and {over!r}",
            hint="fit(…, callbacks=[so.callbacks.Evaluate(X, y)]) logs the loss of held-out rows",
        )
    if len(x) == 1 or x[-1] == x[0]:
        return float(y.mean())
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum() / (x[-1] - x[0]))


def updates(history: History) -> int:
    """How many updates clients were asked for."""
    return int(sum(entry["clients"] for entry in history))


def traffic(history: History) -> int:
    """Bytes of all messages, reports to the selector included."""
    return int(sum(entry["bytes_down"] + entry["bytes_up"] for entry in history))


def coverage(counts: ArrayLike) -> float:
    """The share of clients that were used at least once."""
    counts = _counts(counts)
    return float((counts > 0).mean())


def gini(counts: ArrayLike) -> float:
    """How unevenly clients take part: 0 when all do equally often, towards 1 when one does all.

    G = Σ_i (2i − K − 1)·n_(i) / (K·Σ n), with counts n_(1) ≤ … ≤ n_(K).
    """
    counts = np.sort(_counts(counts))
    total = counts.sum()
    if not total:
        return 0.0
    ranks = 2 * np.arange(1, len(counts) + 1) - len(counts) - 1
    return float((ranks * counts).sum() / (len(counts) * total))


def gini_by_group(counts: ArrayLike, groups: Sequence[Any]) -> dict[Any, dict[str, float]]:
    """Share of all selections, coverage and Gini index inside every group of clients."""
    counts, names = _counts(counts), np.asarray(groups)
    if len(names) != len(counts):
        raise DataError(f"{len(names)} groups are named for {len(counts)} clients")
    total = max(counts.sum(), 1)
    members = {name: counts[names == name] for name in np.unique(names).tolist()}
    return {
        name: {"share": float(own.sum() / total), "coverage": coverage(own), "gini": gini(own)}
        for name, own in members.items()
    }


def _counts(counts: ArrayLike) -> FloatArray:
    numbers = np.asarray(counts, dtype=float)
    if not numbers.size or (numbers < 0).any() or not np.isfinite(numbers).all():
        raise DataError("counts of selections must be at least one number, none negative")
    return numbers


def summarise(
    history: History, selections: Selections | None = None, *, targets: Sequence[float] = ()
) -> dict[str, Any]:
    """All of the above for one run; RoA and ToA for every target, where reached.

    The area is that of the loss of held-out rows, where there is one.
    """
    summary: dict[str, Any] = {"rounds": len(history), "updates": updates(history)}
    for target in targets:
        summary[f"RoA@{target:g}"] = rounds_to(history, target)
        if history and "time" in history[-1]:
            summary[f"ToA@{target:g}"] = time_to(history, target)
    if np.isfinite(curve(history, HELD_OUT_LOSS)).any():
        summary["area"] = area_under(history)
    if history and "time" in history[-1]:
        summary["time"] = float(history[-1]["time"])
    summary["bytes"] = traffic(history)
    if selections is not None:
        summary["coverage"] = coverage(selections.took_part_)
        summary["gini"] = gini(selections.took_part_)
    return summary
