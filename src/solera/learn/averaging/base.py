"""What learners share whose model is the mean of the clients' models."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from solera.core.aggregation import Aggregation, Mean, length
from solera.core.clients import Array, FloatArray
from solera.core.errors import CannotForget, DataError, NotEnoughReplies, UsageError
from solera.core.federation import Federation
from solera.core.rounds import Round
from solera.core.schema import UNKNOWN
from solera.core.selection import Selector
from solera.core.task import Task
from solera.engines.kept import KeepingEngine
from solera.learn.base import Predictor
from solera.learn.probabilities import sigmoid, softmax
from solera.learn.unlearning import (
    GoOn,
    KeepingRounds,
    check_can_keep,
    first_part,
    keep_earlier,
)
from solera.learn.warm_start import continued_model
from solera.privacy.dp.mechanism import DP
from solera.robust.buckets import Buckets
from solera.robust.collect import Robust
from solera.robust.rules import Rule

log = logging.getLogger("solera")

HUGE = 1e9
"""An update so many times as long as the model (or as 1) is no result of training."""
Entries = Mapping[str, Any]
"""What a model, an ask or a reply holds, by name."""


class Averaging(Predictor, abstract=True):
    """A learner whose model is the mean of what clients make of it, round after round.

    The model is a dict of arrays. A subclass says how it starts, what clients are asked, and how it
    is read from and written to the learner's attributes; the loop is the same for all
    (McMahan et al. 2017).
    """

    can_start = True
    rounds: int
    per_round: int | None
    select: Selector | None
    aggregate: Rule | None
    """What takes the place of the mean where clients may lie."""
    dp: DP | None = None
    update: ClassVar[Task]
    """The task that turns the global model into a client's; replies have ``rows`` and ``loss``."""

    @property
    def sends_updates(self) -> bool:
        return True

    def check_params(self) -> None:
        super().check_params()
        if self.dp is not None and self.aggregate is not None:
            raise UsageError(
                "dp= counts the noise of a mean; what a rule in its place tells is not counted",
                hint="leave aggregate= or dp= out",
            )

    @abstractmethod
    def first_model(self, seed: int) -> Entries:
        """The model before the first round."""

    @abstractmethod
    def get_model(self) -> Entries:
        """The current model."""

    @abstractmethod
    def set_model(self, model: Entries) -> None:
        """Make this the current model."""

    @abstractmethod
    def round_config(self, round: int) -> Entries:
        """What clients are asked with in this round besides the model."""

    def round_ask(self, round: int) -> Entries:
        """All that clients are asked with in this round."""
        return {**self.round_config(round), **self.get_model()}

    def round_aggregation(self) -> Aggregation:
        """The mean that the clients' replies become where all of them are honest."""
        return Mean(weight="rows", largest=self.largest_update())

    def largest_update(self) -> float:
        """The norm beyond which an update, or a client's model, is no result of training."""
        return HUGE * (1 + length(self.get_model()))

    def round_origin(self) -> Entries | None:
        """What is to be subtracted from replies to see how they change the model, if anything."""
        return self.get_model()

    def folding(self) -> Aggregation:
        """How the clients' replies become one: their mean, or what ``aggregate`` says."""
        mean = self.round_aggregation()
        if self.aggregate is None or isinstance(self.aggregate, Buckets):
            return mean
        return Robust(mean, self.aggregate, self.round_origin())

    def fold_round(self, round: Round) -> Entries:
        """Ask the clients of a round and fold their replies."""
        try:
            return self._folded(round)
        except NotEnoughReplies as silence:
            if not any(f.kind == "invalid" or "diverged" in f.reason for f in silence.failures):
                raise
            why = diverged(f"in round {round.index}", getattr(self, "lr", np.nan))
            text = f"{why.message}: {silence.message}"
            raise NotEnoughReplies(text, silence.failures, hint=why.hint) from silence

    def _folded(self, round: Round) -> Entries:
        ask, folding = self.round_ask(round.index), self.folding()
        if not isinstance(self.aggregate, Buckets):
            mean = round.ask(self.update, ask).fold(folding)
        else:
            buckets = self.aggregate.deal(round.clients, round.federation.seed, round.index)
            asked = [round.ask(self.update, ask, to=b, quorum=0).partial(folding) for b in buckets]
            mean = self.aggregate.fold(asked, folding, self.round_origin())
        if mean.get("judged"):
            round.log(down_weighted=mean["judged"])
        return dict(mean)

    def apply_update(self, mean: Entries) -> None:
        """Change the model by the folded replies of one round; their arrays may be written to."""
        self.set_model(mean)

    def workload(self) -> tuple[int, float]:
        arrays = [np.asarray(value) for value in self.get_model().values()]
        return 8 * sum(array.nbytes for array in arrays), float(getattr(self, "epochs", 1))

    def losses_of(self, models: Sequence[Entries], X: Any, y: Any) -> FloatArray:
        """The mean loss over rows of every model."""
        current, means = self.get_model(), []
        for model in models:
            self.set_model(model)
            means.append(self.losses(X, y).mean())
        self.set_model(current)
        return np.array(means)

    def begin(self, federation: Federation) -> None:
        """What comes before the first round."""
        self.round_config(0)  # what does not suit the data is named before anything is asked
        model = self.first_model(federation.seed)
        if self._start is not None:
            if not isinstance(self._start, Averaging) or not self._alike(self._start):
                raise UsageError(f"{type(self).__name__} cannot start from {self._start!r}")
            model = continued_model(self, model, self._start.get_model())
        self.set_model(model)

    def _alike(self, start: Averaging) -> bool:
        """Whether both train the same network, if any."""
        return bool(getattr(self, "model", None) == getattr(start, "model", None))

    def after_round(self, round: Round) -> None:
        """What comes after every round; nothing unless a subclass says so."""

    def after_rounds(self, federation: Federation) -> None:
        """What comes after the last round; nothing unless a subclass says so."""

    def account(self, round: Round, mean: Entries) -> None:
        """Log what the folded replies of a round say besides the model."""
        round.log(loss=float(mean["loss"]))

    def chooser(self) -> Selector | None:
        """Who chooses the clients of a round."""
        return self.select

    def _keeping(self, federation: Federation) -> KeepingEngine:
        check_can_keep(federation)
        return KeepingRounds(federation, self.update)

    def _forget(
        self, client: int | str, kept: Any, federation: Federation | None, progress: bool | None
    ) -> bool:
        """Go on from the last round before the client took part, without it: not exact."""
        if federation is None:
            raise CannotForget(
                f"{type(self).__name__} learns in rounds: the others must train again",
                hint="give the federation as well: model.forget(client, federation)",
            )
        if kept is None:
            return super()._forget(client, kept, federation, progress)
        rest = self._rest(client, kept, federation)
        first, state = first_part(kept, federation.find_client(client))
        at = len(self.history_) if first is None else first
        log.warning(
            "client %s is forgotten by training again from round %d on; this is not exact: who "
            "took part before depended on who was there",
            client,
            at,
        )
        if first is not None:
            begin = None if state is None else GoOn(state)
            self.fit(rest, checkpoint=begin, progress=progress, keep=True)
            assert self._kept is not None
            keep_earlier(self._kept, kept, at)
        self._forgotten(rest)
        return False

    def train(self, federation: Federation) -> None:
        self.begin(federation)
        rounds = self.each_round(
            federation, rounds=self.rounds, per_round=self.per_round, select=self.chooser()
        )
        for r in rounds:
            mean = self.fold_round(r)
            self.apply_update(mean)
            self.account(r, mean)
            self.after_round(r)
        self.after_rounds(federation)


class ScoreAveraging(Averaging, abstract=True):
    """An averaging learner whose model gives scores, from which all predictions follow."""

    @abstractmethod
    def decision_function(self, X: Any) -> Array:
        """Scores before softmax or sigmoid: one column per class, label or number."""

    def predict_proba(self, X: Any) -> Array:
        """Probability of every class or label."""
        self.check_has_classes()
        z = self.decision_function(X)
        if self.schema_.target == "labels":
            return np.where(vars(self).get("labels_", True), sigmoid(z), np.nan)
        if z.shape[1] == 1:  # two classes, one output
            z = np.concatenate([np.zeros_like(z), z], axis=1)
        return softmax(z)

    def predict(self, X: Any) -> Array:
        self.check_fitted()
        if self.schema_.target == "classes":
            return np.asarray(self.schema_.classes[self.predict_proba(X).argmax(axis=1)])
        z = self.decision_function(X)
        if self.schema_.target == "labels":
            present = z > vars(self).get("thresholds_", 0.0)
            is_learned = vars(self).get("labels_", True)
            return np.where(is_learned, present, UNKNOWN).astype(np.int8)
        return z[:, 0] if self.schema_.outputs == 1 else z

    def loss_of_target(self) -> str:
        """The loss that goes with the target."""
        target, classes = self.schema_.target, self.schema_.classes
        if target == "classes" and len(classes) < 2:
            raise DataError(
                f"all rows of all clients are of one class, {classes.tolist()}",
                hint="a classifier needs at least two classes",
            )
        return {"classes": "softmax", "labels": "sigmoid", "numbers": "squared"}[target]


def diverged(where: str, lr: float) -> DataError:
    """The error for training that did not end in finite numbers."""
    return DataError(
        f"training diverged {where} with lr={lr:g}",
        hint="lower lr, or scale the features, so.Pipeline(so.FedScaler(), …), and a target of "
        "numbers, (y - y.mean()) / y.std()",
    )
