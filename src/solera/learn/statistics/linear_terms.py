"""Newton's step and the covariance of estimates, from an information matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solera.core.clients import FloatArray
from solera.core.errors import DataError
from solera.trust.members import symmetric

_DEPENDENT = 1e-11
"""Of a term's own information: what is left when the others are known."""


def newton_step(upper: FloatArray, score: FloatArray, names: Sequence[str]) -> FloatArray:
    """I⁻¹ u, where ``upper`` is the upper triangle of I."""
    _check_rank(symmetric(upper), names)
    return np.asarray(covariance(upper) @ score)


def covariance(upper: FloatArray) -> FloatArray:
    """I⁻¹, with the terms at one scale while it is inverted."""
    information = symmetric(upper)
    scale = np.sqrt(np.diag(information))
    return np.asarray(np.linalg.inv(information / np.outer(scale, scale)) / np.outer(scale, scale))


def growing_terms(step: FloatArray, params: FloatArray, names: Sequence[str]) -> str:
    """The terms that a step makes grow by the largest share."""
    growth = np.abs(step) / np.maximum(np.abs(params), 1e-300)
    growing = np.flatnonzero(growth >= growth.max(initial=0) / 2)
    return ", ".join([names[j] for j in growing.tolist()][:5])


def _check_rank(information: FloatArray, names: Sequence[str]) -> None:
    """Name the first term that follows from those before it."""
    left = information.copy()
    own = np.diag(information).copy()
    for k, name in enumerate(names):
        if not left[k, k] > _DEPENDENT * own[k]:
            raise DataError(
                f"{name!r} is constant or follows from the terms before it, so it has no estimate",
                hint="leave it out, for example with so.learn.FedSelect([…]) before the model",
            )
        left = left - np.outer(left[:, k], left[k]) / left[k, k]
