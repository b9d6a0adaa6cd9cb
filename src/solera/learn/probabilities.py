"""From the scores of a model, its logits, to probabilities."""

from __future__ import annotations

import numpy as np

from solera.core.clients import Array


def sigmoid(scores: Array) -> Array:
    """1 / (1 + e^−z) of every score z, without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * scores)))


def softmax(scores: Array) -> Array:
    """e^z / Σ e^z along the last axis."""
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(p / p.sum(axis=-1, keepdims=True))
