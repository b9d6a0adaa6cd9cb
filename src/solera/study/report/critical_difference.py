"""The critical-difference diagram of Demšar (2006, figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solera.core.errors import UsageError
from solera.core.pictures import new_figure
from solera.study.report.figures import BLUE

_MOST_LETTERS = 36


def cliques(ranks: ArrayLike, cd: float) -> list[tuple[int, int]]:
    """Groups of methods that do not differ: first and last place in the order of mean ranks.

    A group is as large as it can be: its best and worst differ by less than ``cd``, and it is part
    of no other group. Methods that differ from all others are in none.
    """
    ordered = np.sort(np.asarray(ranks, dtype=float))
    last = np.searchsorted(ordered, ordered + cd, side="left") - 1
    groups: list[tuple[int, int]] = []
    for first, end in enumerate(last.tolist()):
        if end > first and not (groups and groups[-1][1] >= end):
            groups.append((first, end))
    return groups


def critical_difference(names: Sequence[object], ranks: ArrayLike, cd: float) -> Any:
    """Methods along the axis of mean ranks, best to the left; bars join those that do not differ.

    A matplotlib figure.
    """
    mean = np.asarray(ranks, dtype=float)
    k = len(mean)
    if len(names) != k or k < 2:
        raise UsageError(f"critical_difference: {len(names)} names for {k} mean ranks")
    if not (np.isfinite(mean).all() and cd > 0):
        raise UsageError.of("critical_difference", "cd", cd, "must be > 0, and ranks finite")
    order = np.argsort(mean, kind="stable").tolist()
    bars = cliques(mean, cd)
    left = (k + 1) // 2
    low = float(np.floor(mean.min()))
    high = max(float(np.ceil(mean.max())), low + 1)
    first_label = 1 + len(bars) / 2
    height = first_label + left
    figure = new_figure(figsize=(8, 1 + 0.3 * height))
    ax = figure.add_subplot(xlim=(low, high), ylim=(height, -3), yticks=[])
    ax.set_xticks(np.arange(low, high + 1))
    ax.xaxis.tick_top()
    ax.spines[["left", "right", "bottom"]].set_visible(False)
    ax.spines["top"].set_position(("data", 0))
    for place, method in enumerate(order):
        on_left = place < left
        y = first_label + (place if on_left else k - 1 - place)
        end = low if on_left else high
        ax.plot([mean[method], mean[method], end], [0, y, y], color="black", linewidth=1)
        name = str(names[method])
        short = name if len(name) <= _MOST_LETTERS else name[: _MOST_LETTERS - 1] + "…"
        ax.annotate(
            f"{short} ({mean[method]:.2f})",
            (end, y),
            xytext=(-5 if on_left else 5, 0),
            textcoords="offset points",
            ha="right" if on_left else "left",
            va="center",
            parse_math=False,
        )
    for i, (best, worst) in enumerate(bars):
        y = 0.5 + i / 2
        ends = [mean[order[best]], mean[order[worst]]]
        ax.plot(ends, [y, y], color=BLUE, linewidth=5, solid_capstyle="round")
    middle = (low + min(low + cd, high)) / 2
    ax.plot([low, 2 * middle - low], [-2, -2], color="black", linewidth=2)
    ax.annotate(f"CD = {cd:.3f}", (middle, -2.2), ha="center", va="bottom")
    return figure
