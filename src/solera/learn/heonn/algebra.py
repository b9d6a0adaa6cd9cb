"""The coordinator's side: folding statistics and solving for the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from solera.core.aggregation import Aggregation, Sum
from solera.core.clients import FloatArray
from solera.core.errors import PayloadError
from solera.core.replies import Reply
from solera.learn.heonn.activations import Layout
from solera.learn.heonn.statistics import triangle
from solera.trust.members import packed, symmetric


class Grams(Aggregation):
    """Σ_p G_p of the clients' Gram matrices, whether they come whole or as factors.

    ``keep="gram"`` adds packed matrices. ``keep="factor"`` keeps R with RᵀR = Σ G instead, by a QR
    decomposition of the factors on top of each other (the incremental SVD of Iwen & Ong 2016 up to
    a rotation): slower, but it does not square the condition number, where clients send factors.
    ``size`` is T, K, d: members, matrices of each, columns; without it replies need only agree with
    each other.
    """

    def __init__(
        self, keep: Literal["gram", "factor"] = "gram", size: Sequence[int] | None = None
    ) -> None:
        self.keep = keep
        self.size = size

    @property
    def additive(self) -> bool:
        return self.keep == "gram"

    def lift(self, reply: Reply) -> Any:
        shape = reply.payload
        if not isinstance(shape, Mapping) or not shape.keys() & {"grams", "factors"}:
            raise PayloadError("the reply has neither Gram matrices nor factors")
        matrices = shape["factors"] if "factors" in shape else shape["grams"]
        factored = np.ndim(matrices) == 4  # in a closed job matrices leave for factors
        if self.size is not None:
            T, K, d = self.size
            columns = (None, d) if factored else (d * (d + 1) // 2,)
            check_shape("factors" if factored else "grams", matrices, (T, K, *columns))
        if self.keep == "factor":
            return {"factors": matrices if factored else _root(matrices)}
        R = matrices
        return {"grams": packed(R.swapaxes(-1, -2) @ R) if factored else matrices}

    def combine(self, a: Any, b: Any) -> Any:
        if self.keep == "gram":
            if a["grams"].shape != b["grams"].shape:
                raise PayloadError(f"Gram matrices {a['grams'].shape} and {b['grams'].shape}")
            return {"grams": a["grams"] + b["grams"]}
        both = np.concatenate([a["factors"], b["factors"]], axis=-2)
        if both.shape[-2] > both.shape[-1]:
            both = triangle(both)
        return {"factors": both}


def _root(grams: FloatArray) -> FloatArray:
    """R with RᵀR = G, from the packed G that leaves for a factor in a closed job."""
    values, vectors = np.linalg.eigh(symmetric(grams))
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[..., None] * vectors.swapaxes(-1, -2))


class SumOf(Sum):
    """Σ of arrays of one shape."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = shape

    def lift(self, reply: Reply) -> Any:
        check_shape("numbers", reply.payload, self.shape)
        return super().lift(reply)


def check_shape(name: str, value: Any, shape: Sequence[int | None]) -> None:
    """Turn away what is no array of numbers of that shape; None stands for any length."""
    given = value.shape if isinstance(value, np.ndarray) and value.dtype.kind in "fiu" else ()
    pairs = zip(shape, given, strict=False)
    if len(given) != len(shape) or any(want not in (None, have) for want, have in pairs):
        wanted = " × ".join("any" if length is None else str(length) for length in shape)
        raise PayloadError(f"{name} of shape {given} instead of {wanted}")


def gram_of(shape: Any) -> FloatArray:
    """The full matrices of what :class:`Grams` folded."""
    if "grams" in shape:
        return symmetric(shape["grams"])
    R = shape["factors"]
    return np.asarray(R.swapaxes(-1, -2) @ R)


def per_output(stacked: FloatArray, layout: Layout, u: float, v: float) -> FloatArray:
    """Matrices of the outputs from those of the layout, along axis −3 (K → 1 or C).

    Works on Gram matrices and, with K as the third axis from the end, on packed ones alike.
    """
    if layout in ("shared", "outputs"):
        return stacked
    if layout == "classes":
        everything, each = stacked.sum(axis=1, keepdims=True), stacked
    else:
        everything, each = stacked[:, :1], stacked[:, 1:]
    return np.asarray(v * everything + (u - v) * each)


def solve(G: FloatArray, m: FloatArray, lam: float) -> FloatArray:
    """w = (G + λI)⁻¹ m for every system: G is T × K × d × d, m is T × d × C, w is T × d × C.

    One Cholesky factorisation serves all outputs that share a Gram matrix. A singular matrix is
    solved by its eigenvectors, without those whose eigenvalue is below d·ε times the largest.
    """
    from scipy.linalg.lapack import dposv

    w = np.empty_like(m)
    G = G.copy()
    diagonal = np.arange(G.shape[-1])
    G[:, :, diagonal, diagonal] += lam
    for system, moments in _systems(*G.shape[:2]):
        _, x, info = dposv(G[system], m[moments])
        if info or not _trustworthy(G[system], lam):
            x = _by_eigenvectors(G[system]) @ m[moments]
        w[moments] = x
    return w


def _systems(members: int, systems: int) -> Iterator[tuple[Any, Any]]:
    """Where each system's matrix is in T × K × …, and where its moments are in T × d × C."""
    for t in range(members):
        for k in range(systems):
            outputs = slice(None) if systems == 1 else slice(k, k + 1)
            yield (t, k), (t, slice(None), outputs)


def _trustworthy(G: FloatArray, lam: float) -> bool:
    """Whether λ alone keeps the smallest eigenvalue above the rounding of the largest."""
    return bool(lam > G.shape[0] * np.finfo(float).eps * np.trace(G))


def _by_eigenvectors(G: FloatArray) -> FloatArray:
    values, vectors = np.linalg.eigh(G)
    good = values > G.shape[0] * np.finfo(float).eps * values[-1]
    return np.asarray((vectors * invert(values, good)) @ vectors.T)


def invert(values: FloatArray, good: Any) -> FloatArray:
    """1/x of the good numbers, 0 for the others."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=good)


def inverses(G: FloatArray, lam: float) -> FloatArray:
    """(G + λI)⁻¹, or its pseudo-inverse when singular; for products with encrypted moments.

    A column that is 0 at every client has a moment of 0: its row and column are 0 here, so that the
    noise of an encrypted 0 is not magnified by 1/λ.
    """
    d = G.shape[-1]
    flat = G.reshape(-1, d, d)
    inverse = np.stack([_by_eigenvectors(each + lam * np.eye(d)) for each in flat])
    absent = np.diagonal(flat, axis1=1, axis2=2) == 0
    inverse[absent] = 0
    inverse.swapaxes(1, 2)[absent] = 0
    return inverse.reshape(G.shape)


def solve_path(G: FloatArray, m: FloatArray, lams: FloatArray) -> FloatArray:
    """:func:`solve` for several λ from one eigendecomposition: λ × T × d × C."""
    values, vectors = np.linalg.eigh(G)
    floor = G.shape[-1] * np.finfo(float).eps * np.maximum(values[..., -1:], 0)
    weights = np.empty((len(lams), *m.shape))
    turned = vectors.swapaxes(-1, -2) @ _by_system(m, G.shape[1])
    for i, lam in enumerate(lams):
        total = values + lam
        inverse = invert(total, total > floor)
        weights[i] = _by_member(vectors @ (inverse[..., None] * turned))
    return weights


def squared_error(w: FloatArray, G: FloatArray, m: FloatArray, squares: FloatArray) -> float:
    """Σ ‖F(d̄ − X w)‖² = wᵀG w − 2 wᵀm + Σ f′² d̄², from statistics alone."""
    systems = _by_system(w, G.shape[1])
    quadratic = (systems * (G @ systems)).sum()
    return float(quadratic - 2 * (w * m).sum() + squares.sum())


def _by_system(m: FloatArray, systems: int) -> FloatArray:
    """T × d × C as T × K × d × (C or 1)."""
    return m[:, None] if systems == 1 else m.swapaxes(1, 2)[..., None]


def _by_member(w: FloatArray) -> FloatArray:
    """The inverse of :func:`_by_system`."""
    return w[:, 0] if w.shape[1] == 1 else w[..., 0].swapaxes(1, 2)


def solve_factor(R: FloatArray, m: FloatArray, lam: float) -> FloatArray:
    """The same from factors: with R = U S Vᵀ, w = V (S² + λ)⁻¹ Vᵀ m, without forming RᵀR."""
    w = np.empty_like(m)
    for system, moments in _systems(*R.shape[:2]):
        _, s, Vt = np.linalg.svd(R[system], full_matrices=False)
        total = s**2 + lam
        good = (s > max(R.shape[-2:]) * np.finfo(float).eps * s[0]) | (lam > 0)
        inverse = invert(total, good & (total > 0))
        w[moments] = Vt.T @ (inverse[:, None] * (Vt @ m[moments]))
    return w
