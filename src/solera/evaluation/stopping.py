"""Callbacks that stop a fit: when a metric improves no longer, at a time, at a value."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Any

from solera.core.component import Component
from solera.core.constraints import Count, Positive
from solera.core.errors import UsageError
from solera.core.rounds import Callback, Round
from solera.evaluation.metrics import Mode, sign

log = logging.getLogger("solera")


class EarlyStopping(Callback, Component):
    """Stop when a metric has not improved for ``patience`` rounds; keep the best model.

    Where every client has its own model, simulated clients take theirs of that round back; over a
    network the last round's models stay.

    Whether it should fall or rise is in the table of metrics; ``mode`` "min" or "max" says it of
    other numbers that rounds log. ``best_`` is the best value so far, ``waited_`` the number of
    rounds since.

    >>> so.callbacks.EarlyStopping("accuracy", patience=3)
    >>> so.callbacks.EarlyStopping("epsilon", mode="min")
    """

    best_: float | None = None
    waited_: int = 0
    best_state_: Any = None
    best_clients_: Any = None

    def __init__(
        self,
        metric: str,
        *,
        patience: Count = 5,
        mode: Mode | None = None,
        min_delta: float = 0.0,
    ) -> None:
        self.metric = metric
        self.patience = patience
        self.mode = mode
        self.min_delta = min_delta

    def check_params(self) -> None:
        super().check_params()
        _direction(self)

    def on_round(self, learner: Any, round: Round) -> None:
        if self.metric not in round.metrics:
            raise UsageError(
                f"EarlyStopping(metric={self.metric!r}): the round has {sorted(round.metrics)}",
                hint="choose one of these or evaluate the metric in a callback before this one",
            )
        value = float(round.metrics[self.metric])
        if self.best_ is None or _direction(self) * (value - self.best_) > self.min_delta:
            self.best_, self.waited_, self.best_state_ = value, 0, learner.get_state()
            self.best_clients_ = learner.client_states()
        else:
            self.waited_ += 1
        if self.waited_ >= self.patience:
            round.stop(f"{self.metric} did not improve for {self.patience} rounds")

    def on_end(self, learner: Any) -> None:
        if learner.is_personal and self.best_clients_ is None:
            log.warning("clients keep the last round's models, so that the shared part is its, too")
        elif self.best_state_ is not None:
            learner.restore_clients(self.best_clients_)
            history, accounts = learner.history_, vars(learner).get("accounts_")
            learner.set_state(self.best_state_)
            learner.history_ = history
            if accounts is not None:  # what later rounds have spent of privacy is spent
                learner.accounts_ = accounts


class StopAt(Callback, Component):
    """Stop at a time, at a value of a metric, or at whichever comes first.

    ``time`` is in seconds: of virtual time where the federation has a clock, of real time since
    ``fit`` began otherwise. The round that reaches it is the last. Whether ``metric`` must rise or
    fall to ``target`` is in the table of metrics; ``mode`` "max" or "min" says it of other numbers
    that rounds log. Put it after the callback that evaluates the metric.
    """

    def __init__(
        self,
        *,
        time: Positive | None = None,
        metric: str = "score",
        target: float | None = None,
        mode: Mode | None = None,
    ) -> None:
        self.time = time
        self.metric = metric
        self.target = target
        self.mode = mode

    def check_params(self) -> None:
        super().check_params()
        _direction(self)

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        self._began = monotonic()

    def on_round(self, learner: Any, round: Round) -> None:
        passed = round.metrics.get("time", monotonic() - self._began)
        if self.time is not None and passed >= self.time:
            round.stop(f"{self.time:g} seconds have passed")
        value = round.metrics.get(self.metric)
        if self.target is not None and value is not None:
            direction = _direction(self)
            if direction * value >= direction * self.target:
                round.stop(f"{self.metric} has reached {self.target:g}")


def _direction(callback: EarlyStopping | StopAt) -> int:
    """What the watched number is multiplied by so that larger is better."""
    call = f'{type(callback).__name__}(metric={callback.metric!r}, …, mode="min")'
    return sign(callback.metric, callback.mode, call)
