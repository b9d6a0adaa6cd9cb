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

from solera.core.clients import FloatArray
from solera.learn.heonn.activations import levels
from solera.learn.heonn.statistics import bounds_of
from solera.trust.noise import SumNoise


def largest_eigenvalue(ask: Mapping[str, Any], columns: int) -> float:
    """What the noise on the Gram matrix of an output has at most, nearly always: 2 s √columns.

    A smaller λ would be lost in it.
    """
    privacy: SumNoise = ask["privacy"]
    longest, largest = bounds_of(ask)
    entry = privacy["noise"] * longest**2 * largest["grams"] * math.sqrt(2)  # two sums share it
    weight, _ = levels(ask["activation"], ask["derivative"])
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
