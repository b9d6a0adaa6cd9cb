"""Pictures of what a learner logged, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from solera.core.constraints import nearest
from solera.core.errors import UsageError
from solera.core.pictures import new_figure
from solera.core.rounds import logged


def plot_history(history: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> Any:
    """A matplotlib figure with a curve of every number that was logged, or of those named."""
    known = list(dict.fromkeys(name for entry in history for name in logged(entry)))
    if not known:
        raise UsageError("there is no history to show", hint="learners without rounds log nothing")
    for name in names:
        if name not in known:
            raise UsageError(f"{name!r} was not logged", hint=nearest(name, known))
    shown = list(names) or known
    figure = new_figure(figsize=(7, 0.6 + 2.2 * len(shown)))
    for axes, name in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
        points = [(e["round"] + 1, e[name]) for e in history if name in e]
        rounds, values = zip(*points, strict=True)
        axes.plot(rounds, values, marker="o" if len(rounds) < 30 else None, markersize=3)
        axes.set_ylabel(name.replace("_", " "))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    axes.set_xlabel("round")
    return figure
