"""Personalisation: part of the model, or a model of its own, stays with each client.

Private parts live in the client's state. They are never sent and survive restarts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

from solera.core.constraints import Count, NonNegative
from solera.core.errors import Refusal, UsageError
from solera.core.federation import Federation
from solera.core.replies import Stacked
from solera.learn.averaging.base import Entries
from solera.learn.averaging.learner import FedAvg
from solera.learn.averaging.models import Layered, described
from solera.learn.averaging.training.local_training import LocalTraining, training_task
from solera.learn.averaging.update_averaging import UNTRAINED
from solera.learn.client_models import OWN


class Personal(FedAvg, abstract=True):
    """A learner whose clients end with models of their own, ``model.at(client)``."""

    def evaluate_personal(self, federation: Federation, part: str = "test") -> Any:
        """:meth:`evaluate`, under the name that it had where clients have their own models."""
        warn = "evaluate_personal ends with version 0.2: write evaluate(federation)"
        warnings.warn(warn, DeprecationWarning, stacklevel=2)
        return self.evaluate(federation, part)


class FedPer(Personal):
    """The last layer stays with the client, the others are averaged (Arivazhagan et al. 2019).

    ``private`` names other parameters to keep, as in ``model.module().state_dict()``.
    """

    def __init__(self, model: Any, *, private: list[str] | None = None, **averaging: Any) -> None:
        super().__init__(model, **averaging)
        self.private = private

    def begin(self, federation: Federation) -> None:
        super().begin(federation)
        if self._hidden is None or not self._hidden.any():
            raise UsageError(f"{self!r} keeps no parameter private")
        if self._hidden.all():
            raise UsageError(f"{self!r} keeps every parameter private")

    @cached_property
    def _private(self) -> list[str]:
        if self.private is not None:
            return list(self.private)
        model = described(self.model)
        if not isinstance(model, Layered):
            kind = type(self).__name__
            raise UsageError(f"{kind}: name what stays private", hint="private=['head.weight', …]")
        return self.private_layers(model)

    def private_layers(self, model: Layered) -> list[str]:
        """What stays with the client unless ``private`` names it."""
        return model.head()


class FedBN(FedPer):
    """Batch normalisation, parameters and statistics, stays with the client (Li et al. 2021)."""

    def private_layers(self, model: Layered) -> list[str]:
        return model.normalisation()


@training_task("averaging.rep")
def train_head_then_body(local: LocalTraining) -> Stacked:
    """First the private head with the body fixed, then the body with the head fixed."""
    assert local.private is not None
    rows = local.copies()
    head = local.arrange(local.private)
    first = replace(local.config, epochs=local.ask["head_epochs"], steps=None)
    local.train(rows, first, frozen=~head)
    losses, _ = local.train(rows, local.config, frozen=head)
    local.keep_private(rows)
    return local.reply(rows.sub_(local.weights), losses)


class FedRep(FedPer):
    """As FedPer, but head and body are trained in turn (Collins et al. 2021).

    ``head_epochs`` passes train the private head, then ``epochs`` the shared body.
    """

    update = train_head_then_body

    def __init__(self, model: Any, *, head_epochs: Count = 1, **averaging: Any) -> None:
        super().__init__(model, **averaging)
        self.head_epochs = head_epochs

    def round_config(self, round: int) -> Entries:
        return {**super().round_config(round), "head_epochs": self.head_epochs}


@training_task("averaging.ditto")
def train_both(local: LocalTraining) -> Stacked:
    """The shared model as in FedAvg, and a model of one's own that is pulled towards it."""
    changes, losses, _ = local.changes()
    own = local.recall(OWN, local.weights[None])
    own_way = replace(local.config, mu=local.ask["pull"])
    local.train(own, own_way, anchor=local.weights)
    local.remember(OWN, own)
    return local.reply(changes, losses)


class Ditto(Personal):
    """Every client trains a second model on L_k(v) + lam/2·‖v − w‖² (Li et al. 2021).

    The shared model is FedAvg's: ``model.common()``.
    """

    update = train_both
    own = True

    def __init__(self, model: Any, *, lam: NonNegative = 0.1, **averaging: Any) -> None:
        super().__init__(model, **averaging)
        self.lam = lam

    def round_config(self, round: int) -> Entries:
        return {**super().round_config(round), "pull": float(self.lam)}

    def with_part(self, part: Mapping[str, Any] | None, owner: str = "") -> Self:
        if part is None:
            return self._with(self.weights_, owner)
        if OWN not in part:
            raise Refusal(UNTRAINED)
        return self._with(part[OWN], owner)
