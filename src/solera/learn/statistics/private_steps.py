"""FedGLM with noise: steps of a logistic regression whose sums are bounded.

With columns clipped to a length C a row of the design is at most R = √(1 + C²) long. The working
weight of a binomial model is at most ¼ and the working response at most 1, at the start 1 and
|logit ¾|: one row changes ZᵀWZ by w R² and ZᵀWr by |w r| R, whatever the coefficients are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from solera.core.clients import Client, FloatArray
from solera.core.errors import Refusal
from solera.learn.statistics.families import FAMILIES
from solera.learn.statistics.linear_terms import unpacked
from solera.privacy.dp.sums import SumNoise, add_noise

_SUMS = 3


def most_of_a_row(ask: Any) -> dict[str, float]:
    """How far one row moves the sums of a step."""
    squared = 1 + ask["privacy"]["clip"] ** 2
    family = FAMILIES["binomial"]
    weight, response = 0.25, 1.0
    if ask["start"]:
        weight = 1.0
        response = float(np.abs(family.link(family.start(np.array([0.0, 1.0])))).max())
    return {"grams": weight * squared, "moments": response * math.sqrt(squared), "rows": 1.0}


def noised_step(
    client: Client, gram: FloatArray, moment: FloatArray, rows: int, ask: Any
) -> dict[str, Any]:
    """The reply of a step with noise; totals are the first entries of its sums, as without."""
    privacy: SumNoise = ask["privacy"]
    sums = {"grams": gram[np.triu_indices(len(gram))], "moments": moment, "rows": rows}
    noised = add_noise(client, sums, most_of_a_row(ask), privacy)
    return {
        "shape": {"grams": noised["grams"][None, None]},
        "moments": noised["moments"][None, :, None],
        "squares": np.zeros((1, 1)),
        "totals": np.array([noised["grams"][0], noised["moments"][0]]),
        "few": 0,
        "rows": int(np.rint(noised["rows"])),
    }


def check_noised(ask: Any) -> None:
    """Refuse noise where nothing bounds what a row changes."""
    privacy = ask["privacy"]
    plain = ask["offset"] is None and ask["weights"] is None and "clip" in privacy
    if ask["family"] != "binomial" or not plain or privacy["mechanism"] != "gaussian":
        raise Refusal("noise is for binomial models without offset and weights, and Gaussian")


def damped_step(gram: FloatArray, moment: FloatArray, ask: Any) -> FloatArray:
    """The step of Newton's method with eigenvalues no smaller than those of the noise, 2 s √d."""
    values, vectors = np.linalg.eigh(unpacked(gram))
    entry = ask["privacy"]["noise"] * most_of_a_row(ask)["grams"] * math.sqrt(_SUMS)
    least = 2 * entry * math.sqrt(len(values))
    return np.asarray(vectors @ ((vectors.T @ moment) / np.maximum(values, least)))
