"""How good a job's model is at its clients, from the counts that they told when they judged it.

Read from the answers to ``learner.evaluate`` and ``learner.score_counts``, as long as these are
kept. A number below five is not shown, and neither is
a client of which fewer than five rows, or five of a class, were counted. Of sums that were folded
in secret no answer can be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from solera.core.clients import IntArray
from solera.core.component import build_fitted
from solera.core.payload import is_finite
from solera.core.replies import Reply, map_leaves
from solera.data.agreement import SMALLEST_COUNT
from solera.evaluation.counts import metrics_of_many
from solera.evaluation.curves import GRID, Curves, curves_of
from solera.learn.evaluation import CountTotals
from solera.learn.scores import ScoreGrid, ScoreTotals, scores_of
from solera.learn.totals import Totals
from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.web.data import STRANGE, hidden, read_answer
from solera.serve.wire import Job

_MOST_CLASSES = 30
_MOST_LINES = 24
"""Clients whose curves are drawn, those with the most rows."""
_LONGEST_NAME = 40
_MODEL_BYTES = 1 << 24
_LEFT, _TOP, _SIDE = 40, 10, 240
"""Where the square of a panel is, in its 300 × 290 picture."""


class Panel(NamedTuple):
    """One picture: lines as the points of polylines."""

    title: str
    x: str
    y: str
    line: str
    clients: list[str]
    band: str
    diagonal: bool


def judged(coordinator: Coordinator, job: Job, names: Mapping[int, str]) -> dict[str, Any]:
    """The confusion of classes, the spread over clients, and the curves of scores."""
    shown: dict[str, Any] = {
        "confusion": [], "classes": [], "spread": {}, "each": [], "panels": [],
    }  # fmt: skip
    ask, counts = _answers(coordinator, job, "learner.evaluate", CountTotals())
    if counts:
        with suppress(*STRANGE):
            shown |= _counted(counts, names)
            shown["classes"] = _classes(coordinator, ask, len(shown["confusion"]))
    ask, scores = _answers(coordinator, job, "learner.score_counts", ScoreTotals())
    if scores:
        with suppress(*STRANGE):
            shown["panels"] = _panels(read_answer(coordinator, ask, _MODEL_BYTES), scores)
    return shown


def _answers(
    coordinator: Coordinator, job: Job, task: str, totals: Totals
) -> tuple[str | None, dict[int, Any]]:
    """What clients answered last to a task of this job, settled, and what was asked.

    Answers that are no numbers, or of another shape than most, are left out.
    """
    replies = coordinator.store.kept_replies(job.federation, task, job.id)
    settled = {}
    for reply in replies:
        with suppress(*STRANGE):
            answer = read_answer(coordinator, reply.digest)
            counts = totals.lift(Reply(reply.client, answer))
            if is_finite(counts):
                settled[reply.client] = counts
    shapes = {client: repr(map_leaves(np.shape, counts)) for client, counts in settled.items()}
    usual = Counter(shapes.values()).most_common(1)
    kept = {c: counts for c, counts in settled.items() if shapes[c] == usual[0][0]}
    return replies[0].payload if replies else None, kept


def _stacked(answers: Mapping[int, Any]) -> Any:
    """The same entry of all clients as one array, clients first."""
    return map_leaves(lambda *leaves: np.stack(leaves), *answers.values())


# --- counts ---


def _counted(answers: Mapping[int, dict[str, Any]], names: Mapping[int, str]) -> dict[str, Any]:
    counts = _stacked(answers)
    metrics = metrics_of_many(counts)
    many = counts["rows"] >= SMALLEST_COUNT
    if not all(len(values) == len(many) for values in metrics.values()):
        raise ValueError("not the counts of one model")
    shown = {name: values[many] for name, values in metrics.items()}
    who = [names.get(c, f"client {c}") for c, large in zip(answers, many, strict=True) if large]
    each = sorted(zip(who, zip(*(v.tolist() for v in shown.values()), strict=True), strict=True))
    found: dict[str, Any] = {}
    if len(who) > 1:
        found["spread"] = {
            name: (float(values.min()), float(np.median(values)), float(values.max()))
            for name, values in shown.items()
        }
        found["each"] = each
    if "confusion" in counts:
        total = counts["confusion"].sum(axis=0)
        if total.shape[0] <= _MOST_CLASSES:
            found["confusion"] = [_confusion_line(line) for line in total]
    return found


def _confusion_line(counts: IntArray) -> list[tuple[str, int]]:
    """The cells of a true class: their text, and how dark they are from 0 to 9."""
    total = max(int(counts.sum()), 1)
    return [(hidden(n), round(9 * int(n) / total)) for n in counts.tolist()]


def _classes(coordinator: Coordinator, ask: str | None, count: int) -> list[str]:
    """What the classes are called, as the model says that was judged."""
    names = [f"class {i}" for i in range(count)]
    with suppress(*STRANGE):
        model = build_fitted(read_answer(coordinator, ask, _MODEL_BYTES)["model"])
        known = [str(c)[:_LONGEST_NAME] for c in model.schema_.classes.tolist()]
        names = known if len(known) == count else names
    return names


# --- curves ---


def _panels(ask: Any, answers: Mapping[int, dict[str, Any]]) -> list[Panel]:
    """ROC, precision–recall and calibration of all rows, with a line and a band of clients."""
    grid = ScoreGrid(ask["bins"], ask["threshold"], tuple(np.asarray(ask["quantiles"]).tolist()))
    model = build_fitted(ask["model"])
    counts = _stacked(answers)
    total = scores_of(model, map_leaves(lambda leaf: leaf.sum(axis=0), counts), grid)
    if total.counts.shape[-1] != len(grid.edges) + 1:
        raise ValueError("not counts by this grid")
    all_ = curves_of(total)
    if all_ is None:
        return []
    scores = [scores_of(model, answer, grid) for answer in answers.values()]
    large = [one for one in scores if one.counts.sum(axis=2).min() >= SMALLEST_COUNT]
    large = sorted(large, key=lambda one: -one.rows)[:_MOST_LINES]
    each = [curves for one in large if (curves := curves_of(one)) is not None]
    positive = model.schema_.positive
    of_class = f" of class {positive[:_LONGEST_NAME]}" if positive else ""
    return [
        _panel(f"ROC{of_class}", "false positive rate", "true positive rate", all_, each, "roc"),
        _panel(f"Precision and recall{of_class}", "recall", "precision", all_, each, "precision"),
        Panel(
            "Calibration", "mean score", "share of positives", _calibration(all_),
            [_calibration(c) for c in each] if len(each) > 1 else [], "", True,
        ),
    ]  # fmt: skip


def _panel(title: str, x: str, y: str, all_: Curves, each: Sequence[Curves], of: str) -> Panel:
    heights = np.array([getattr(curves, of) for curves in each])
    lines: list[str] = []
    band = ""
    if len(each) > 1:
        lines = [_points(GRID, line) for line in heights]
        there = np.concatenate([GRID, GRID[::-1]])
        band = _points(there, np.concatenate([heights.min(axis=0), heights.max(axis=0)[::-1]]))
    return Panel(title, x, y, _points(GRID, getattr(all_, of)), lines, band, of == "roc")


def _calibration(curves: Curves) -> str:
    known = [(x, y) for x, y in zip(curves.score, curves.share, strict=True) if x is not None]
    return _points([x for x, _ in known], [y for _, y in known])


def _points(x: Any, y: Any) -> str:
    across = _LEFT + _SIDE * np.asarray(x, dtype=float)
    down = _TOP + _SIDE * (1 - np.asarray(y, dtype=float))
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
