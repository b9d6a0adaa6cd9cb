"""Activations of the output layer, their inverses and slopes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from solera.core.clients import FloatArray
from solera.core.errors import DataError
from solera.learn.probabilities import sigmoid

Map = Callable[[FloatArray], FloatArray]

Name = Literal["logistic", "softplus", "relu", "linear"]
Layout = Literal["shared", "classes", "labels", "outputs"]
LOW, HIGH = 0.05, 0.95
"""Targets of a class or label that is absent and present."""
_MARGIN = 1e-6


@dataclass(frozen=True, slots=True)
class Activation:
    """f, f⁻¹ and f′(f⁻¹(d)) for targets d in an open range."""

    value: Map
    inverse: Map
    slope: Map
    low: float
    high: float

    def within(self, targets: FloatArray, name: str) -> FloatArray:
        """Targets moved off the ends of the range; beyond them is an error."""
        if targets.size and (targets.min() < self.low or targets.max() > self.high):
            raise DataError(
                f"targets from {targets.min():g} to {targets.max():g} are outside the range "
                f"[{self.low:g}, {self.high:g}] of the activation {name!r}",
                hint="use activation='linear' or scale the target",
            )
        return np.clip(targets, self.low + _MARGIN, self.high - _MARGIN)


def _softplus(z: FloatArray) -> FloatArray:
    return np.asarray(np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z))))


_ACTIVATIONS = {
    "logistic": Activation(sigmoid, lambda d: -np.log(1 / d - 1), lambda d: d * (1 - d), 0.0, 1.0),
    "softplus": Activation(
        _softplus, lambda d: np.log(np.expm1(d)), lambda d: -np.expm1(-d), 0.0, np.inf
    ),
    "linear": Activation(lambda z: z, lambda d: d, np.ones_like, -np.inf, np.inf),
}
_ACTIVATIONS["relu"] = _ACTIVATIONS["softplus"]


@lru_cache(maxsize=32)
def activation(name: str, derivative: str = "exact") -> Activation:
    """The activation of that name.

    ``derivative="thesis"`` takes f′ = d for the logistic, a slip in the runs of the thesis whose
    ensemble figures reproduce only with it; it weighs rows of a present class 361 times as much as
    the others.
    """
    exact = _ACTIVATIONS[name]
    if derivative == "thesis" and name == "logistic":
        return replace(exact, slope=lambda d: d)
    return exact


@lru_cache(maxsize=32)
def levels(name: str, derivative: str) -> tuple[Any, Any]:
    """(f′², f′²·f⁻¹) of an absent and of a present class."""
    f, d = activation(name, derivative), np.array([LOW, HIGH])
    weight = f.slope(d) ** 2
    return weight, weight * f.inverse(d)


@lru_cache(maxsize=32)
def layout_of(target: str, name: str, derivative: str) -> Layout:
    """How many different Gram matrices there are; see :mod:`.statistics`."""
    weight, _ = levels(name, derivative)
    if target == "numbers":
        return "shared" if name == "linear" else "outputs"
    if weight[0] == weight[1] or np.isclose(weight[0], weight[1], rtol=1e-12):
        return "shared"
    return "classes" if target == "classes" else "labels"
