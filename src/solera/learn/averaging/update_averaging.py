"""Averaging of one flat vector that the updates of clients move.

What follows from that alone is here: the step of the coordinator, parameters that stay with
clients, and noise. Subclasses say where the vector and the updates come from.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from solera.core.clients import Array, BoolArray
from solera.core.federation import Federation
from solera.core.rounds import Round
from solera.core.selection import Selector
from solera.learn.averaging.base import Averaging, Entries
from solera.learn.averaging.private_rounds import UpdateNoise, next_clip, selector_of
from solera.learn.closed import is_closed, persons_in
from solera.privacy.dp.mechanism import DP

UNTRAINED = "this client took no part in training, and has no model"


class UpdateAveraging(Averaging, abstract=True):
    """An averaging learner whose model is the vector ``weights_``."""

    own: ClassVar = False
    """Whether clients train whole models of their own."""
    equal_weights: ClassVar = "weight=None"
    """By which parameter all clients weigh the same."""
    weights_: Array
    owner_: str
    """Whose model it is, where it is one client's."""
    dp: DP | None
    send: str
    server_lr: float
    weight: Any

    @property
    @abstractmethod
    def _private(self) -> list[str]:
        """Names of the parameters that stay with the clients."""

    @property
    @abstractmethod
    def _hidden(self) -> BoolArray | None:
        """Marks these parameters in ``weights_``, if there are any."""

    @abstractmethod
    def _training(self, round: int) -> Entries:
        """How clients train in this round."""

    @property
    def weighting(self) -> Any:
        """What the mean weighs clients by, None for equal weights."""
        return self.weight

    @property
    def _shared_weights(self) -> Array:
        return self.weights_ if self._hidden is None else self.weights_[~self._hidden]

    def apply_update(self, mean: Entries) -> None:
        change = mean["update"]
        if self.dp is not None and self.dp.sampling == "poisson":
            change = change * (
                mean["count"] / self.accounts_["asked"]
            )  # a mean would tell who came
        if self.send == "weights":
            change = change - self._shared_weights
        step = self.server_step(change).astype(self.weights_.dtype, copy=False)
        if self._hidden is None:
            # A mean is a new array that nobody else needs; fresh memory costs more than the sum.
            own = step is mean["update"] and self.aggregate is None and step.flags.writeable
            self.weights_ = np.add(self.weights_, step, out=step if own else None)
            return
        moved = self.weights_.copy()
        moved[~self._hidden] += step
        self.weights_ = moved

    def server_step(self, change: Array) -> Array:
        """What the mean change of a round does to the model."""
        return np.asarray(change if self.server_lr == 1 else self.server_lr * change)

    # --- noise ---

    def account(self, round: Round, mean: Entries) -> None:
        if self.dp is None:
            super().account(round, mean)
        elif self.dp.adaptive is not None:
            clip = next_clip(self.dp, self.accounts_["clip"], float(mean["below"]))
            self.accounts_ = {**self.accounts_, "clip": clip}
            round.log(clip=clip)

    def chooser(self) -> Selector | None:
        return selector_of(self.dp, self.select)

    def noise_among(self, clients: int, *, closed: bool = False) -> UpdateNoise:
        assert self.dp is not None
        return UpdateNoise(self, self.dp, clients, self._noised_steps, closed=closed).opened(
            self.rounds
        )

    @property
    def _noised_steps(self) -> int:
        """Steps of a round, each of which is noised, where gradients of rows are."""
        return 1

    def with_noise(self, federation: Federation) -> Federation:
        if self.dp is None:
            return federation
        self._check_private()
        noise = self.noise_among(len(federation), closed=is_closed(federation))
        if is_closed(federation):
            noise.rows = float(persons_in(federation)["train"] / len(federation))
        return federation.noised(noise)

    def _check_private(self) -> None:
        """Raise :class:`UsageError` for a network that noise cannot make private."""

    # --- models of clients ---

    @property
    def is_personal(self) -> bool:
        is_fitted = "schema_" in vars(self)
        return is_fitted and "owner_" not in vars(self) and bool(self.own or self._private)

    def _with(self, weights: Array, owner: str) -> Self:
        """One client's model, or nobody's that all share."""
        model = self.for_prediction()
        model.weights_, model.owner_ = weights, owner
        model.history_, model._trained_with = vars(self).get("history_", []), self._trained_with
        return model
