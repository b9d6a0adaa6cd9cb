"""What a training took, and what held-out rows say of the model after each of its rounds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from solera.core import rng
from solera.core.clients import IntArray, Part, Rows, take_rows
from solera.core.errors import SoleraError
from solera.core.rounds import Callback, Round
from solera.evaluation.figure import Figure
from solera.evaluation.metrics import HELD_OUT, headline_metric
from solera.green.energy import COORDINATOR, PREDICTION, EnergyOptions, EnergyUse
from solera.learn.evaluation import evaluate, held_out

_MOST_HELD_OUT = 1000
"""Of more held-out rows, so many judge each round."""


class TrainingRecord(Callback):
    """Seconds, chosen clients and energy of training, carried on from the checkpoint.

    ``start`` is the first round of this start, ``selected_`` in how many rounds each client took
    part; ``predicting`` the seconds in which test rows were predicted. Rounds log the loss and the
    score of ``held_out`` rows or, where every client has its own model, the score of the clients'
    own rows of that ``part``. The clock stands still for that, and no message is counted.
    """

    def __init__(self, tracked: Any) -> None:
        self.start = 0
        self.predicting = 0.0
        self.part: Part | None = None
        self.held_out: Rows | None = None
        self.model: Any = None
        self.earlier_kwh_ = 0.0
        self.selected_: IntArray = np.zeros(0, dtype=np.int64)
        self._tracked = tracked
        self._seconds = 0.0
        self._wh_before = 0.0
        self._began: float | None = None

    @property
    def seconds(self) -> float:
        """Of training alone."""
        running = 0.0 if self._began is None else time.perf_counter() - self._began
        return self._seconds + running

    @contextmanager
    def training(self, model: Any) -> Iterator[None]:
        """The model is being fitted."""
        self.model = model
        self._wh_before = self._tracked.wh
        self._go()
        try:
            yield
        finally:
            self._stop()

    def predictions(self, models: Sequence[Any], X: Any) -> list[Any]:
        """What models answer on test rows."""
        self._tracked.stage(PREDICTION)
        began = time.perf_counter()
        answers = [model.predict(X) for model in models]
        self.predicting += time.perf_counter() - began
        self._tracked.stage("scoring")
        return answers

    def _go(self) -> None:
        self._tracked.stage(COORDINATOR)
        self._began = time.perf_counter()

    def _stop(self) -> None:
        self._seconds = self.seconds
        self._began = None
        self._tracked.stage("scoring")

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        self.start = start

    def on_round(self, learner: Any, round: Round) -> None:
        chosen = np.bincount(round.clients, minlength=len(round.federation))
        self.selected_ = self.selected_ + chosen if len(self.selected_) else chosen
        self._stop()
        with suppress(SoleraError), np.errstate(all="ignore"):  # of a model that has diverged
            round.log(**self._judged(learner, round))
        self._go()

    def _judged(self, learner: Any, round: Round) -> dict[str, Figure]:
        if not learner.predicts:
            return {}
        if learner.is_personal:
            return {} if self.part is None else _by_own(learner, round, self.part)
        if self.held_out is None:
            return {}
        X, y = self.held_out.X, self.held_out.y
        for step in vars(self.model).get("steps_", ()):
            X = step.transform(X)
        found = held_out(learner, X, y)
        score = found.pop("score")
        return {**found, HELD_OUT + score.metric: score}

    def get_state(self) -> Any:
        kwh = self.earlier_kwh_ + (self._tracked.wh - self._wh_before) / 1000
        return {"seconds": self.seconds, "selected": self.selected_, "kwh": kwh}

    def set_state(self, state: Any) -> None:
        self._seconds += state["seconds"]
        self.selected_ = state["selected"]
        self.earlier_kwh_ = state["kwh"]


def _by_own(learner: Any, round: Round, part: Part) -> dict[str, Figure]:
    """What the clients' own rows say of their own models; asking for it is no part of training."""
    records = round.federation.meter.records
    before = len(records)
    try:
        found = evaluate(learner, round.federation, part, per_client=False).metrics
    finally:
        del records[before:]
    score = headline_metric(found)
    return {} if score is None else {HELD_OUT + score: found[score]}


def told(warnings: Iterable[str]) -> tuple[str, ...]:
    """Each once, without those that are of the callbacks which every cell has."""
    return tuple(dict.fromkeys(w for w in warnings if "there were no rounds for" not in w))


def some_of(rows: Rows, seed: int) -> Rows:
    """As many rows as judge each round."""
    if len(rows) <= _MOST_HELD_OUT:
        return rows
    chosen = rng.generator(seed, "study.held_out").choice(len(rows), _MOST_HELD_OUT, replace=False)
    return take_rows(rows.X, rows.y, np.sort(chosen))


class Unmeasured:
    """Stands where energy is not asked for."""

    wh = 0.0

    def stage(self, name: str) -> None: ...

    def attach(self, federation: Any) -> None: ...


def with_earlier(use: EnergyUse, kwh: float, options: EnergyOptions) -> EnergyUse:
    """What this start took and what earlier ones of the same training took."""
    if not kwh:
        return use
    co2e = kwh * options.grams_per_kwh() / 1000
    return use + EnergyUse(kwh, co2e, 0.0, use.source, {"earlier starts": kwh})
