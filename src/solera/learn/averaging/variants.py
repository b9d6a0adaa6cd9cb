"""Relatives of FedAvg: each is only what differs from it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import Array, FloatArray
from solera.core.constraints import NonNegative, Positive, ProperFraction
from solera.core.errors import Refusal, UsageError
from solera.core.federation import Federation
from solera.core.replies import Stacked
from solera.learn.averaging.base import Entries
from solera.learn.averaging.learner import FedAvg
from solera.learn.averaging.server_optimisers import (
    adagrad_second,
    adam_second,
    adaptive,
    momentum,
    yogi_second,
)
from solera.learn.averaging.training.batches import TrainingConfig
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.local_training import LocalTraining, training_task

_CONTROL = "control"


class FedSGD(FedAvg):
    """One gradient of all rows per round: centralised gradient descent (McMahan et al. 2017)."""

    def __init__(self, model: Any, **averaging: Any) -> None:
        super().__init__(model, **{"batch_size": None, **averaging})

    def check_params(self) -> None:
        super().check_params()
        if self.batch_size is not None or self.epochs != 1 or self.local_steps is not None:
            raise UsageError("FedSGD makes one step on all rows", hint="use so.FedAvg for more")


class FedProx(FedAvg):
    """Clients are pulled towards the global model: they minimise L_k(v) + mu/2·‖v − w‖².

    Li et al. (2020), "Federated optimization in heterogeneous networks", Algorithm 2. With mu = 0
    it is FedAvg.
    """

    def __init__(self, model: Any, *, mu: NonNegative = 0.01, **averaging: Any) -> None:
        super().__init__(model, **averaging)
        self.mu = mu

    def _training(self, round: int) -> Entries:
        return {**super()._training(round), "mu": float(self.mu)}


# --- optimisers at the coordinator ---


class FedAvgM(FedAvg):
    """Momentum at the coordinator: v ← βv + Δ, w ← w + η_s v (Hsu, Qi & Brown 2019)."""

    velocity_: Array

    def __init__(self, model: Any, *, beta: ProperFraction = 0.9, **averaging: Any) -> None:
        super().__init__(model, **averaging)
        self.beta = beta

    def server_step(self, change: Array) -> Array:
        memory = {"velocity": self.velocity_} if "velocity_" in vars(self) else {}
        self.velocity_ = momentum(change, memory, self.beta)["velocity"]
        return np.asarray(self.server_lr * self.velocity_)


class AdaptiveServer(FedAvg, abstract=True):
    """Reddi et al. (2021), "Adaptive federated optimization", Algorithm 2.

    m ← β1 m + (1 − β1) Δ, v as the subclass says, w ← w + η_s m / (√v + τ).
    """

    mean_: Array
    square_: Array

    def __init__(
        self,
        model: Any,
        *,
        server_lr: Positive = 0.01,
        beta1: ProperFraction = 0.9,
        beta2: ProperFraction = 0.99,
        tau: Positive = 1e-3,
        **averaging: Any,
    ) -> None:
        super().__init__(model, server_lr=server_lr, **averaging)
        self.beta1 = beta1
        self.beta2 = beta2
        self.tau = tau

    @abstractmethod
    def second(self, square: Array, change: Array) -> Array:
        """The next v."""

    def server_step(self, change: Array) -> Array:
        memory = {}
        if "mean_" in vars(self):
            memory = {"mean": self.mean_, "square": self.square_}
        moments = adaptive(change, memory, self.second, self.beta1, self.tau)
        self.mean_, self.square_ = moments["mean"], moments["square"]
        return np.asarray(self.server_lr * self.mean_ / (np.sqrt(self.square_) + self.tau))


class FedAdam(AdaptiveServer):
    """v ← β2 v + (1 − β2) Δ²."""

    def second(self, square: Array, change: Array) -> Array:
        return adam_second(square, change, self.beta2)


class FedYogi(AdaptiveServer):
    """v ← v − (1 − β2) Δ² sign(v − Δ²)."""

    def second(self, square: Array, change: Array) -> Array:
        return yogi_second(square, change, self.beta2)


class FedAdagrad(AdaptiveServer):
    """v ← v + Δ²."""

    def second(self, square: Array, change: Array) -> Array:
        return adagrad_second(square, change)


# --- corrections at the clients ---


@training_task("averaging.scaffold", noised=False)
def train_with_control(local: LocalTraining) -> Stacked:
    """Every step follows ∇L_k − c_k + c; afterwards c_k ← c_k − c + (w − w_k)/(τ η)."""
    trained = local.architecture.layout.trained
    if np.shape(local.ask["control"]) != (trained,):
        raise Refusal(f"the control variate has not the {trained:,} trained parameters")
    common = local.received("control")
    own = local.recall(_CONTROL, torch().zeros_like(common[None]))
    changes, losses, steps = local.changes(offset=common - own)
    taken = torch().from_numpy(steps[:, None] * local.config.lr).to(local.weights)
    moved = -common - changes[:, :trained] / taken
    local.remember(_CONTROL, own + moved)
    return local.reply(changes, losses, control=local.restore(moved).cpu().numpy())


class Scaffold(FedAvg):
    """Control variates take the drift of unlike clients out of their steps.

    Karimireddy et al. (2020), "SCAFFOLD", Algorithm 1, option II, with plain gradient descent at
    the clients. As long as all control variates are zero, as in the first round, it is FedAvg.
    """

    update = train_with_control
    control_: Array
    clients_: int

    def train(self, federation: Federation) -> None:
        self.clients_ = len(federation)
        super().train(federation)

    def first_model(self, seed: int) -> Entries:
        model = super().first_model(seed)
        self.control_ = np.zeros(self._architecture.layout.trained, self.dtype)
        return model

    def get_model(self) -> Entries:
        return {**super().get_model(), "control": self.control_}

    def round_aggregation(self) -> Aggregation:
        trained = self._architecture.layout.trained
        return super().round_aggregation().set_params(plain={"control": trained})

    def apply_update(self, mean: Entries) -> None:
        super().apply_update(mean)
        share = mean["count"] / self.clients_
        self.control_ = self.control_ + share * mean["control"]

    def check_params(self) -> None:
        super().check_params()
        if self.optimiser != "sgd" or self.momentum:
            raise UsageError("Scaffold corrects plain gradient descent", hint="optimiser='sgd'")


@training_task("averaging.nova", noised=False)
def train_and_normalise(local: LocalTraining) -> Stacked:
    """Send the change divided by the length of the way, so that long ways do not weigh more."""
    changes, losses, steps = local.changes(anchor=local.weights)
    length = path_length(steps.astype(float), local.config)
    changes /= torch().from_numpy(length[:, None]).to(changes)
    return local.reply(changes, losses, length=length)


def path_length(steps: FloatArray, config: TrainingConfig) -> FloatArray:
    """‖a_k‖₁: how much gradient τ steps add up to (Wang et al. 2020, section 4)."""
    if config.momentum:
        rho = config.momentum
        return np.asarray((steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho))
    if config.mu:
        keep = 1 - config.lr * config.mu
        return np.asarray((1 - keep**steps) / (1 - keep))
    return steps


class FedNova(FedProx):
    """Clients that make more steps do not pull the model further than the others.

    Wang et al. (2020), "Tackling the objective inconsistency problem in heterogeneous federated
    optimization": w ← w + τ_eff Σ p_k Δ_k / a_k with τ_eff = Σ p_k a_k. Where all clients make the
    same number of steps it is FedAvg.
    """

    update = train_and_normalise

    def __init__(self, model: Any, *, mu: NonNegative = 0.0, **averaging: Any) -> None:
        super().__init__(model, mu=mu, **averaging)

    def round_aggregation(self) -> Aggregation:
        mean = super().round_aggregation()
        return mean.set_params(entries=[*mean.get_params()["entries"], "length"])

    def apply_update(self, mean: Entries) -> None:
        super().apply_update({**mean, "update": mean["update"] * float(mean["length"])})

    def check_params(self) -> None:
        super().check_params()
        if self.optimiser != "sgd":
            raise UsageError("FedNova normalises gradient descent", hint="optimiser='sgd'")
        if self.send != "difference":
            raise UsageError("FedNova sends differences", hint="use send='difference'")
        if self.mu and self.momentum:
            raise UsageError.of(self, "mu", self.mu, "must be 0 with momentum")
