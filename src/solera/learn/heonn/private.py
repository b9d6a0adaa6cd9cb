"""FedHEONN with noise: one message of every client is one Gaussian mechanism.

Features of a row are clipped to a length C, so that with the bias ‖z‖² ≤ 1 + C² = R². Targets are
classes or labels, whose f′² and f′² d̄ are of two known values; then one row changes a Gram matrix
by at most f′² R², the moments by R ‖f′² d̄‖. The noise is calibrated exactly (Balle & Wang 2018,
*Improving the Gaussian mechanism*, Algorithm 1). Sheffet (2017) and Wang (2018, AdaSSP) solve
regressions from such matrices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core.clients import Client, FloatArray, Rows
from solera.core.errors import Refusal
from solera.learn.heonn.activations import activation, levels
from solera.learn.heonn.hidden import hidden
from solera.learn.heonn.statistics import Targets, moments_and_grams, with_ones
from solera.privacy.dp.sums import SumNoise, add_noise, clipped_rows


def noised_statistics(client: Client, rows: Rows, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Gram matrices and moments, both with noise; of what only a list of λ needs, nothing."""
    privacy: SumNoise = ask["privacy"]
    gaussian = privacy["mechanism"] == "gaussian" and "clip" in privacy
    alone = ask["patches"] is None and ask["encrypt"] is None
    if not (gaussian and alone and ask["target"] != "numbers"):
        raise Refusal("FedHEONN adds Gaussian noise for classes or labels, to one layer in clear")
    Z = with_ones(clipped_rows(hidden(rows.X, ask["hidden"]), privacy))
    sums = moments_and_grams(Z, Targets.of(rows.y, ask))
    needed = {name: sums[name] for name in ("grams", "moments")}
    noised = add_noise(client, needed, most_of_a_row(ask), privacy)
    return {
        "shape": {"grams": noised["grams"][None]},
        "moments": noised["moments"][None],
        "squares": np.zeros_like(sums["squares"])[None],
        "rows": 0,
        "few": 0,
    }


def most_of_a_row(ask: Mapping[str, Any]) -> dict[str, float]:
    """How far one row moves each of the sums."""
    length = 1 + ask["privacy"]["clip"] ** 2
    weight, moment = levels(activation(ask["activation"], ask["derivative"]))
    outputs = math.sqrt(ask["outputs"])
    matrices = {"shared": float(weight[0]), "classes": 1.0, "labels": math.sqrt(1 + ask["outputs"])}
    return {
        "grams": matrices[ask["layout"]] * length,
        "moments": math.sqrt(length) * outputs * float(np.abs(moment).max()),
    }


def largest_eigenvalue(ask: Mapping[str, Any], columns: int) -> float:
    """What the noise on the Gram matrix of an output has at most, nearly always: 2 s √columns.

    A smaller λ would be lost in it.
    """
    privacy: SumNoise = ask["privacy"]
    entry = privacy["noise"] * most_of_a_row(ask)["grams"] * math.sqrt(2)  # two sums share it
    weight, _ = levels(activation(ask["activation"], ask["derivative"]))
    absent, present = float(weight[0]), float(weight[1])
    together = {
        "shared": 1.0,
        "classes": absent * math.sqrt(ask["outputs"]) + abs(present - absent),
        "labels": absent + abs(present - absent),
    }[ask["layout"]]
    return 2 * entry * together * math.sqrt(columns)


def positive(G: FloatArray) -> FloatArray:
    """The nearest matrices without negative eigenvalues, as Gram matrices have none."""
    values, vectors = np.linalg.eigh(G)
    return np.asarray((vectors * np.maximum(values, 0)[..., None, :]) @ vectors.swapaxes(-1, -2))
