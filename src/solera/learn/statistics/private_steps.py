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

from solera.core.clients import FloatArray
from solera.core.errors import Refusal
from solera.learn.statistics.families import FAMILIES
from solera.trust.members import symmetric

_SUMS = 3


def bounds(ask: Any) -> tuple[float, float, float]:
    """The longest row of the design, and the largest w and |w r| of a row.

    Without noise nothing needs a bound.
    """
    if "privacy" not in ask:
        return math.inf, math.inf, math.inf
    longest = math.sqrt(1 + ask["privacy"]["clip"] ** 2)
    if ask["family"] != "binomial":
        clip = ask["clip_residuals"]
        return longest, (max(1.0, clip) if ask["family"] == "poisson" else 1.0), clip
    if not ask["start"]:
        return longest, 0.25, 1.0
    family = FAMILIES["binomial"]
    return longest, 1.0, float(np.abs(family.link(family.start(np.array([0.0, 1.0])))).max())


def check_noised(ask: Any) -> None:
    """Refuse noise where nothing bounds what a row changes."""
    privacy = ask["privacy"]
    if privacy["mechanism"] != "gaussian" or "clip" not in privacy or ask["weights"] is not None:
        raise Refusal("noise is Gaussian, for rows of a bounded length without weights")
    if ask["family"] != "binomial" and "clip_residuals" not in ask:
        raise Refusal(f"nothing bounds the residuals of a {ask['family']} model: clip_residuals")


def damped_step(gram: FloatArray, moment: FloatArray, ask: Any) -> FloatArray:
    """The step of Newton's method with eigenvalues no smaller than those of the noise, 2 s √d."""
    values, vectors = np.linalg.eigh(symmetric(gram))
    longest, most_weight, _ = bounds(ask)
    entry = ask["privacy"]["noise"] * longest**2 * most_weight * math.sqrt(_SUMS)
    least = 2 * entry * math.sqrt(len(values))
    return np.asarray(vectors @ ((vectors.T @ moment) / np.maximum(values, least)))
