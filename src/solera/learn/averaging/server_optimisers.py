"""What the coordinator makes of the mean change of a round, beside adding it.

Each rule takes the change Δ and what it remembers, and gives the direction of the step, to be
multiplied by the step size η_s, and what to remember.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from solera.core.clients import Array

Memory = Mapping[str, Array]
Second = Callable[[Array, Array], Array]
ServerOptimiser = Literal["momentum", "adam", "yogi", "adagrad"]


def momentum(change: Array, memory: Memory, beta: float = 0.9) -> dict[str, Array]:
    """v ← βv + Δ (Hsu, Qi & Brown 2019)."""
    before = memory.get("velocity", np.zeros_like(change))
    return {"velocity": beta * before + change}


def adaptive(
    change: Array, memory: Memory, second: Second, beta1: float = 0.9, tau: float = 1e-3
) -> dict[str, Array]:
    """m ← β1 m + (1 − β1) Δ and the next v (Reddi et al. 2021, Algorithm 2)."""
    zeros = np.zeros_like(change)
    mean = memory.get("mean", zeros)
    square = memory.get("square", zeros + tau**2)
    return {"mean": beta1 * mean + (1 - beta1) * change, "square": second(square, change)}


def adam_second(square: Array, change: Array, beta2: float = 0.99) -> Array:
    """v ← β2 v + (1 − β2) Δ²."""
    return np.asarray(beta2 * square + (1 - beta2) * change**2)


def yogi_second(square: Array, change: Array, beta2: float = 0.99) -> Array:
    """v ← v − (1 − β2) Δ² sign(v − Δ²)."""
    new = change**2
    return np.asarray(square - (1 - beta2) * new * np.sign(square - new))


def adagrad_second(square: Array, change: Array) -> Array:
    """v ← v + Δ²."""
    return np.asarray(square + change**2)


_SECONDS: dict[str, Second] = {
    "adam": adam_second,
    "yogi": yogi_second,
    "adagrad": adagrad_second,
}


def server_step(
    rule: ServerOptimiser, change: Array, memory: Memory, lr: float, tau: float = 1e-3
) -> tuple[Array, dict[str, Array]]:
    """The step by the rule of that name with its paper's constants, and what to remember."""
    if rule == "momentum":
        kept = momentum(change, memory)
        return lr * kept["velocity"], kept
    kept = adaptive(change, memory, _SECONDS[rule], tau=tau)
    return lr * kept["mean"] / (np.sqrt(kept["square"]) + tau), kept
