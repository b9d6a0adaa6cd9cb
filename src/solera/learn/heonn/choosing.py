"""Which λ: the one with the least error on clients left out, from the clients' one message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from solera.core.clients import FloatArray
from solera.core.errors import UsageError
from solera.learn.heonn.algebra import solve_path, squared_error


def choose_lam(
    lams: FloatArray, parts: Sequence[Any], grams_of: Callable[[Any], FloatArray]
) -> tuple[float, dict[str, float]]:
    """Leave every part out in turn, solve on the others, and add up the errors on it.

    The best λ, and the mean error of each.
    """
    if len(parts) < 2:
        raise UsageError(
            "FedHEONN(lam=[…]) chooses λ on clients left out and needs at least two of them"
        )
    grams = [grams_of(part["shape"]) for part in parts]
    moments = [part["moments"] for part in parts]
    G, m = sum(grams), sum(moments)
    errors = np.zeros(len(lams))
    for gram, moment, part in zip(grams, moments, parts, strict=True):
        for i, w in enumerate(solve_path(G - gram, m - moment, lams)):
            errors[i] += squared_error(w, gram, moment, part["squares"])
    rows = sum(part["rows"] for part in parts)
    best = float(lams[int(np.argmin(errors))])
    return best, {repr(float(lam)): float(e / rows) for lam, e in zip(lams, errors, strict=True)}
