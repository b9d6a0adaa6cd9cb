"""FedGLM with noise: steps whose sums are bounded.

With columns clipped to a length C a row of the design is at most R = √(1 + C²) long. One row then
changes ZᵀWZ by w R² and ZᵀWr by |w r| R. For a binomial model w ≤ ¼ and |w r| ≤ 1, at the start 1
and |logit ¾|, whatever the coefficients are. For the others nothing bounds |w r|, which is |y − μ|
(normal, Poisson) or |y − μ| / μ (gamma): it is clipped to ``clip_residuals`` = c, as Huber (1964)
does, and the weights μ of a Poisson model to max(1, c); those of the others are 1.
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


def bounds(ask: Any) -> tuple[float, float]:
    """The largest w and |w r| of a row."""
    if ask["family"] != "binomial":
        clip = ask["clip_residuals"]
        return (max(1.0, clip) if ask["family"] == "poisson" else 1.0), clip
    if not ask["start"]:
        return 0.25, 1.0
    family = FAMILIES["binomial"]
    return 1.0, float(np.abs(family.link(family.start(np.array([0.0, 1.0])))).max())


def bounded(w: FloatArray, moment: FloatArray, ask: Any) -> tuple[FloatArray, FloatArray]:
    """w and w r of rows within their bounds; a row of which they are no numbers counts as none."""
    weight, most = bounds(ask)
    known = ~(np.isnan(w) | np.isnan(moment))
    return np.where(known, np.minimum(w, weight), 0.0), np.where(known, moment.clip(-most, most), 0)


def most_of_a_row(ask: Any) -> dict[str, float]:
    """How far one row moves the sums of a step."""
    squared = 1 + ask["privacy"]["clip"] ** 2
    weight, moment = bounds(ask)
    return {"grams": weight * squared, "moments": moment * math.sqrt(squared), "rows": 1.0}


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
    if privacy["mechanism"] != "gaussian" or "clip" not in privacy or ask["weights"] is not None:
        raise Refusal("noise is Gaussian, for rows of a bounded length without weights")
    if ask["family"] != "binomial" and "clip_residuals" not in ask:
        raise Refusal(f"nothing bounds the residuals of a {ask['family']} model: clip_residuals")


def damped_step(gram: FloatArray, moment: FloatArray, ask: Any) -> FloatArray:
    """The step of Newton's method with eigenvalues no smaller than those of the noise, 2 s √d."""
    values, vectors = np.linalg.eigh(unpacked(gram))
    entry = ask["privacy"]["noise"] * most_of_a_row(ask)["grams"] * math.sqrt(_SUMS)
    least = 2 * entry * math.sqrt(len(values))
    return np.asarray(vectors @ ((vectors.T @ moment) / np.maximum(values, least)))
