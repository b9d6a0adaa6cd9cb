"""FedAvg: neural networks by federated averaging (McMahan et al. 2017, Algorithm 1).

Every round the chosen clients start from the global model, train on their own rows and send what
changed; the coordinator moves the model by the weighted mean:

    w_k ← w, then w_k ← w_k − η ∇L_k(w_k) per batch,      w ← w + η_s Σ_k n_k (w_k − w) / Σ_k n_k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from solera.core.aggregation import Aggregation
from solera.core.component import describe
from solera.core.errors import DataError, UsageError
from solera.core.replies import Stacked
from solera.core.schema import Schema
from solera.core.selection import Selector
from solera.core.task import task
from solera.learn.averaged import Averaging
from solera.learn.averaging.judging import mean_losses
from solera.learn.averaging.layers import torch
from solera.learn.averaging.local import Local, one_and_many
from solera.learn.averaging.models import Model, described, described_loss
from solera.learn.averaging.networks import forward
from solera.learn.averaging.plan import OPTIMISERS, Plan, plan_of, row_losses, targets_of
from solera.learn.averaging.rows import find_device
from solera.learn.averaging.schedules import Schedule
from solera.learn.averaging.update_steps import UpdateStep
from solera.learn.averaging.updates import UpdateMean, check_steps

_PREDICTED = 1 << 27
"""Bytes of rows that are predicted at once."""


def train_and_send(local: Local) -> dict[str, Any] | Stacked:
    """Train from the model that was sent, keep what is private, send what changed."""
    return local.update()


_one, _many = one_and_many(train_and_send)
_train = task("averaging.train", many=_many)(_one)


class FedAvg(Averaging):
    """Federated averaging of any network.

    Parameters
    ----------
    model: what is trained, for example ``so.nn.mlp(64, 100, 10)``; in simulation any
        ``nn.Module``.
    rounds, per_round, select: how often clients are asked, how many at a time, and who.
    lr, optimiser, momentum, l2: the clients' optimiser, ``"sgd"`` or ``"adam"`` (fresh in every
        round), its step size, momentum and weight decay.
    epochs, local_steps, batch_size: passes of a client over its rows, or instead a number of
        batches; rows per batch (None: all).
    schedule: how ``lr`` changes from round to round.
    loss: by default the cross-entropy of a softmax for classes (of one sigmoid, for two
        classes and a model with one output), the mean over labels of the
        cross-entropy of a sigmoid for labels, half the squared error for numbers; or the name of a
        registered loss; in simulation a function (outputs, target) → one number per row.
    weight: ``"rows"``, ``None`` for equal weights, or a function from a reply, a dict with ``rows``
        and ``loss``, to its weight.
    server_lr: the coordinator's step size η_s.
    send: ``"difference"`` to the global model, or ``"weights"``.
    update_steps: what happens to updates on their way, for example
        ``[so.Clip(1.0), so.TopK(0.05)]``.
    dtype: ``"float32"`` or ``"float64"``.
    device: where simulated clients are trained; by default a GPU where there is one.

    Attributes
    ----------
    weights_: all parameters as one vector; :meth:`module` gives them as a network.
    """

    update = _train
    weights_: NDArray[Any]

    def __init__(
        self,
        model: Any,
        *,
        rounds: int = 50,
        per_round: int | None = None,
        select: Selector | None = None,
        lr: float = 0.1,
        optimiser: str = "sgd",
        momentum: float = 0.0,
        l2: float = 0.0,
        epochs: int = 1,
        local_steps: int | None = None,
        batch_size: int | None = 32,
        schedule: Schedule | None = None,
        loss: Any = None,
        weight: Any = "rows",
        server_lr: float = 1.0,
        send: str = "difference",
        update_steps: Sequence[UpdateStep] = (),
        dtype: str = "float32",
        device: str | None = None,
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
        self.schedule = schedule
        self.loss = loss
        self.weight = weight
        self.server_lr = server_lr
        self.send = send
        self.update_steps = update_steps
        self.dtype = dtype
        self.device = device

    # --- the loop of Averaging ---

    def first_model(self, seed: int) -> dict[str, Any]:
        plan = self._plan()
        plan.check(self.schema_.width, self.schema_.outputs)
        return {"weights": plan.start(seed, self.dtype)}

    def get_model(self) -> dict[str, Any]:
        return {"weights": self.weights_}

    def set_model(self, model: Mapping[str, Any]) -> None:
        self.weights_ = model["weights"]

    def order(self, round: int) -> dict[str, Any]:
        self._check_params()
        return {
            "model": describe(self._network()),
            "classes": self.schema_.classes,
            "training": self._training(round),
            "private": self._private(),
            "send": self.send,
            "steps": describe(list(self.update_steps)),
            "device": self.device,
        }

    def rule(self) -> Aggregation:
        return UpdateMean(self._shared_size(), steps=self.update_steps, weight=self.weight)

    def apply_update(self, mean: Mapping[str, Any]) -> None:
        shared: Any = ~self._hidden() if self._private() else slice(None)
        change = mean["update"]
        if self.send == "weights":
            change = change - self.weights_[shared]
        moved = self.weights_.copy()
        moved[shared] += self.server_step(change).astype(moved.dtype)
        self.weights_ = moved

    def server_step(self, change: NDArray[Any]) -> NDArray[Any]:
        """What the mean change of a round does to the model."""
        return np.asarray(self.server_lr * change)

    def _training(self, round: int) -> dict[str, Any]:
        scale = 1.0 if self.schedule is None else self.schedule.scale(round, self.rounds)
        return {
            "loss": self._loss(),
            "lr": float(self.lr) * scale,
            "optimiser": self.optimiser,
            "momentum": float(self.momentum),
            "l2": float(self.l2),
            "epochs": self.epochs,
            "steps": self.local_steps,
            "batch_size": self.batch_size,
        }

    def _private(self) -> list[str]:
        """Names of the parameters that stay with the clients."""
        return []

    def _shared_size(self) -> int:
        """How many numbers an update has."""
        return int((~self._hidden()).sum()) if self._private() else self._plan().layout.size

    def _hidden(self) -> NDArray[np.bool_]:
        return self._plan().layout.select(self._private())

    # --- the model ---

    def module(self) -> Any:
        """The trained network as a PyTorch module."""
        self.check_fitted()
        plan = self._plan()
        return plan.load(self.weights_, plan.module()).eval()

    def decision_function(self, X: Any) -> NDArray[Any]:
        """The network's outputs before softmax or sigmoid: one column per class or label."""
        X = self.check_rows(X)
        return outputs_of(self._plan(), self.weights_, X, self.device)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Probability of every class or label."""
        z = self.decision_function(X)
        if self.schema_.target == "labels":
            return np.asarray(0.5 * (1 + np.tanh(0.5 * z)))
        if self.schema_.target == "numbers":
            kind = type(self).__name__
            raise UsageError(f"{kind} was fitted to numbers, which have no probabilities")
        if z.shape[1] == 1:  # two classes, one output
            z = np.concatenate([np.zeros_like(z), z], axis=1)
        p = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> NDArray[Any]:
        z = self.decision_function(X)
        if self.schema_.target == "classes":
            best = (z[:, 0] > 0).astype(int) if z.shape[1] == 1 else z.argmax(axis=1)
            return np.asarray(self.schema_.classes[best])
        if self.schema_.target == "labels":
            return (z > 0).astype(np.uint8)
        return z[:, 0] if self.schema_.outputs == 1 else z

    def losses(self, X: Any, y: Any) -> NDArray[np.float64]:
        """The loss of every row that training minimises."""
        outputs = torch().from_numpy(self.decision_function(X))
        target = targets_of(y, self._loss(), self.schema_.classes, self.weights_.dtype)
        found = row_losses(outputs, torch().from_numpy(target), self._loss())
        return np.asarray(found.numpy(), dtype=np.float64)

    def losses_of(self, models: Sequence[Mapping[str, Any]], X: Any, y: Any) -> NDArray[np.float64]:
        plan = self._plan()
        if plan.layers is None or plan.convolves or hasattr(X, "tocsr"):
            return super().losses_of(models, X, y)  # stacked convolutions are slower
        weights = np.stack([model["weights"] for model in models])
        target = targets_of(y, self._loss(), self.schema_.classes, weights.dtype)
        return mean_losses(plan, weights, self.check_rows(X), target, self._loss(), self.device)

    def for_prediction(self) -> Self:
        model = self.clone()
        model.schema_, model.weights_ = self.schema_, self.weights_
        return model

    def described_params(self) -> dict[str, Any]:
        params = super().described_params()
        return {
            **params,
            "model": described(self.model),
            "loss": described_loss(self.loss),
        }

    def _network(self) -> Model:
        """What clients build and train."""
        return described(self.model)

    def _plan(self) -> Plan:
        return plan_of(describe(self._network()))

    def _loss(self) -> str:
        if self.loss is not None:
            return described_loss(self.loss) or ""
        default = loss_for(self, self.schema_)
        two = default == "softmax" and len(self.schema_.classes) == 2
        return "binary" if two and self._plan().outputs == 1 else default

    def _check_params(self) -> None:
        positive = ("lr", "epochs", "server_lr")
        optional = ("local_steps", "batch_size")
        for name in positive:
            if not getattr(self, name) > 0:
                raise UsageError.of(self, name, getattr(self, name), "must be > 0")
        for name in optional:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError.of(self, name, value, "must be at least 1, or None")
        if self.l2 < 0:
            raise UsageError.of(self, "l2", self.l2, "must not be negative")
        if not 0 <= self.momentum < 1:
            raise UsageError.of(self, "momentum", self.momentum, "must be in [0, 1)")
        choices: dict[str, tuple[Any, ...]] = {
            "optimiser": OPTIMISERS,
            "send": ("difference", "weights"),
            "dtype": ("float32", "float64"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                rule = f"must be {' or '.join(map(repr, known))}"
                raise UsageError.of(self, name, getattr(self, name), rule)
        if self.weight not in ("rows", None) and not callable(self.weight):
            rule = "must be 'rows', None or a function"
            raise UsageError.of(self, "weight", self.weight, rule)
        check_steps(self, self.update_steps)
        if self.update_steps and self.send == "weights":
            raise UsageError("update_steps work on differences", hint="use send='difference'")
        find_device(self.device)


def loss_for(owner: object, schema: Schema) -> str:
    """The loss that goes with a target."""
    if schema.target == "none":
        raise DataError(
            f"{type(owner).__name__} needs a target", hint="pass y to so.simulate(X, y)"
        )
    if schema.target == "classes" and len(schema.classes) < 2:
        raise DataError(
            f"all rows of all clients have the class {schema.classes.tolist()}",
            hint="a classifier needs at least two classes",
        )
    return {"classes": "softmax", "labels": "sigmoid", "numbers": "squared"}[schema.target]


def outputs_of(plan: Plan, weights: NDArray[Any], X: Any, device: str | None) -> NDArray[Any]:
    """The network's outputs for all rows, some thousands at a time."""
    t = torch()
    place = find_device(device)
    flat = t.tensor(weights).to(place)
    module = None if plan.layers is not None else plan.load(weights, plan.module()).eval().to(place)
    width = int(np.prod(X.shape[1:]))
    at_once = max(1, _PREDICTED // (width * flat.element_size()))
    found = []
    with t.no_grad():
        views = plan.layout.views(flat[None])
        for first in range(0, max(1, X.shape[0]), at_once):
            rows = X[first : first + at_once]
            rows = rows.toarray() if hasattr(rows, "toarray") else np.ascontiguousarray(rows)
            x = t.from_numpy(rows.reshape(len(rows), -1)).to(place, flat.dtype)
            z = forward(plan, views, x[None], None)[0][0] if module is None else module(x)
            found.append(z.cpu().numpy())
    return np.concatenate(found)
