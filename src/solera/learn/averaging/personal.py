"""Personalisation: part of the model, or a model of its own, stays with each client.

Private parts live in the client's state. They are never sent, survive restarts, and
:func:`evaluate_personal` asks the clients how good their own models are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np

from solera.core.clients import PARTS, Client, Part, Segments
from solera.core.component import build_fitted, component_name, describe_fitted
from solera.core.constraints import Count, NonNegative
from solera.core.disclosure.declared import Fitted
from solera.core.disclosure.evidence import Sums
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.plan import planned
from solera.core.replies import Stacked
from solera.core.task import task
from solera.evaluation.counts import countable
from solera.evaluation.evaluation import Evaluation
from solera.learn.averaging.base import Entries
from solera.learn.averaging.learner import FedAvg
from solera.learn.averaging.models import Layered, described
from solera.learn.averaging.training.asked import Epochs, Train
from solera.learn.averaging.training.local_training import (
    PRIVATE,
    LocalTraining,
    training_task,
)
from solera.learn.evaluation import Gather, judged
from solera.learn.judging import Pivot, about_pivot, count_rows, counts_of_rows, rows_behind

_OWN = "own_model"


class Personal(FedAvg, abstract=True):
    """A learner whose clients end with models of their own.

    ``predict`` uses the shared parameters with the private ones as they were first sent;
    :meth:`evaluate_personal` judges every client by its own model.
    """

    def evaluate_personal(self, federation: Federation, part: str = "test") -> Evaluation:
        """Metrics of every client's own model on rows it keeps, and of all together."""
        self.check_fitted()
        if part not in PARTS:
            raise UsageError.of("evaluate_personal", "part", part, f"must be one of {PARTS}")
        model = describe_fitted(self.for_prediction())
        ask = {"model": model, "part": part, "private": self._private, **about_pivot(self)}
        made = {"model": {"made": {"$component": component_name(type(self))}}, "part": part}
        judging = planned(_evaluate, 1, {**ask, **made}, open=["model", "pivot"])
        with federation.announced(self, lambda: (judging,)):
            replies = self.at_clients(federation).ask(_evaluate, ask)
            ids, counts = replies.fold(Gather())
        evaluation = judged(ids, countable(counts), part, replies)
        if not evaluation.clients:
            raise DataError(f"no client has {part} rows", hint="so.simulate(…, test=0.2)")
        return replace(evaluation, positive=self.schema_.positive)


class JudgeOwn(TypedDict):
    """What ``averaging.evaluate_personal`` takes."""

    model: Annotated[dict[str, Any], Fitted(Personal)]
    part: Part
    private: list[str]
    pivot: NotRequired[Pivot]


def _own_model(client: Client, ask: Any) -> Any:
    """The model of the ask with what this client keeps of it."""
    model = build_fitted(ask["model"])
    if _OWN in client.state:
        model.weights_ = client.state[_OWN]
    elif PRIVATE in client.state:
        mask = model._architecture.layout.select(ask["private"])
        own = model.weights_.copy()
        own[mask] = client.state[PRIVATE]
        model.weights_ = own
    return model


def _behind(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    return rows_behind(_own_model(client, ask), client, ask)


@task("averaging.evaluate_personal", ask=JudgeOwn, release=counts_of_rows(_behind))
def _evaluate(client: Client, ask: Any) -> Entries:
    """Counts of this client's rows by its own model."""
    model, rows = _own_model(client, ask), client.data.part(ask["part"])
    one = Segments(rows.X, rows.y, np.zeros(1, np.int64), np.array([len(rows)]))
    return {name: value[0] for name, value in count_rows(model, one, ask.get("pivot", 0.0)).items()}


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


class TrainHead(Train):
    """What ``averaging.rep`` takes."""

    head_epochs: Epochs


@training_task("averaging.rep", ask=TrainHead)
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


class TrainOwn(Train):
    """What ``averaging.ditto`` takes."""

    pull: NonNegative


@training_task("averaging.ditto", ask=TrainOwn)
def train_both(local: LocalTraining) -> Stacked:
    """The shared model as in FedAvg, and a model of one's own that is pulled towards it."""
    changes, losses, _ = local.changes()
    own = local.recall(_OWN, local.weights[None])
    own_way = replace(local.config, mu=local.ask["pull"])
    local.train(own, own_way, anchor=local.weights)
    local.remember(_OWN, own)
    return local.reply(changes, losses)


class Ditto(Personal):
    """Every client trains a second model on L_k(v) + lam/2·‖v − w‖² (Li et al. 2021).

    The shared model is FedAvg's.
    """

    update = train_both

    def __init__(self, model: Any, *, lam: NonNegative = 0.1, **averaging: Any) -> None:
        super().__init__(model, **averaging)
        self.lam = lam

    def round_config(self, round: int) -> Entries:
        return {**super().round_config(round), "pull": float(self.lam)}
