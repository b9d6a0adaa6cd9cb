"""What an evaluation came to: figures of all clients together and of each, and their curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from solera.core.clients import FloatArray, IntArray
from solera.core.errors import DataError
from solera.core.html import html_table
from solera.evaluation.counts import figures_of
from solera.evaluation.figure import Figure
from solera.evaluation.intervals import intervals_of
from solera.evaluation.metrics import OF_POSITIVE
from solera.evaluation.scores import Scores

_MOST_SHOWN = 20  # clients in a notebook's table


class ClientFigures(Mapping[int, dict[str, Figure]]):
    """The figures of every client, made when they are asked for: there may be many clients.

    ``metrics`` and ``counts`` are arrays by name, of these clients.
    """

    def __init__(
        self,
        clients: IntArray,
        metrics: Mapping[str, FloatArray],
        counts: Mapping[str, IntArray],
        part: str,
    ) -> None:
        self._places = {client: place for place, client in enumerate(clients.tolist())}
        self._metrics = metrics
        self._counts = counts
        self._part = part
        self._made: dict[int, dict[str, Figure]] = {}
        self.positive = ""

    def __getitem__(self, client: int) -> dict[str, Figure]:
        if client not in self._made:
            place = self._places[client]
            counts = {name: values[place] for name, values in self._counts.items()}
            metrics = {name: float(values[place]) for name, values in self._metrics.items()}
            self._made[client] = figures_of(metrics, counts, part=self._part)
            name_positive(self._made[client], self.positive)
        return self._made[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def name_positive(figures: Mapping[str, Figure], positive: str) -> None:
    """Let those figures say which class is positive that depend on it."""
    for name in figures.keys() & OF_POSITIVE if positive else ():
        figures[name].positive = figures[name].positive or positive


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a federation, and of each client in ``clients``.

    Every metric is a :class:`~solera.evaluation.figure.Figure`: a float that says whose rows it
    rests on, and how many clients were asked and did not reply. A metric that what was told does
    not give is not there, and ``notes`` say why.

    ``counts`` are the folded counts they come from, ``names`` what clients are called, where they
    have names. Where scores were counted, ``scores`` and ``client_scores`` give the curves. Of two
    classes ``positive`` is the one that sensitivity, curves and the like are of.
    """

    metrics: dict[str, Figure]
    clients: Mapping[int, dict[str, Figure]]
    counts: dict[str, Any]
    names: Mapping[int, str] = field(default_factory=dict)
    scores: Scores | None = None
    client_scores: dict[int, Scores] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    positive: str = ""

    def __post_init__(self) -> None:
        for name, interval in self.intervals().items():
            figure = self.metrics.get(name)
            if figure is not None and figure.between is None and not figure.withheld:
                figure.interval = interval
        name_positive(self.metrics, self.positive)
        if isinstance(self.clients, ClientFigures):
            self.clients.positive = self.positive
            return
        for metrics in self.clients.values():
            name_positive(metrics, self.positive)

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
            by_rows.setdefault(figure.whose, []).append(_named(name, figure))
        shown = [f"{', '.join(metrics)} of {whose}" for whose, metrics in by_rows.items()]
        return f"Evaluation({'; '.join([*shown, *self.notes])})"


def _named(name: str, figure: Figure) -> str:
    return f"{name}={figure:.4g}" if figure.between is None else f"{name} {figure.short}"
