"""FedAvg: neural networks by federated averaging (McMahan et al. 2017, Algorithm 1).

Every round the chosen clients start from the global model, train on their own rows and send what
changed; the coordinator moves the model by the weighted mean:

    w_k ← w, then w_k ← w_k − η ∇L_k(w_k) per batch,      w ← w + η_s Σ_k n_k (w_k − w) / Σ_k n_k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import Array, BoolArray, FloatArray
from solera.core.component import describe
from solera.core.constraints import Count, NonNegative, Positive, ProperFraction
from solera.core.errors import Refusal, UsageError
from solera.core.federation import Federation
from solera.core.replies import Stacked
from solera.core.selection import Selector
from solera.data.frames import encode_target
from solera.learn.averaging.base import Entries, ScoreAveraging
from solera.learn.averaging.models import (
    ImageModel,
    Model,
    Registered,
    described,
    described_loss,
    registration_needed,
)
from solera.learn.averaging.predicting import outputs_of
from solera.learn.averaging.private_rounds import check_dp
from solera.learn.averaging.private_updates import steps_of
from solera.learn.averaging.schedules import Schedule
from solera.learn.averaging.training.architecture import Architecture, architecture_of
from solera.learn.averaging.training.devices import check_precision, find_device, torch
from solera.learn.averaging.training.local_training import LocalTraining, training_task
from solera.learn.averaging.training.losses import OUR_LOSSES, row_losses, targets_of
from solera.learn.averaging.training.optimisers import OURS, optimiser_name
from solera.learn.averaging.training.trial import check_network
from solera.learn.averaging.training.validation import mean_losses
from solera.learn.averaging.update_averaging import UNTRAINED, UpdateAveraging
from solera.learn.averaging.update_mean import UpdateMean
from solera.learn.averaging.updates import UpdateStep, check_steps
from solera.learn.client_models import LABELS, PRIVATE
from solera.privacy.dp.mechanism import DP
from solera.robust.rules import Rule

Precision = Literal["float32", "tf32", "bfloat16"]


@training_task("averaging.train")
def train_and_send(local: LocalTraining) -> Stacked:
    """Train from the model that was sent, keep what is private, send what changed."""
    return local.update()


class FedAvg(UpdateAveraging, ScoreAveraging):
    """Federated averaging of any network.

    Parameters
    ----------
    model: what is trained, for example ``so.nn.mlp(64, 100, 10)``; in simulation any
        ``nn.Module``.
    rounds, per_round, select: how often clients are asked, how many at a time, and who.
    lr, optimiser, momentum, l2: the clients' optimiser (fresh in every round), its step size,
        momentum and weight decay: ``"sgd"``, ``"adam"``, any class of ``torch.optim`` or its name,
        or a function of parameters and ``lr=`` that makes one. ``optimizer=`` is the same.
    epochs, local_steps, batch_size: passes of a client over its rows, or instead a number of
        batches; rows per batch (None: all).
    shuffle: whether every pass takes the rows in a new order, or in the one they lie in.
    schedule: how ``lr`` changes from round to round.
    loss: by default the cross-entropy of a softmax for classes (of one sigmoid, for two
        classes and a model with one output), the mean over labels of the
        cross-entropy of a sigmoid for labels, half the squared error for numbers; or the name of a
        registered loss; in simulation a loss of ``torch.nn``, or a function (outputs, target) →
        one number per row. Classes come to it as indices into ``classes_``; its mean is taken over
        rows, whatever their weights.
    weight: ``"rows"``, ``None`` for equal weights, or a function from a reply, a dict with ``rows``
        and ``loss``, to its weight.
    server_lr: the coordinator's step size η_s.
    send: ``"difference"`` to the global model, or ``"weights"``.
    update_steps: what happens to updates on their way, for example
        ``[so.updates.Clip(1.0), so.updates.TopK(0.05)]``.
    dp: None, or :class:`so.DP <solera.privacy.dp.mechanism.DP>`: updates are clipped and noised,
        and ``history_`` says the ε that is spent. Needs equal weights, and tells no loss.
    aggregate: None for the mean, or a rule for clients that may lie, such as
        ``so.robust.Krum(f=2)``; then every client has one vote, whatever ``weight`` says.
    dtype: ``"float32"`` or ``"float64"``.
    device: where simulated clients are trained; by default a GPU where there is one.
    precision: of products on a GPU. ``"float32"``; ``"tf32"``, with tensor cores that see 10 bits
        of a mantissa; ``"bfloat16"``, with rows and what becomes of them in 16 bits, 7 of a
        mantissa. Parameters are ``dtype`` always.
    compile: translate the steps of a GPU with ``torch.compile``, which takes up to a minute once.

    Attributes
    ----------
    weights_: all parameters as one vector, in the order and the shapes of the network's
        ``state_dict``; :meth:`module` gives them as a network.
    """

    update = train_and_send
    aliases: ClassVar[Mapping[str, str]] = {"optimizer": "optimiser"}
    labels_: Array
    """Which labels this client has learned, where it has not seen all."""
    thresholds_: FloatArray
    """Beyond which outputs this client's labels are present, where it chose them."""

    def __init__(
        self,
        model: Any,
        *,
        rounds: int = 50,
        per_round: int | None = None,
        select: Selector | None = None,
        lr: Positive = 0.1,
        optimiser: Any = "sgd",
        momentum: ProperFraction = 0.0,
        l2: NonNegative = 0.0,
        epochs: Count = 1,
        local_steps: Count | None = None,
        batch_size: Count | None = 32,
        shuffle: bool = True,
        schedule: Schedule | None = None,
        loss: Any = None,
        weight: Any = "rows",
        server_lr: Positive = 1.0,
        send: Literal["difference", "weights"] = "difference",
        update_steps: Sequence[UpdateStep] = (),
        dp: DP | None = None,
        aggregate: Rule | None = None,
        dtype: Literal["float32", "float64"] = "float32",
        device: str | None = None,
        precision: Precision = "float32",
        compile: bool = False,
    ) -> None:
        self.model = model
        self.rounds = rounds
        self.per_round = per_round
        self.select = select
        self.lr = lr
        self.optimiser = optimiser
        self.momentum = momentum
        self.l2 = l2
        self.epochs = epochs
        self.local_steps = local_steps
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.schedule = schedule
        self.loss = loss
        self.weight = weight
        self.server_lr = server_lr
        self.send = send
        self.update_steps = update_steps
        self.dp = dp
        self.aggregate = aggregate
        self.dtype = dtype
        self.device = device
        self.precision = precision
        self.compile = compile

    # --- the loop of Averaging ---

    def reset(self) -> None:
        super().reset()
        for name in list(vars(self)):
            if isinstance(getattr(type(self), name, None), cached_property):
                delattr(self, name)  # left from an earlier fit

    def begin(self, federation: Federation) -> None:
        if self.device is not None or self.compile or self.precision != "float32":
            check_precision(self.precision, self.compile, find_device(self.device))
        if self.compile and self._architecture.draws:
            raise UsageError("compile=True: dropout draws on the CPU", hint="compile=False")
        super().begin(federation)

    @property
    def keeps_shape(self) -> bool:
        network = described(self.model)
        return isinstance(network, Registered | ImageModel)

    def first_model(self, seed: int) -> Entries:
        self._architecture.check(self.schema_.width, self.schema_.outputs)
        check_network(self._architecture, self.schema_, self._loss, self.dtype)
        return {"weights": self._architecture.start(seed, self.dtype)}

    def get_model(self) -> Entries:
        return {"weights": self.weights_}

    def set_model(self, model: Entries) -> None:
        self.weights_ = model["weights"]

    def round_config(self, round: int) -> Entries:
        return {
            "model": self._description,
            "classes": self.schema_.classes,
            "training": self._training(round),
            "private": self._private,
            "send": self.send,
            "steps": describe(list(self.update_steps)),
            "device": self.device,
        }

    def round_aggregation(self) -> Aggregation:
        entries = ["rows", "loss"]
        if self.dp is not None:  # what is told without noise would not be private
            entries = ["rows"] if self.dp.adaptive is None else ["rows", "below"]
        return UpdateMean(
            self._shared_size,
            steps=self.update_steps,
            weight=self.weighting,
            entries=entries,
            largest=self.largest_update(),
        )

    def round_origin(self) -> Entries | None:
        return {"update": self._shared_weights} if self.send == "weights" else None

    @property
    def _noised_steps(self) -> int:
        if self.dp is None or self.dp.rate is None:
            return 1
        return steps_of({"steps": self.local_steps, "epochs": self.epochs}, self.dp.rate)

    def _check_private(self) -> None:
        """Raise :class:`UsageError` for a network that noise cannot make private."""
        assert self.dp is not None
        if self._private and self.dp.level == "record":
            raise UsageError.of(
                self.dp, "level", "record", "must be 'client' where a part stays with the clients"
            )
        mixing = self._architecture.mixes_rows
        if mixing:
            raise UsageError(
                f"{type(self).__name__}(dp=…): {mixing} keeps statistics of rows, which would "
                "leave without noise",
                hint="a network without batch normalisation",
            )

    def _training(self, round: int) -> Entries:
        scale = 1.0 if self.schedule is None else self.schedule.scale(round, self.rounds)
        return {
            "loss": self._loss,
            "lr": float(self.lr) * scale,
            "optimiser": optimiser_name(self.optimiser),
            "momentum": float(self.momentum),
            "l2": float(self.l2),
            "epochs": self.epochs,
            "steps": self.local_steps,
            "batch_size": self.batch_size,
            **({} if self.precision == "float32" else {"precision": self.precision}),
            **({"compile": True} if self.compile else {}),
            **({} if self.shuffle else {"shuffle": False}),
        }

    # --- the model ---

    def with_part(self, part: Mapping[str, Any] | None, owner: str = "") -> Self:
        if self._hidden is None:
            return self
        if part is None:
            kind = type(self).__name__
            raise UsageError(f"{kind} trains no common head", hint="model.at(client) has its own")
        if PRIVATE not in part:
            raise Refusal(UNTRAINED)
        weights = self.weights_.copy()
        weights[self._hidden] = part[PRIVATE]
        model = self._with(weights, owner)
        if LABELS in part and self._hidden[-self.schema_.outputs :].all():
            model.labels_ = np.asarray(part[LABELS])
        return model

    def module(self) -> Any:
        """The trained network as a PyTorch module."""
        self.check_fitted()
        self.check_common()
        return self._architecture.load(self.weights_).eval()

    def decision_function(self, X: Any) -> Array:
        X = self.check_rows(X)
        self.check_common()
        return outputs_of(self._architecture, self.weights_, X, self.device)

    def losses(self, X: Any, y: Any) -> FloatArray:
        """The loss of every row that training minimises."""
        y = encode_target(y, self.schema_)
        outputs = torch().from_numpy(self.decision_function(X))
        target = targets_of(y, self._loss, self.schema_.classes, self.weights_.dtype)
        losses = row_losses(outputs, torch().from_numpy(target), self._loss)
        return np.asarray(losses.numpy(), dtype=np.float64)

    def losses_of(self, models: Sequence[Entries], X: Any, y: Any) -> FloatArray:
        self.common()
        architecture = self._architecture
        if not architecture.dense or hasattr(X, "tocsr"):
            return super().losses_of(models, X, y)  # stacked convolutions are slower
        weights = np.stack([model["weights"] for model in models])
        target = targets_of(y, self._loss, self.schema_.classes, weights.dtype)
        return mean_losses(
            architecture, weights, self.check_rows(X), target, self._loss, self.device
        )

    def for_prediction(self) -> Self:
        model = self.clone()
        for name in ("schema_", "weights_", "owner_", "labels_", "thresholds_"):
            if name in vars(self):
                setattr(model, name, getattr(self, name))
        return model

    def needs_to_load(self) -> list[str]:
        network = self._network()
        return registration_needed(network) if isinstance(network, Registered) else []

    def described_params(self) -> dict[str, Any]:
        return {
            **super().described_params(),
            "model": described(self.model),
            "loss": described_loss(self.loss),
            "optimiser": optimiser_name(self.optimiser),
        }

    def check_params(self) -> None:
        super().check_params()
        if self.weight not in ("rows", None) and not callable(self.weight):
            rule = "must be 'rows', None or a function"
            raise UsageError.of(self, "weight", self.weight, rule)
        check_steps(self.update_steps)
        name = optimiser_name(self.optimiser)
        if self.dp is not None and self.dp.level == "record" and name not in OURS:
            raise UsageError.of(self, "optimiser", self.optimiser, f"must be one of {OURS}")
        if self.update_steps and self.send == "weights":
            raise UsageError("update_steps work on differences", hint="use send='difference'")
        if self.dp is not None:
            self._check_dp(self.dp)

    def why_not_closed(self) -> str | None:
        if callable(self.weight):
            return "a function weighs updates, which is code; weight='rows' or None"
        if self._model_is_code:
            return "a network of one's own is code; a model of so.nn"
        if self.loss is not None and self.loss not in OUR_LOSSES:
            return f"a loss of one's own is code; loss=None, or one of {', '.join(OUR_LOSSES)}"
        if self.optimiser not in OURS:
            return "an optimiser of PyTorch or of one's own is code; optimiser='sgd' or 'adam'"
        if self.dp is not None and self._noised_steps > 1:
            return "its sum is noised once a round, and so takes one step; local_steps=1"
        return super().why_not_closed()

    @property
    def _model_is_code(self) -> bool:
        return not isinstance(self.model, Model) or isinstance(self.model, Registered)

    def _check_dp(self, dp: DP) -> None:
        if self.update.spends is None:
            raise UsageError(
                f"{type(self).__name__} sends more than an update, which dp= does not protect",
                hint="FedAvg, FedProx and all others whose clients send an update alone take dp=",
            )
        if dp.level == "record" and self.update is not train_and_send:
            raise UsageError.of(
                dp, "level", dp.level, f"must be 'client' for {type(self).__name__}"
            )
        check_dp(self, dp)

    # --- the same in all rounds of a fit ---

    def _network(self) -> Model:
        """What clients build and train."""
        network = described(self.model)
        if isinstance(network, Registered) and self.schema_.shape:
            return Registered(network.name, network.params, shape=list(self.schema_.shape))
        return network

    @cached_property
    def _description(self) -> Any:
        return describe(self._network())

    @cached_property
    def _architecture(self) -> Architecture:
        return architecture_of(self._description)

    @cached_property
    def _private(self) -> list[str]:
        """Names of the parameters that stay with the clients."""
        return []

    @cached_property
    def _hidden(self) -> BoolArray | None:
        """Marks these parameters, if there are any."""
        return self._architecture.layout.select(self._private) if self._private else None

    @cached_property
    def _shared_size(self) -> int:
        """How many numbers an update has."""
        private = 0 if self._hidden is None else int(self._hidden.sum())
        return self._architecture.layout.size - private

    @cached_property
    def _loss(self) -> str:
        if self.loss is not None:
            return described_loss(self.loss) or ""
        default = self.loss_of_target()
        two = default == "softmax" and len(self.schema_.classes) == 2
        return "binary" if two and self._architecture.outputs == 1 else default
