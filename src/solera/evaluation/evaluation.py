"""What an evaluation came to: figures of all clients together and of each, and their curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from solera.core.errors import DataError
from solera.core.html import html_table
from solera.evaluation.figure import Figure
from solera.evaluation.intervals import intervals_of
from solera.evaluation.metrics import OF_POSITIVE
from solera.evaluation.scores import Scores

_MOST_SHOWN = 20  # clients in a notebook's table


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a federation, and of each client in ``clients``.

    Every metric is a :class:`~solera.evaluation.figure.Figure`: a float that says whose rows it
    rests on, how many clients were asked and did not reply, and how many rows owners withheld. A
    metric that what was told does not give is not there, and ``notes`` say why.

    ``counts`` are the folded counts they come from, ``names`` what clients are called, where they
    have names. Where scores were counted, ``scores`` and ``client_scores`` give the curves. Of two
    classes ``positive`` is the one that sensitivity, curves and the like are of.
    """

    metrics: dict[str, Figure]
    clients: dict[int, dict[str, Figure]]
    counts: dict[str, Any]
    names: Mapping[int, str] = field(default_factory=dict)
    scores: Scores | None = None
    client_scores: dict[int, Scores] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    positive: str = ""

    def __post_init__(self) -> None:
        for name, interval in self.intervals().items():
            if name in self.metrics and not self.metrics[name].withheld:
                self.metrics[name].interval = interval
        for metrics in (self.metrics, *self.clients.values()) if self.positive else ():
            for name in metrics.keys() & OF_POSITIVE:
                metrics[name].positive = metrics[name].positive or self.positive

    def __getitem__(self, metric: str) -> Figure:
        if metric not in self.metrics and self.notes:
            hint = f"there are {', '.join(self.metrics)}" if self.metrics else None
            raise DataError(f"there is no {metric}: {'; '.join(self.notes)}", hint=hint)
        return self.metrics[metric]

    @property
    def bounds(self) -> dict[str, float]:
        """How far metrics of the rows themselves can be from those of counted scores."""
        return {} if self.scores is None else self.scores.bounds()

    def intervals(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Confidence intervals of metrics of all rows, from the counts that left.

        See :mod:`solera.evaluation.intervals`; those of scores where these were counted.
        """
        of_scores = {} if self.scores is None else self.scores.intervals(level)
        of_counts = intervals_of(self.counts, level) if self.counts.get("rows") else {}
        return of_counts | of_scores

    def _repr_html_(self) -> str:
        """What notebooks show: the metrics of all, then those of each client by its name."""
        rows = [["all", *(figure.number for figure in self.metrics.values())]]
        rows += [["of", *(figure.whose for figure in self.metrics.values())]]
        rows += [
            [
                self.names.get(client, f"client {client}"),
                *(each[m].marked if m in each else "" for m in self.metrics),
            ]
            for client, each in list(self.clients.items())[:_MOST_SHOWN]
        ]
        more = len(self.clients) - _MOST_SHOWN
        notes = [f"and {more:,} clients more"] if more > 0 else []
        return html_table(rows, ["", *self.metrics], "; ".join([*notes, *self.notes]))

    def __repr__(self) -> str:
        by_rows: dict[str, list[str]] = {}
        for name, figure in self.metrics.items():
            by_rows.setdefault(figure.whose, []).append(f"{name}={figure:.4g}")
        shown = [f"{', '.join(metrics)} of {whose}" for whose, metrics in by_rows.items()]
        return f"Evaluation({'; '.join([*shown, *self.notes])})"
