"""From the scores of a model, its logits, to probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def sigmoid(scores: NDArray[Any]) -> NDArray[Any]:
    """1 / (1 + e^−z) of every score z, without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * scores)))


def softmax(scores: NDArray[Any]) -> NDArray[Any]:
    """e^z / Σ e^z along the last axis."""
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(p / p.sum(axis=-1, keepdims=True))
