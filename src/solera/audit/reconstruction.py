"""Rows from Gram sums: what Σ zzᵀ tells about the rows z."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.audit.epsilon import epsilon_of_scores
from solera.audit.result import Result, told
from solera.core.clients import FloatArray
from solera.core.errors import UsageError

_TINY = 1e-9


@dataclass(frozen=True)
class Reconstruction(Result):
    """What Gram matrices give away.

    ``ranks`` of the matrices and ``columns``: below full rank the space that the rows span is
    known, and rows up to a rotation. ``exact`` are rows that stand alone in a matrix (a class with
    one row, a client with one row, a difference of one row). ``residual`` says how far each true
    row lies outside the space that is known, 1 for nothing known.
    """

    ranks: list[int]
    columns: int
    exact: FloatArray
    residual: FloatArray | None
    epsilon: float | None
    delta: float
    confidence: float
    title = "Reconstruction from Gram sums"

    def facts(self) -> list[tuple[str, str]]:
        short = sum(rank < self.columns for rank in self.ranks)
        facts = [
            ("matrices", f"{len(self.ranks)} of {self.columns} columns, ranks {self.ranks[:8]}"),
            ("rows read", f"{len(self.exact)} exactly"),
            ("up to rotation", f"{short} matrices have fewer rows than columns"),
        ]
        if self.residual is not None:
            inside = int((self.residual < 1e-6).sum())
            facts.append(("true rows", f"{inside} of {len(self.residual)} lie in what is known"))
        return [*facts, told(self.epsilon, self.delta, self.confidence)]


def reconstruction(
    grams: Any,
    *,
    without: Any = None,
    rows: Any = None,
    decoys: Any = None,
    delta: float = 0.0,
    confidence: float = 0.95,
) -> Reconstruction:
    """Read rows from sums Σ w zzᵀ, where z is a row with a leading one.

    Parameters
    ----------
    grams: one matrix or several, d × d with the constant first; or a fitted FedHEONN.
    without: the same sums over fewer rows: the difference is attacked too.
    rows: the true rows, to measure how much of them is known.
    decoys: rows that are not in the sums; with ``rows`` the attack bounds ε.
    """
    matrices = _matrices(grams)
    if without is not None:
        matrices = np.concatenate([matrices, matrices - _matrices(without)])
    exact, ranks, known = [], [], []
    for G in matrices:
        values, vectors = np.linalg.eigh((G + G.T) / 2)
        large = values > _TINY * max(values[-1], 1e-300)
        ranks.append(int(large.sum()))
        if ranks[-1] == 1:
            z = vectors[:, -1] / vectors[0, -1] if abs(vectors[0, -1]) > _TINY else vectors[:, -1]
            exact.append(z[1:])
        if ranks[-1] < len(G):
            known.append(vectors[:, large])
    columns = matrices.shape[1]
    found = np.array(exact) if exact else np.empty((0, columns - 1))
    residual = None if rows is None else _residuals(rows, known)
    bound = None
    if residual is not None and decoys is not None:
        bound = epsilon_of_scores(
            -residual, -_residuals(decoys, known), delta=delta, confidence=confidence
        )
    return Reconstruction(ranks, columns, found, residual, bound, delta, confidence)


def _matrices(grams: Any) -> FloatArray:
    if hasattr(grams, "statistics_"):
        if grams.features is not None or grams.ensemble is not None:
            raise UsageError("reconstruction reads sums of the rows themselves, not of features")
        grams = grams._grams(grams.statistics_["shape"])
    stack = np.asarray(grams, dtype=np.float64)
    if stack.ndim < 2 or stack.shape[-1] != stack.shape[-2]:
        raise UsageError(f"Gram matrices are square, not of shape {stack.shape}")
    return stack.reshape(-1, *stack.shape[-2:])


def _residuals(rows: Any, known: list[FloatArray]) -> FloatArray:
    """‖z − its projection‖/‖z‖ on the best of the spaces that are known."""
    X = np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)
    Z = np.concatenate([np.ones((len(X), 1)), X], axis=1)
    best = np.ones(len(Z))
    for basis in known:
        rest = Z - (Z @ basis) @ basis.T
        best = np.minimum(best, np.linalg.norm(rest, axis=1) / np.linalg.norm(Z, axis=1))
    return best
