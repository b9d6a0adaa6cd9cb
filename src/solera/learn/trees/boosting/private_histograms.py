"""FedHistGBDT with noise: how a row is bounded, and what a tree grows from.

In one ask a row is at one node of every tree and in one cell of every column, wherever the splits
send it: it adds its gradients and hessians to as many cells as there are columns. Their norms over
the trees of a round are at most

    sigmoid: |g| ≤ 1, h = p(1 − p) ≤ ¼        numbers: |g| ≤ clip, h = 1
    softmax: ‖g‖ ≤ √2, ‖h‖ ≤ ½

since Σ p(1 − p) ≤ 1 and p(1 − p) ≤ ¼. In units of these both are at most 1, and one row moves the
sums of an ask by √(2 columns); with Laplace noise by 2 columns √trees (Maddock et al. 2022,
*Federated boosted decision trees with differential privacy*). What is beyond, as in an ask of
another loss than the one before, is scaled down. The number of rows is not told: at a node it is at
least Σh over the largest h.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core.clients import FloatArray, IntArray
from solera.core.errors import Refusal
from solera.trust.noise import SumNoise

LARGEST_HESSIAN = {"squared": 1.0, "sigmoid": 0.25, "softmax": 0.25}
_NORMS = {"sigmoid": (1.0, 0.25), "softmax": (math.sqrt(2), 0.5)}
_BITS = 20
"""Sums with noise are counted in units of 2⁻²⁰ of what a row may add."""


def most_of_a_row(ask: Mapping[str, Any]) -> FloatArray:
    """The norms of the gradients and of the hessians of a row, over the trees of a round."""
    if ask["loss"] != "squared":
        return np.array(_NORMS[ask["loss"]])
    if "clip" not in ask["privacy"]:
        raise Refusal("with noise, gradients of numbers need a bound: clip")
    return np.array([ask["privacy"]["clip"], 1.0])


# --- the coordinator's side ---


def noised_units(ask: Mapping[str, Any]) -> tuple[int, int]:
    """The bits below the point in which Σg and Σh with noise are counted."""
    largest = int(np.frexp(most_of_a_row(ask)[0])[1])
    return _BITS - largest, _BITS


def in_agreement(sums: FloatArray, starts: IntArray, ask: Mapping[str, Any]) -> IntArray:
    """Noised Σg and Σh by node and cell as a tree grows from them, in whole numbers: and rows.

    Every column divides the same rows, so its cells add up to the same; with noise they do not.
    What a column has less or more than the mean of all is spread over its cells, which makes the
    noise on all of them smaller (Hay et al. 2010).
    """
    totals = np.add.reduceat(sums, starts[:-1], axis=1)
    sizes = np.diff(starts)
    missing = (totals.mean(axis=1, keepdims=True) - totals) / sizes[None, :, None]
    agreed = (sums + np.repeat(missing, sizes, axis=1)) * most_of_a_row(ask)
    gradient, hessian = noised_units(ask)
    rows = agreed[..., 1] / LARGEST_HESSIAN[ask["loss"]]
    found = [agreed[..., 0] * 2.0**gradient, agreed[..., 1] * 2.0**hessian, rows]
    return np.asarray(np.rint(np.stack(found, axis=-1)), dtype=np.int64)


def rows_hidden(starts: IntArray, trees: int, clients: int, ask: Mapping[str, Any]) -> int:
    """Fewer rows than these on one side of a split can hardly be told from noise.

    Two deviations of the sum of half the cells of the longest column.
    """
    privacy: SumNoise = ask["privacy"]
    columns = len(starts) - 1
    deviation = math.sqrt(2 * columns)
    if privacy["mechanism"] == "laplace":
        deviation = math.sqrt(2) * 2 * columns * math.sqrt(trees)
    cell = privacy["noise"] * deviation * float(most_of_a_row(ask)[1])
    spread = cell * math.sqrt(clients / privacy["share"] * np.diff(starts).max() / 2)
    return math.ceil(2 * spread / LARGEST_HESSIAN[ask["loss"]])
