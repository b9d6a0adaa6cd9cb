"""Pictures of runs with selectors, as matplotlib figures. A run is a learner's ``history_``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solera.core.errors import DataError
from solera.core.pictures import new_figure
from solera.select.metrics import History, curve

Runs = Mapping[str, Sequence[History]]
"""For every name, such as a selector's, the histories of its seeds."""


def plot_learning(runs: Runs, metric: str = "score", *, over: str = "round") -> Any:
    """Mean over seeds with a band from the lowest to the highest, over rounds or ``"time"``."""
    figure, ax = _axes("round" if over == "round" else "virtual minutes", metric)
    for i, (name, histories) in enumerate(_checked(runs, over).items()):
        ends = [h[-1]["time"] / 60 if over == "time" else len(h) for h in histories]
        x = np.linspace(0, min(ends), 200) if over == "time" else np.arange(1, min(ends) + 1)
        lines = [_line(history, metric, over, x) for history in histories]
        colour = f"C{i % 10}"
        ax.fill_between(x, np.min(lines, axis=0), np.max(lines, axis=0), color=colour, alpha=0.2)
        ax.plot(x, np.mean(lines, axis=0), color=colour, label=f"{name} ({len(lines)})")
    ax.legend()
    return figure


def plot_selections(counts: Mapping[str, ArrayLike]) -> Any:
    """How often clients were chosen: a histogram for every name, with a smooth density."""
    figure, ax = _axes("rounds in which a client was chosen", "share of clients")
    for i, (name, values) in enumerate(counts.items()):
        values = np.asarray(values, dtype=float)
        if not values.size:
            raise DataError(f"no selections are known of {name!r}")
        edges = np.arange(-0.5, values.max() + 1.5)
        if len(edges) > 41:
            edges = np.linspace(-0.5, values.max() + 0.5, 41)
        ax.hist(values, edges, density=True, color=f"C{i % 10}", alpha=0.35, label=name)
        if np.ptp(values) > 0:
            x = np.linspace(0, values.max(), 200)
            ax.plot(x, _density(values, x), color=f"C{i % 10}")
    ax.legend()
    return figure


def plot_clients(runs: Runs) -> Any:
    """How many clients take part in every round, the mean over seeds."""
    return _per_round(runs, "clients", "clients")


def plot_times(runs: Runs) -> Any:
    """How long every round takes in virtual seconds, the mean over seeds."""
    return _per_round(runs, "seconds", "virtual seconds")


def _per_round(runs: Runs, metric: str, words: str) -> Any:
    figure, ax = _axes("round", words)
    for name, histories in _checked(runs, metric).items():
        length = min(map(len, histories))
        values = np.mean([curve(history, metric)[:length] for history in histories], axis=0)
        ax.plot(np.arange(1, length + 1), values, ".-", label=name)
    ax.legend()
    return figure


def _line(history: History, metric: str, over: str, x: Any) -> Any:
    y = curve(history, metric)
    known = np.isfinite(y)
    if not known.any():
        raise DataError(
            f"no round has {metric!r}", hint="evaluate it, for example so.callbacks.Evaluate()"
        )
    at = curve(history, "time") / 60 if over == "time" else np.arange(1, len(y) + 1)
    return np.interp(x, at[known], y[known])


def _density(values: Any, x: Any) -> Any:
    """A Gaussian kernel density with Silverman's bandwidth."""
    width = max(1.06 * values.std() * len(values) ** -0.2, 0.3)
    levels, weights = np.unique(values, return_counts=True)
    kernels = np.exp(-0.5 * ((x[:, None] - levels) / width) ** 2)
    return kernels @ weights / (len(values) * width * np.sqrt(2 * np.pi))


def _checked(runs: Runs, metric: str) -> Runs:
    for name, histories in runs.items():
        if not len(histories) or not all(len(history) for history in histories):
            raise DataError(f"{name!r} has no rounds to show")
        if not all(np.isfinite(curve(history, metric)).any() for history in histories):
            raise DataError(
                f"the rounds of {name!r} have no {metric!r}",
                hint="so.simulate(…, clock=so.simulation.VirtualClock()) makes rounds take time",
            )
    return runs


def _axes(x: str, y: str) -> tuple[Any, Any]:
    figure = new_figure(figsize=(7, 4))
    ax = figure.add_subplot()
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    return figure, ax
