"""SplitNN: one network whose lower parts lie with those who hold the columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from solera.core.component import describe
from solera.core.constraints import Count, NonNegative, Positive, ProperFraction
from solera.core.errors import DataError, UsageError
from solera.core.schema import Schema
from solera.learn.averaging.models import MLP, Registered, described, registration_needed
from solera.learn.averaging.training.devices import torch
from solera.learn.vertical import split_tasks as tasks
from solera.learn.vertical.base import VerticalLearner
from solera.learn.vertical.encoding import encoded_width
from solera.learn.vertical.parties import Parties
from solera.learn.vertical.party import SharedPart

MOST_STEPS = 10_000_000
_PREDICTIONS = 1 << 30
"""The round of asks to predict, beyond those of all batches."""


class SplitNN(VerticalLearner):
    """A neural network split among parties (Gupta & Raskar 2018; Vepakomma et al. 2018).

    Every party sends what its bottom network f_k makes of its own columns; the label owner's top
    network g makes the prediction, and sends the gradients of the loss back:

        ŷ = g(f_1(x_1) ∥ … ∥ f_K(x_K)),   ∂L/∂w_k = (∂L/∂f_k) (∂f_k/∂w_k)

    With the same first weights it learns what the whole network would learn on joined rows. Several
    label owners may each know the labels of some rows (Multi-VFL, Mugunthan et al. 2021): each has
    a top network, and after every epoch these are averaged by the rows they know.

    Parameters
    ----------
    bottoms: the network of every party, by name or in their order: ``so.nn.mlp(…)`` or, in
        simulation, any ``nn.Module``; None for a party that only holds labels. A number: one
        hidden layer of twice as many units and so many outputs for each.
    top: the network of the label owner; by default one hidden layer of 32 units.
    epochs, batch_size: passes over the common rows, and rows per batch (None: all).
    lr, optimiser, momentum, l2: every party's optimiser.
    join: whether what the bottoms send is put side by side (``"concat"``) or added (``"sum"``).
    loss: by default cross-entropy for classes and labels, half the squared error for numbers.
    patience: stop when the loss on the validation rows has not fallen for so many epochs, and take
        the best weights back; needs ``validation=``.
    standardise: every party standardises its own numeric columns, which fills missing numbers with
        the mean. Categories become marks in any case.
    clip, noise: the largest norm of what is sent of a row, and the standard deviation of Gaussian
        noise on each of its numbers. ``gradient_noise``: the same on gradients.
    dtype: ``"float32"`` or ``"float64"``.
    labels, align, normalise, validation, test, deadline: see :class:`VerticalLearner`.

    What each one sees
    ------------------
    ============  ==============================================================================
    coordinator   who takes part, names and kinds of columns, how many rows are common, batch
                  numbers, the mean loss of an epoch, the distance correlation that every party
                  reports, and sealed bytes
    label owner   what each bottom network sends of every row (clipped and with noise, if so);
                  from it rows can be approximated the better, the higher the distance correlation
    other party   the gradient of every row it sent, from which labels can be guessed (Li et al.
                  2021) unless there is ``gradient_noise``
    ============  ==============================================================================

    ``noise`` is drawn anew in every epoch, so an honest but curious label owner takes means: of
    three columns sent through four outputs with ``noise=2``, 39 % of the variance is read out of
    the last of 200 epochs, and 72 % out of the mean of all. It is no differential privacy.

    ``history_`` has the loss of every epoch and, for each party, the distance correlation between
    its columns and what it sends, of up to 256 rows.
    """

    several_owners = True

    def __init__(
        self,
        bottoms: Any = 16,
        top: Any = None,
        *,
        epochs: Count = 10,
        batch_size: Count | None = 32,
        lr: Positive = 0.05,
        optimiser: Literal["sgd", "adam"] = "sgd",
        momentum: ProperFraction = 0.0,
        l2: NonNegative = 0.0,
        join: Literal["concat", "sum"] = "concat",
        loss: str | None = None,
        patience: Count | None = None,
        standardise: bool = True,
        clip: Positive | None = None,
        noise: NonNegative = 0.0,
        gradient_noise: NonNegative = 0.0,
        dtype: Literal["float32", "float64"] = "float32",
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.bottoms = bottoms
        self.top = top
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.optimiser = optimiser
        self.momentum = momentum
        self.l2 = l2
        self.join = join
        self.loss = loss
        self.patience = patience
        self.standardise = standardise
        self.clip = clip
        self.noise = noise
        self.gradient_noise = gradient_noise
        self.dtype = dtype

    def check_params(self) -> None:
        super().check_params()
        if self.patience is not None and not self.validation:
            raise UsageError.of(
                self, "patience", self.patience, "needs validation rows", hint="validation=0.1"
            )

    def described_params(self) -> dict[str, Any]:
        given = self.bottoms
        if isinstance(given, Mapping):
            bottoms: Any = {name: _network(net) for name, net in given.items()}
        elif isinstance(given, Sequence):
            bottoms = [_network(net) for net in given]
        else:
            bottoms = given if isinstance(given, int) else _network(given)
        return {**super().described_params(), "bottoms": bottoms, "top": _network(self.top)}

    def needs_to_load(self) -> list[str]:
        networks = [*self._bottoms(), self._top()]
        return [
            n for net in networks if isinstance(net, Registered) for n in registration_needed(net)
        ]

    # --- who has which network ---

    def check_parties(self, views: Sequence[Schema]) -> None:
        self.widths_ = [encoded_width(view) for view in views]
        target = views[self.owners_[0]]
        self.outputs_ = _outputs_of(target)
        outputs, t = [], torch()
        for name, width, bottom in zip(self.parties_, self.widths_, self._bottoms(), strict=True):
            if bottom is not None:
                zeros = t.zeros(2, width)
                outputs.append(_shape(bottom, zeros, f"the bottom network of {name}", width))
        if not outputs:
            raise UsageError("SplitNN: no party has a bottom network")
        if self.join == "sum" and len(set(outputs)) > 1:
            raise UsageError(f"SplitNN(join='sum'): bottom networks have {outputs} outputs")
        joined = sum(outputs) if self.join == "concat" else outputs[0]
        self.joined_ = joined
        found = _shape(self._top(), t.zeros(2, joined), "the top network", joined)
        binary = found == 1 and target.target == "classes" and self.outputs_ == 2
        if found != self.outputs_ and not binary:
            raise DataError(
                f"the top network has {found} outputs, the target needs {self.outputs_}",
                hint="one for each class, label or number",
            )
        self.loss_ = self.loss or _loss_for(target.target, binary)

    def _bottoms(self) -> list[Any]:
        """The network of every party, or None."""
        given = self.bottoms
        if isinstance(given, int):
            return [MLP(width, 2 * given, given) for width in self.widths_]
        if isinstance(given, Mapping):
            unknown = [name for name in given if name not in self.parties_]
            if unknown:
                raise UsageError(
                    f"SplitNN(bottoms=…): there is no party {unknown[0]!r}",
                    hint=f"there are {', '.join(self.parties_)}",
                )
            given = [given.get(name) for name in self.parties_]
        if not isinstance(given, Sequence) or len(given) != len(self.parties_):
            many = len(given) if isinstance(given, Sequence) else 1
            raise UsageError(
                f"SplitNN has {many} bottom networks for {len(self.parties_)} parties",
                hint="give one for each, or a number of outputs",
            )
        return [_network(net) for net in given]

    def _top(self) -> Any:
        return MLP(self.joined_, 32, self.outputs_) if self.top is None else _network(self.top)

    # --- the protocol ---

    def train_parties(self, parties: Parties) -> None:
        self._start_parties(parties)
        rows = (
            self.rows_
            - math.floor(self.rows_ * self.test)
            - math.floor(self.rows_ * self.validation)
        )
        steps = 1 if self.batch_size is None else math.ceil(rows / self.batch_size)
        for r in self.each_round(parties.federation, rounds=self.epochs):
            self._epoch(parties, r, steps)
        if self.patience is not None:
            parties.ask(tasks.keep, {"model": self.model_, "what": "restore"})

    def _start_parties(self, parties: Parties) -> None:
        bottoms = [None if net is None else describe(net) for net in self._bottoms()]
        self.feeders_ = [k for k, net in enumerate(bottoms) if net is not None]
        asked = {
            "model": self.model_,
            "classes": self.schema_.classes,
            "standardise": self.standardise,
            "training": self._training(),
            "feeders": [parties.numbers[k] for k in self.feeders_],
            "owners": [parties.numbers[k] for k in self.owners_],
        }
        top = describe(self._top())
        own = {
            k: {"bottom": bottoms[k], "top": top if k in self.owners_ else None}
            for k in range(len(parties))
        }
        parties.ask(tasks.start, asked, own=own)

    def _training(self) -> dict[str, Any]:
        names = ("optimiser", "batch_size", "join", "dtype")
        numbers = ("lr", "momentum", "l2", "noise", "gradient_noise")
        return {
            **{name: getattr(self, name) for name in names},
            **{name: float(getattr(self, name)) for name in numbers},
            "clip": None if self.clip is None else float(self.clip),
            "loss": self.loss_,
        }

    def _epoch(self, parties: Parties, r: Any, steps: int) -> None:
        """All batches of an epoch, then what is told of it."""
        first = r.index * steps
        ask = r.index * (steps + 1)  # one more: the last batch's way back
        told: dict[int, Any] = {}
        for step in range(first, first + steps + 1):
            forward = step if step < first + steps else None
            back = step - 1 if step > first else None
            payload = {"model": self.model_, "forward": forward, "back": back, "steps": steps}
            told = parties.ask(tasks.bottom, payload, to=self.feeders_, round=ask)
            if forward is not None:
                payload = {"model": self.model_, "step": step, "steps": steps}
                parties.ask(tasks.top, payload, to=self.owners_, round=ask)
            ask += 1
        if len(self.owners_) > 1:
            parties.ask(tasks.share, {"model": self.model_}, to=self.owners_, round=r.index)
            parties.ask(tasks.average, {"model": self.model_}, to=self.owners_, round=r.index)
        sums = parties.ask(tasks.epoch, {"model": self.model_}, to=self.owners_)
        r.log(loss=_mean(sums))
        for k, reply in told.items():
            r.log(**{f"dcor_{self.parties_[k]}": float(reply["distance_correlation"])})
        if self.validation:
            self._validate(parties, r)

    def _validate(self, parties: Parties, r: Any) -> None:
        loss = _mean(self._answers(parties, "validation", r.index))
        r.log(validation_loss=loss)
        if self.patience is None:
            return
        best = getattr(self, "best_", None)
        if best is None or loss < best["loss"]:
            self.best_ = {"loss": loss, "epoch": r.index}
            parties.ask(tasks.keep, {"model": self.model_, "what": "keep"})
        elif r.index - best["epoch"] >= self.patience:
            r.stop(f"the validation loss has not fallen for {self.patience} epochs")

    def predict_parties(self, parties: Parties, part: SharedPart) -> None:
        self._answers(parties, part, _PREDICTIONS)

    def _answers(self, parties: Parties, part: SharedPart, round: int) -> dict[int, Any]:
        asked = {"model": self.model_, "part": part}
        parties.ask(tasks.say, asked, to=self.feeders_, round=round)
        return parties.ask(tasks.answer, asked, to=self.owners_, round=round)

    # --- what is asked ---


def _network(net: Any) -> Any:
    return None if net is None else described(net)


def _outputs_of(schema: Schema) -> int:
    return len(schema.classes) if schema.target == "classes" else schema.outputs


def _loss_for(target: str, binary: bool) -> str:
    if target == "classes":
        return "binary" if binary else "softmax"
    return "sigmoid" if target == "labels" else "squared"


def _shape(net: Any, zeros: Any, what: str, width: int) -> int:
    """The outputs of a network, tried out; a wrong number of inputs is named here."""
    t = torch()
    module = net.module().eval()
    dtype = next((p.dtype for p in module.parameters()), t.float32)
    try:
        with t.no_grad():
            said = module(zeros.to(dtype))
    except (RuntimeError, ValueError, TypeError) as error:
        raise DataError(
            f"{what} does not take rows of {width} columns: {str(error).splitlines()[0]}",
            hint="categories count as one column each",
        ) from None
    return int(said.flatten(1).shape[1])


def _mean(sums: Mapping[int, Any]) -> float:
    rows = sum(reply["rows"] for reply in sums.values())
    return sum(reply["loss"] for reply in sums.values()) / rows if rows else float("nan")
