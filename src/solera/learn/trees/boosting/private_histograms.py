"""FedHistGBDT with noise: histograms in which a row is bounded, and what a tree grows from.

In one ask a row is at one node of every tree and in one cell of every column, wherever the splits
send it: it adds its gradients and hessians to as many cells as there are columns. Their norms over
the trees of a round are at most

    sigmoid: |g| ≤ 1, h = p(1 − p) ≤ ¼        numbers: |g| ≤ clip, h = 1
    softmax: ‖g‖₂ ≤ √2, ‖g‖₁ ≤ 2, ‖h‖₂ ≤ ½, ‖h‖₁ ≤ 1

since Σ p(1 − p) ≤ 1 and p(1 − p) ≤ ¼. So one row moves the sums of an ask by √columns (Gaussian) or
columns (Laplace) times that (Maddock et al. 2022, *Federated boosted decision trees with
differential privacy*). What is beyond, as in an ask of another loss than the one before, is scaled
down. The number of rows is not told: at a node it is at least Σh over the largest h.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core.clients import Client, FloatArray, IntArray
from solera.core.errors import Refusal
from solera.learn.trees.binned_rows import Cells, add_up
from solera.privacy.dp.sums import SumNoise, add_noise, norm

LARGEST_HESSIAN = {"squared": 1.0, "sigmoid": 0.25, "softmax": 0.25}
_NORMS = {
    ("sigmoid", "gaussian"): (1.0, 0.25),
    ("sigmoid", "laplace"): (1.0, 0.25),
    ("softmax", "gaussian"): (math.sqrt(2), 0.5),
    ("softmax", "laplace"): (2.0, 1.0),
}
_BITS = 20
"""Sums with noise are counted in units of 2⁻²⁰ of what a row may add."""


def most_of_a_row(ask: Mapping[str, Any]) -> tuple[float, float]:
    """The norms of the gradients and of the hessians of a row, over the trees of a round."""
    privacy: SumNoise = ask["privacy"]
    if ask["loss"] != "squared":
        return _NORMS[ask["loss"], privacy["mechanism"]]
    if "clip" not in privacy:
        raise Refusal("with noise, gradients of numbers need a bound: clip")
    return privacy["clip"], 1.0


def noised_histograms(
    client: Client, cells: Cells, at: IntArray, carried: FloatArray, ask: Mapping[str, Any]
) -> dict[str, FloatArray]:
    """Σg and Σh by node and cell of the rows of one client, for every tree that is asked for.

    ``at`` are the nodes of the rows, trees × rows; ``carried`` their gradients and hessians, trees
    × rows × 2.
    """
    privacy: SumNoise = ask["privacy"]
    bounds = np.array(most_of_a_row(ask))
    carried = np.where(np.isfinite(carried), carried, 0.0)
    lengths = np.linalg.norm(carried, ord=1 if privacy["mechanism"] == "laplace" else 2, axis=0)
    carried = carried * np.minimum(1.0, bounds / np.maximum(lengths, 1e-300))
    rows, total = np.array([len(cells)]), int(ask["starts"][-1])
    found = {
        f"tree{k}": add_up(cells, at[k], rows, wanted, carried[k], total)[0]
        for k, wanted in enumerate(ask["wanted"])
        if len(wanted)
    }
    if not found:
        raise Refusal("no histogram is asked for")
    joined = np.concatenate([sums.reshape(-1, 2) for sums in found.values()])
    most = bounds * norm(privacy, cells.shape[1])
    noised = add_noise(
        client,
        {"g": joined[:, 0], "h": joined[:, 1]},
        {"g": float(most[0]), "h": float(most[1])},
        privacy,
    )
    both = np.stack([noised["g"], noised["h"]], axis=1)
    ends = np.cumsum([sums.size // 2 for sums in found.values()])[:-1]
    parts = zip(found.items(), np.split(both, ends), strict=True)
    return {name: part.reshape(sums.shape) for (name, sums), part in parts}


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
    agreed = sums + np.repeat(missing, sizes, axis=1)
    gradient, hessian = noised_units(ask)
    rows = agreed[..., 1] / LARGEST_HESSIAN[ask["loss"]]
    found = [agreed[..., 0] * 2.0**gradient, agreed[..., 1] * 2.0**hessian, rows]
    return np.asarray(np.rint(np.stack(found, axis=-1)), dtype=np.int64)


def rows_hidden(starts: IntArray, clients: int, ask: Mapping[str, Any]) -> int:
    """Fewer rows than these on one side of a split can hardly be told from noise.

    Two deviations of the sum of half the cells of the longest column.
    """
    privacy: SumNoise = ask["privacy"]
    laplace = privacy["mechanism"] == "laplace"
    most = most_of_a_row(ask)[1] * norm(privacy, len(starts) - 1)
    cell = privacy["noise"] * most * (2 * math.sqrt(2) if laplace else math.sqrt(2))
    spread = cell * math.sqrt(clients / privacy["share"] * np.diff(starts).max() / 2)
    return math.ceil(2 * spread / LARGEST_HESSIAN[ask["loss"]])
