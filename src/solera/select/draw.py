"""Ways to draw clients without replacement, on whole arrays."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from solera.core.clients import FloatArray, IntArray


def uniformly(ids: IntArray, count: int, rng: Generator) -> IntArray:
    """``count`` of the ids, or all of them."""
    if count >= len(ids):
        return ids
    return np.asarray(rng.choice(ids, size=count, replace=False, shuffle=False))


def by_weight(log_weights: FloatArray, count: int, rng: Generator) -> IntArray:
    """Positions drawn one after the other with probability ∝ weight; weight 0 is never drawn.

    The ``count`` largest of log w + Gumbel noise have exactly that distribution
    (Efraimidis & Spirakis 2006, in logarithms).
    """
    possible = np.flatnonzero(log_weights > -np.inf)
    if count >= len(possible):
        return possible
    keys = log_weights[possible] + rng.gumbel(size=len(possible))
    return possible[np.argpartition(-keys, count - 1)[:count]] if count else possible[:0]


def highest(values: FloatArray, count: int, rng: Generator) -> IntArray:
    """Positions of the ``count`` highest values; ties are broken by the dice."""
    if count >= len(values):
        return np.arange(len(values))
    if not count:
        return np.arange(0)
    last = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > last)
    ties = np.flatnonzero(values == last)
    return np.concatenate([above, uniformly(ties, count - len(above), rng)])
