"""The thesis's algorithms 2 to 9 as they are written, to measure against.

One SVD per output at the client, one SVD of the concatenation per output and client at the
coordinator, one TenSEAL vector per output, two ciphertext × matrix products for the weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def inverse(d: Floats) -> Floats:
    return -np.log(1 / d - 1)


def slope(d: Floats) -> Floats:
    return d * (1 - d)


def fit(X: Floats, d: Floats) -> tuple[list[Floats], list[Floats]]:
    """Algorithm 2 for every output: X is rows × features, d is rows × outputs."""
    Xp = np.vstack([np.ones((1, len(X))), X.T])
    moments, factors = [], []
    for c in range(d.shape[1]):
        d_bar = inverse(d[:, c])
        f = slope(d[:, c])
        F = np.diag(f) if len(f) <= 2000 else None
        XF = Xp @ F if F is not None else Xp * f
        U, S, _ = np.linalg.svd(XF, full_matrices=False)
        factors.append(U @ np.diag(S))
        moments.append(Xp @ (f * f * d_bar))
    return moments, factors


def fit_ensemble(
    X: Floats, d: Floats, patches: NDArray[np.int64], share: float, rng: np.random.Generator
) -> list[tuple[list[Floats], list[Floats]]]:
    """Algorithm 6."""
    found = []
    for features in patches:
        rows = rng.choice(len(X), round(share * len(X)), replace=True)
        found.append(fit(X[rows][:, features], d[rows]))
    return found


def aggregate(clients: list[tuple[list[Any], list[Floats]]]) -> tuple[list[Any], list[Any]]:
    """Algorithm 4: moments added, factors concatenated and decomposed, client by client."""
    m, US = list(clients[0][0]), list(clients[0][1])
    decomposed: list[Any] = [None] * len(m)
    for moments, factors in clients[1:]:
        for c in range(len(m)):
            m[c] = m[c] + moments[c]
            U, S, _ = np.linalg.svd(np.hstack([US[c], factors[c]]), full_matrices=False)
            US[c], decomposed[c] = U @ np.diag(S), (U, S)
    if decomposed[0] is None:
        decomposed = [np.linalg.svd(us, full_matrices=False)[:2] for us in US]
    return m, decomposed


def weights(m: list[Floats], decomposed: list[Any], lam: float) -> list[Floats]:
    """Algorithm 5, Eq. 3.20."""
    found = []
    for moment, (U, S) in zip(m, decomposed, strict=True):
        found.append(U @ (np.linalg.inv(np.diag(S * S + lam)) @ (U.T @ moment)))
    return found


def context() -> Any:
    """A TenSEAL context for two products in a row at the size the authors used."""
    import tenseal as ts

    made = ts.context(
        ts.SCHEME_TYPE.CKKS,
        poly_modulus_degree=32768,
        coeff_mod_bit_sizes=[60, 40, 40, 60],
    )
    made.generate_galois_keys()
    made.global_scale = 2**40
    return made


def encrypted_weights(encrypted: Any, U: Floats, S: Floats, lam: float) -> Any:
    """Algorithm 5 on an encrypted moment: [[m]] U, then times diag(1/(S² + λ)) Uᵀ."""
    turned = encrypted.matmul(U.tolist())
    return turned.matmul((np.diag(1 / (S * S + lam)) @ U.T).tolist())
