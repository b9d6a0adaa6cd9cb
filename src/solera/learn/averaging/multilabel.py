"""MLFedAvg: clients that know different labels share the body of a network.

The core network is averaged, the output layer, with one sigmoid per label, stays with its client.
Labels may be dealt in any way: a label that a client does not know is −1 in its ``y`` and moves
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Array, BoolArray, Client, Part
from solera.core.constraints import Count, NonNegativeInt, Positive
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.replies import Stacked
from solera.core.rounds import Round
from solera.core.schema import UNKNOWN
from solera.core.task import task
from solera.core.topology import Peers
from solera.data.frames import encode_target
from solera.evaluation.figure import measured
from solera.learn.averaging.base import Entries
from solera.learn.averaging.label_metrics import (
    label_scores,
    tune_thresholds,
)
from solera.learn.averaging.learner import FedAvg
from solera.learn.averaging.models import Layered, register_loss
from solera.learn.averaging.predicting import outputs_of
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.layers import Activation, Dense, Layer
from solera.learn.averaging.training.local_training import (
    LocalTraining,
    OneClientTraining,
    training_task,
)
from solera.learn.averaging.training.losses import over_known
from solera.learn.client_models import PRIVATE, THRESHOLDS
from solera.privacy.dp.mechanism import DP
from solera.trust.constructors import count_by, fact, update

_BEST, _LOWEST = "best_private", "lowest_loss"
_WHY = {
    "thesis": "validation subset accuracy fell and loss rose twice in a row",
    "program": "the means over all rounds of accuracy fell and of loss rose twice in a row",
    "patience": "validation loss did not improve for so many rounds as patience says",
}
_LEAST = 10
"""The program of the thesis never stops before its eleventh round."""


class SharedCore(Layered):
    """A core network, an activation and one output per label."""

    def __init__(self, core: Layered, labels: int) -> None:
        self.core = core
        self.labels = labels

    def layers(self) -> list[Layer]:
        layers = self.core.layers()
        last = layers[-1]
        if not isinstance(last, Dense):
            raise UsageError.of(self, "core", self.core, "must end in a dense layer")
        return [*layers, Activation("relu"), Dense(last.outputs, self.labels)]


# --- losses that leave unknown labels out ---


def _asymmetric(outputs: Any, target: Any) -> Any:
    """Easy negatives count little: (1 − p_t)^γ with γ = 0 for positives and 2 for negatives.

    Ridnik et al. (2021), "Asymmetric loss for multi-label classification", without the margin.
    """
    return over_known(outputs, target, torch().where(target > 0, 1.0, outputs.sigmoid() ** 2))


def _balanced(outputs: Any, target: Any) -> Any:
    """Positives weigh three times as much as negatives."""
    return over_known(outputs, target, 1 + 2 * target.clamp(min=0))


register_loss("labels/cross_entropy", over_known)
register_loss("labels/asymmetric", _asymmetric)
register_loss("labels/balanced", _balanced)


# --- the client's side ---


@training_task("multilabel.train")
def train_core(local: LocalTraining) -> Stacked:
    """One round of training; what is sent is the core alone."""
    if local.ask["remember"]:
        for state in local.states:
            if PRIVATE in state:
                state[_BEST] = state[PRIVATE]
    changes, losses, _ = local.changes()
    if local.ask["weight"] != "samples_labels":
        return local.reply(changes, losses)
    return local.reply(changes, losses, rows=local.sizes * local.known_labels().sum(axis=1) * 1.0)


@task("multilabel.finish")
def _finish(client: Client, ask: Any) -> Entries:
    """Take the best head back, fit it to the final core, choose thresholds on validation rows."""
    if ask["restore"] and _BEST in client.state:
        client.state[PRIVATE] = client.state[_BEST]
    client.state.pop(_BEST, None)
    local = OneClientTraining(client, ask)
    if ask["fine_tune"]:
        assert local.private is not None
        rows = local.copies()
        config = replace(local.config, epochs=ask["fine_tune"])
        local.train(rows, config, frozen=~local.private)
        local.keep_private(rows)
    if ask["thresholds"]:
        validation = client.data.part("validation")
        rows = validation if len(validation) else client.data.part("train")
        z = _outputs(client, ask, rows.X)
        client.state[THRESHOLDS] = tune_thresholds(z, np.asarray(rows.y))
    return {"done": fact(1)}


def _judged(client: Client, ask: Any) -> tuple[Array, Array, Array]:
    """Outputs, the labels that the client has learned, and thresholds of rows of a part."""
    rows = client.data.part(ask["part"])
    known: BoolArray = np.asarray(client.data.part("train").y) >= 0
    learned: BoolArray = np.any(known, axis=0)
    thresholds = client.state.get(THRESHOLDS, np.zeros(len(learned)))
    return _outputs(client, ask, rows.X), np.where(learned, rows.y, UNKNOWN), thresholds


@task("multilabel.judge", version=3)
def _score_labels(client: Client, ask: Any) -> Entries:
    """Scores of this client's model on rows it keeps; the best so far is kept, where wanted."""
    part: Part = ask["part"]
    rows = count_by(None, part=part)
    if not len(client.data.part(part)):
        return {"rows": rows}
    scores = label_scores(*_judged(client, ask))
    if ask["remember"] and scores["loss"] < client.state.get(_LOWEST, np.inf):
        client.state[_BEST], client.state[_LOWEST] = client.state[PRIVATE], scores["loss"]
    return {"rows": rows, "scores": update(scores, part=part)}


def _outputs(client: Client, ask: Any, X: Any) -> Array:
    local = OneClientTraining(client, ask)
    return outputs_of(local.architecture, local.copies()[0].numpy(), X, "cpu")


# --- the coordinator's side ---


class MLFedAvg(FedAvg):
    """Multi-label averaging with private output layers (MLFedAvg).

    Parameters
    ----------
    model: the core that is averaged, any model that ends in a dense layer; ``so.nn.mlp(V, 100,
        20)`` in the thesis.
    aggregation: weights of the clients: ``"uniform"`` (its 0), ``"samples"`` ∝ n_k (1),
        ``"samples_labels"`` ∝ n_k·|Y_k| (2).
    stop: ``"thesis"`` ends when for two rounds in a row the clients' mean validation subset
        accuracy falls and their mean validation loss rises; ``"program"``, as its program did, when
        the means over all rounds so far of argmax accuracy and loss do so, not before the eleventh
        round; ``"patience"`` when the loss has not
        improved for ``patience`` rounds, and takes the best core and heads back; None never.
    label_loss: ``"cross_entropy"``, ``"asymmetric"`` or ``"balanced"``.
    fine_tune: epochs that fit every private head to the final core.
    thresholds: choose the threshold of each label on the client's validation rows, by its F1.
    share: False trains every client alone, the baseline: nothing is sent, and each stops by its own
        validation rows.

    Other parameters are those of :class:`FedAvg`.
    """

    update = train_core
    equal_weights = "aggregation='uniform'"
    watched_: list[list[float]]
    alone_: dict[int, list[list[float]]]
    best_: Array
    rounds_: int

    def __init__(
        self,
        model: Any,
        *,
        aggregation: Literal["uniform", "samples", "samples_labels"] = "samples",
        stop: Literal["thesis", "program", "patience"] | None = "thesis",
        patience: Count = 20,
        label_loss: Literal["cross_entropy", "asymmetric", "balanced"] = "cross_entropy",
        fine_tune: NonNegativeInt = 0,
        thresholds: bool = False,
        share: bool = True,
        rounds: int = 1000,
        optimiser: Any = "adam",
        lr: Positive = 1e-3,
        **averaging: Any,
    ) -> None:
        super().__init__(model, rounds=rounds, optimiser=optimiser, lr=lr, **averaging)
        self.aggregation = aggregation
        self.stop = stop
        self.patience = patience
        self.label_loss = label_loss
        self.fine_tune = fine_tune
        self.thresholds = thresholds
        self.share = share

    def why_not_closed(self) -> str | None:
        if not self.share:
            return "clients that train alone send nothing that adds up; share=True"
        if self.stop is not None:
            return "scores of single clients are read to stop; stop=None, and the rounds= wanted"
        return super().why_not_closed()

    def _check_target(self) -> None:
        if self.schema_.target != "labels":
            raise DataError(
                f"MLFedAvg learns labels, the target is {self.schema_.target!r}",
                hint="y with a column of 0 and 1 for every label",
            )

    def begin(self, federation: Federation) -> None:
        self._check_target()
        if not self.share and isinstance(federation.topology, Peers):
            raise UsageError("MLFedAvg(share=False) sends nothing from peer to peer")
        super().begin(federation)
        self.watched_, self.alone_, self.best_ = [], {}, self.weights_

    def after_rounds(self, federation: Federation) -> None:
        self.rounds_ = len(self.history_)
        if self.stop == "patience":
            self.weights_ = self.best_
        if self._finishes:
            restore = self.stop == "patience" and not (self.share and self._latest_is_best())
            last = {**self.round_ask(self.rounds - 1), **self._last_config(restore)}
            federation.ask(_finish, last, round=self.rounds).fold(Sum())

    @property
    def _finishes(self) -> bool:
        """Whether clients have something to do after the last round."""
        return self.stop == "patience" or self.fine_tune > 0 or self.thresholds

    def _last_config(self, restore: bool) -> Entries:
        return {"restore": restore, "fine_tune": self.fine_tune, "thresholds": self.thresholds}

    def fold_round(self, round: Round) -> Entries:
        ended = [client for client, watched in self.alone_.items() if self._is_over(watched)]
        round.clients = np.setdiff1d(round.clients, ended)
        return super().fold_round(round)

    @property
    def _keeps_best(self) -> bool:
        """Whether all clients keep the heads of the same best round."""
        return self.share and self.stop == "patience"

    @property
    def _validation(self) -> Entries:
        """What is asked after a round; clients alone keep the best of theirs."""
        return {"part": "validation", "remember": self.stop == "patience" and not self.share}

    def after_round(self, round: Round) -> None:
        """Judge the new model on the clients' validation rows, and stop if it is time."""
        if self.stop is None:
            return
        to = None if self.share else round.clients
        scores = self._scores(round.federation, self._validation, to)
        if not scores:
            raise DataError(
                "no client has validation rows to stop by",
                hint="set some aside, so.simulate(validation=0.2), or use stop=None, in a file "
                "stop = false",
            )
        metric = "argmax_accuracy" if self.stop == "program" else "subset_accuracy"
        each = {client: [s[metric], s["loss"]] for client, s in scores.items()}
        accuracy, loss = np.mean([*each.values()], axis=0).tolist()
        means = {f"validation_{metric}": accuracy, "validation_loss": loss}
        asked = len(round.federation if to is None else to)
        round.log(**measured(means, part="validation", clients=len(each), asked=asked))
        self.watched_ = [*self.watched_, [accuracy, loss]]
        if self._latest_is_best():
            self.best_ = self.weights_
        watched = [self.watched_]
        if not self.share:
            new = {client: [*self.alone_.get(client, []), one] for client, one in each.items()}
            self.alone_ = {**self.alone_, **new}
            watched = [*self.alone_.values()]
        if all(map(self._is_over, watched)):
            round.stop(_WHY[self.stop])

    def _is_over(self, watched: list[list[float]]) -> bool:
        """Whether accuracies and losses of so many rounds are reason to stop."""
        if self.stop == "thesis":
            return worse_twice(watched)
        if self.stop == "program":
            return len(watched) > _LEAST and worse_twice(_so_far(watched))
        since = len(watched) - 1 - int(np.argmin([loss for _, loss in watched]))
        return since >= self.patience

    def _latest_is_best(self) -> bool:
        losses = [loss for _, loss in self.watched_]
        return bool(losses) and losses.index(min(losses)) == len(losses) - 1

    def evaluate_clients(
        self, federation: Federation, X: Any = None, y: Any = None, *, part: str = "test"
    ) -> dict[int, dict[str, float]]:
        """Scores of the thesis, by client: on rows it keeps or, of simulated clients, on X and y.

        Of these a client's model is judged by its own labels, on the rows that have one of them.
        """
        self.check_fitted()
        federation = self.at_clients(federation)
        if X is None:
            return self._scores(federation, {"part": part})
        labels, found = encode_target(y, self.schema_), {}
        for client in federation.clients.tolist():
            own = self.at(client)
            truth = np.where(vars(own).get("labels_", True), labels, UNKNOWN)
            rows = (truth > 0).any(axis=1)
            z = own.decision_function(X)[rows]
            if len(z):
                scores = label_scores(z, truth[rows], vars(own).get("thresholds_", 0.0))
                found[client] = {"rows": float(len(z)), **scores}
        return found

    def _scores(self, federation: Federation, what: Entries, to: Any = None) -> dict[int, Any]:
        ask = {**self.round_ask(0), **what}
        with federation.announced(self):
            replies = federation.ask(_score_labels, ask, to=to).collect()
        return {
            reply.client: {"rows": float(reply["rows"]), **reply["scores"]}
            for reply in replies
            if reply["rows"]
        }

    def round_config(self, round: int) -> Entries:
        remember = self._keeps_best and round > 0 and self._latest_is_best()
        return {**super().round_config(round), "weight": self.aggregation, "remember": remember}

    @property
    def weighting(self) -> str | None:
        return None if self.aggregation == "uniform" else "rows"

    def _network(self) -> SharedCore:
        return SharedCore(self.model, self.schema_.outputs)

    def with_part(self, part: Mapping[str, Any] | None, owner: str = "") -> Self:
        model = super().with_part(part, owner)
        if part is not None and THRESHOLDS in part:
            model.thresholds_ = np.asarray(part[THRESHOLDS], dtype=float)
        return model

    @cached_property
    def _private(self) -> list[str]:
        if self.share:
            return self._network().head()
        return sorted({slot.name.split(".")[0] for slot in self._architecture.layout.slots})

    @cached_property
    def _loss(self) -> str:
        return f"labels/{self.label_loss}"

    def _check_dp(self, dp: DP) -> None:
        super()._check_dp(dp)
        if self.stop is not None:
            raise UsageError(
                f"MLFedAvg(dp=…, stop={self.stop!r}): clients would tell how well the model does "
                "on their validation rows, which no ε counts",
                hint="stop=None, and as many rounds as there should be",
            )

    def check_params(self) -> None:
        super().check_params()
        if not isinstance(self.model, Layered):
            raise UsageError.of(self, "model", self.model, "must be a model of so.nn")


def _so_far(watched: list[list[float]]) -> list[list[float]]:
    """The means over all rounds up to each."""
    sums = np.cumsum(watched, axis=0)
    means: list[list[float]] = (sums / np.arange(1, len(watched) + 1)[:, None]).tolist()
    return means


def worse_twice(watched: list[list[float]]) -> bool:
    """Whether accuracy fell and loss rose in each of the last two rounds."""
    if len(watched) < 3:
        return False
    (a, la), (b, lb), (c, lc) = watched[-3:]
    return a > b > c and la < lb < lc
