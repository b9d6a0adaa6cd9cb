"""What one training came to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from solera.evaluation.curves import Curves
from solera.evaluation.figure import read_figure, restored
from solera.evaluation.metrics import find_metric, headline_metric
from solera.green.energy import EnergyUse
from solera.study.rows import Answers

K = TypeVar("K")
_METRICS = ("metrics", "client_metrics", "others", "validation", "baseline", "common")


@dataclass(frozen=True)
class Result:
    """What one cell came to.

    ``metrics`` are those of the data set's test rows, ``client_metrics`` those of all rows that
    clients keep to test on, ``clients`` the score of each client on its own of these, and
    ``validation`` those of the fold left out of a cross-validation. ``confusion`` counts the test
    rows by true and predicted class; ``selected`` the rounds in which each client took part;
    ``names`` are what clients are called, where they have names. ``curves`` are those of the test
    rows or, without these, of all that clients keep, and ``client_curves`` of each client. Bytes
    and seconds count training only, over all starts of an interrupted one, ``predicting`` the
    seconds that test rows took; ``energy`` is of all, reading and warming up as tasks of their own.

    ``others`` are the means over clients' models, trained alone, of what each comes to on the test
    rows of the others; ``baseline`` is what the most frequent class, or the mean, of training rows
    comes to on the same rows as ``metrics`` or, without these, as ``client_metrics``. ``answers``
    are the predictions of the data set's test rows, ``own_answers`` those of the clients' own
    (:class:`~solera.study.rows.Answers`). ``warnings`` are those of the training.

    Where every client has its own model these are judged: ``metrics`` are means of theirs, and
    ``common`` those of clients' test rows by the model that all share, empty if it has no head.

    All metrics are figures, those of files that say nothing of rows of unknown ones.
    """

    seed: int
    rounds: int
    metrics: dict[str, Any]
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    client_metrics: dict[str, Any] = field(default_factory=dict)
    clients: dict[int, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    validation: dict[str, Any] = field(default_factory=dict)
    confusion: list[list[int]] = field(default_factory=list)
    selected: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    curves: Curves | None = None
    client_curves: list[Curves] = field(default_factory=list)
    energy: EnergyUse | None = None
    common: dict[str, Any] | None = None
    others: dict[str, Any] = field(default_factory=dict)
    baseline: dict[str, Any] = field(default_factory=dict)
    predicting: float = 0.0
    warnings: list[str] = field(default_factory=list)
    answers: bytes = b""
    own_answers: bytes = b""

    def __post_init__(self) -> None:
        score = self.score or "score"
        for field_ in _METRICS:
            if (values := getattr(self, field_)) is not None:
                metrics = {name: read_figure(name, v) for name, v in values.items()}
                object.__setattr__(self, field_, metrics)
        clients = {client: read_figure(score, value) for client, value in self.clients.items()}
        object.__setattr__(self, "clients", clients)
        object.__setattr__(self, "history", [restored(entry) for entry in self.history])

    @property
    def score(self) -> str | None:
        """The name of the metric that sums up the model."""
        return headline_metric(self.metrics or self.client_metrics or self.validation)

    @property
    def diverged(self) -> bool:
        """Whether training says so, or the model predicts nothing that is finite."""
        said = any("diverged" in warning for warning in self.warnings)
        return said or bool(self.rounds and self.baseline and self.score is None)


def headline(results: Sequence[Result]) -> list[str]:
    """Names of the metrics that tables show; the stored results have all of them."""
    names = dict.fromkeys(name for result in results for name in result.metrics)
    metrics = {name: find_metric(name) for name in names}
    return [name for name, metric in metrics.items() if metric is None or metric.in_tables]


def finite(metrics: Mapping[K, float]) -> dict[K, float]:
    """JSON has no number for a metric that overflowed; reports show it as missing."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def different(results: Sequence[Result]) -> list[Result]:
    """Those that do not answer all test rows, with the same curves, as one before them does."""
    found: list[tuple[Result, Answers | None]] = []
    for result in results:
        answers = Answers.unpacked(result.answers)
        same = (
            answers and said and answers.same_as(said) and result.curves == other.curves
            for other, said in found
        )
        if not any(same):
            found.append((result, answers))
    return [result for result, _ in found]
