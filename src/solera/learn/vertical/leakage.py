"""How much what a party sends tells of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import FloatArray


def distance_correlation(X: Any, Z: Any) -> float:
    """Distance correlation of rows and what is sent of them, from 0 (independent) to 1.

    With A and B the doubly centred matrices of distances between rows of X and of Z,

        dCor² = Σ A∘B / √(Σ A∘A · Σ B∘B)

    (Székely, Rizzo & Bakirov 2007). Vepakomma et al. 2020 take it for the leakage of split
    learning.
    """
    a, b = _centred(np.asarray(X, dtype=float)), _centred(np.asarray(Z, dtype=float))
    spread = float((a * a).sum() * (b * b).sum())
    if spread <= 0:
        return 0.0
    return float(np.sqrt(max(0.0, float((a * b).sum()) / np.sqrt(spread))))


def _centred(rows: FloatArray) -> FloatArray:
    rows = rows.reshape(len(rows), -1)
    squares = (rows**2).sum(axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0.0))
    mean = distances.mean(axis=0)
    centred: FloatArray = distances - mean[:, None] - mean + mean.mean()
    return centred
