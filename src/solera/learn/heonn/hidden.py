"""Random hidden features: a wider view of the rows, the same at every client.

Weights are drawn from a seed the coordinator chooses, so nothing but the seed travels, and the
layer on top stays closed-form, incremental and encrypted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from solera.core.clients import FloatArray
from solera.core.rng import generator
from solera.learn.rows import dense

Kind = Literal["fourier", "random_layer"]


@lru_cache(maxsize=4)
def hidden_weights(
    kind: str, inputs: int, width: int, scale: float, seed: int
) -> tuple[FloatArray, FloatArray]:
    """W and b of the hidden layer, drawn from the seed."""
    draw = generator(seed, f"heonn.{kind}")
    W = draw.normal(scale=scale / np.sqrt(inputs), size=(inputs, width))
    if kind == "fourier":
        return W, draw.uniform(0, 2 * np.pi, size=width)
    return W, draw.normal(size=width)


def hidden(X: Any, plan: Mapping[str, Any] | None) -> Any:
    """The hidden features of rows; the rows themselves without a plan.

    fourier: z = √(2/D) cos(xW + b), W ~ N(0, s²/d), b ~ U(0, 2π): inner products approximate a
    Gaussian kernel of width √d/s (Rahimi & Recht 2007). random_layer: z = tanh(xW + b), b ~ N(0, 1)
    (an extreme learning machine, Huang et al. 2006).
    """
    X = dense(X).astype(np.float64, copy=False)
    if plan is None:
        return X
    kind, width = plan["kind"], plan["width"]
    W, b = hidden_weights(kind, X.shape[1], width, plan["scale"], plan["seed"])
    Z = X @ W
    Z += b
    if kind == "fourier":
        np.cos(Z, out=Z)
        Z *= np.sqrt(2 / width)
    else:
        np.tanh(Z, out=Z)
    return Z
