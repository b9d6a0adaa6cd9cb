"""Plaintext matrices times encrypted vectors, at a coordinator that cannot read the vectors.

The coordinator knows matrices A_t, has the encrypted sum of vectors m_{t,c}, and returns encrypted
w_{t,c} = A_t m_{t,c}:

:func:`multiply`
    many systems at once, in the slots of a few ciphertexts, by diagonals with baby-step giant-step
    rotations (Halevi, Shoup 2014; 2018). Needs rotation keys of a key holder.
:func:`multiply_single`
    one matrix, in the coefficients: no rotations and no rotation keys, but one ciphertext back for
    every ⌊N / (C·d)⌋ rows of the matrix, so for small C·d.
:func:`multiply_factors`
    A = U diag(v) Uᵀ as two products, the form of the thesis (eq. 3.20); twice the time.

What each role learns
    *The coordinator*, who knew A before, learns nothing: it handles public keys and ciphertexts.
    *Key holders* who decrypt the result learn w, and for each row i of A the power of two next to
    Σ_j |A_ij|·2^e_j, since every row is scaled by its own. Whatever else a product leaves in a
    ciphertext is zero (:func:`multiply`) or covered by uniform masks (:func:`multiply_single`).
    CKKS does not hide the size of the accumulated noise, which depends on A.

Precision
    Errors of w_i are a fixed fraction of Σ_j |A_ij|·2^e_j. A feature that is 0 at every client has
    m_j = 0 and, in a ridge inverse, A_jj = 1/λ: set its row and column of A to 0, or the noise of
    an encrypted 0 is magnified.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solera.core.errors import DataError, UsageError
from solera.privacy.he.ciphertexts import Encrypted, Label
from solera.privacy.he.keys import Rotations, SecretKey, WrongKey, galois
from solera.privacy.he.packing import Reals, embed, rows_per_block, stride, useful
from solera.privacy.he.ring import Parameters, Ring, ring, seal

# --- packed diagonals ----------------------------------------------------------------------------


def rotations_for(secret: SecretKey, shape: Sequence[int]) -> Rotations:
    """The rotation keys for products with vectors of shape T × C × d, and no others."""
    return secret.rotations(sorted(_steps(secret.parameters, tuple(shape))))


def _steps(parameters: Parameters, shape: tuple[int, ...]) -> set[int]:
    baby, giants = _walk(shape[-1])
    moves = {*range(baby), *(baby * giant for giant in giants)} - {0}
    return {move * stride(shape, parameters.degree) % parameters.slots for move in moves}


def _walk(size: int) -> tuple[int, range]:
    """Baby steps b and giants g such that g·b + j, 0 ≤ j < b, covers the diagonals 1−d … d−1."""
    baby = math.isqrt(2 * size - 1)
    return baby, range((1 - size) // baby, (size - 1) // baby + 1)


def multiply(encrypted: Encrypted, matrices: ArrayLike, rotations: Rotations) -> Encrypted:
    """w_{t,c} = A_t m_{t,c} for ``matrices`` T × d × d and encrypted ``systems`` T × C × d."""
    label = encrypted.label
    if label.layout != "systems":
        raise UsageError(f"multiply: the layout must be 'systems', not {label.layout!r}")
    if (label.parameters, label.pair) != (rotations.parameters, rotations.fingerprint):
        raise WrongKey("the rotation keys belong to another key pair than the ciphertext")
    if not _steps(label.parameters, label.shape) <= rotations.steps:
        raise UsageError(
            f"multiply: the rotation keys are not those of shape {label.shape}",
            hint=f"ask a key holder for rotations_for(secret, {label.shape})",
        )
    members, outputs, size = label.shape
    scaled, exponent = _scaled(matrices, (members, size, size), label)
    systems = stride(label.shape, label.parameters.degree)
    owner = np.repeat(np.arange(members), -(-outputs // 2))
    products = [
        _diagonals(scaled[owner[k * systems : (k + 1) * systems]], ciphertext, systems, rotations)
        for k, ciphertext in enumerate(encrypted.ciphertexts)
    ]
    return Encrypted(_after(label, exponent), ciphertexts=products)


def _diagonals(matrices: Reals, ciphertext: Any, systems: int, rotations: Rotations) -> Any:
    """Σ_g rot_{gbS}( Σ_j rot_{−gbS}(diag_{gb+j}) ⊙ rot_{jS}(m) ) over one block of systems."""
    parameters = rotations.parameters
    here, api = ring(parameters), seal()
    evaluator, place = here.evaluator, (ciphertext.parms_id(), 2.0**parameters.matrix_bits)
    count, size = matrices.shape[:2]

    def rotate(source: Any, move: int) -> Any:
        rotated, element = api.Ciphertext(), galois(move * systems, parameters)
        evaluator.apply_galois(source, element, rotations.galois_keys, rotated)
        return rotated

    def terms(giant: int) -> Iterator[Any]:
        for j, moved in enumerate(babies):
            k = giant * baby + j
            if abs(k) >= size:
                continue
            slots, first = np.zeros(parameters.slots), max(0, -k)
            placed = slots[: size * systems].reshape(size, systems)
            placed[first : first + size - abs(k), :count] = np.diagonal(matrices, k, 1, 2).T
            plaintext = here.encode(np.roll(slots, giant * baby * systems), *place)
            if not plaintext.is_zero():
                yield _times(here, moved, plaintext)

    def sums() -> Iterator[Any]:
        for giant in giants:
            inner = _sum(here, terms(giant))
            if inner is not None:
                yield rotate(inner, giant * baby) if giant else inner

    baby, giants = _walk(size)
    babies = [ciphertext, *(rotate(ciphertext, j) for j in range(1, baby))]
    total = _sum(here, sums())
    if total is None:  # only zeros: SEAL cannot multiply by 0, so by the smallest there is
        tiny = np.full(parameters.slots, 2.0**-parameters.matrix_bits)
        total = _times(here, ciphertext, here.encode(tiny, *place))
    return total


def multiply_factors(
    encrypted: Encrypted, factors: ArrayLike, values: ArrayLike, rotations: Rotations
) -> Encrypted:
    """w = U diag(v) Uᵀ m for U of T × d × r and v of T × r, as two products (eq. 3.20).

    With X F = U S Vᵀ and v = (S² + λ)⁻¹ these are the optimal weights. It exists to compare with
    the thesis: :func:`multiply` by the d × d matrix gives the same numbers for half the work.
    """
    left, inner = np.asarray(factors, np.float64), np.asarray(values, np.float64)
    size = encrypted.shape[-1]
    if left.ndim != 3 or inner.shape != left.shape[::2] or left.shape[-1] > size:
        raise UsageError(
            f"multiply_factors: factors {left.shape} and values {inner.shape} are not T × d × r "
            f"and T × r with r <= {size}"
        )
    square = np.pad(left, ((0, 0), (0, 0), (0, size - left.shape[-1])))
    weighted = square * np.pad(inner, ((0, 0), (0, size - left.shape[-1])))[:, None, :]
    return multiply(multiply(encrypted, square.swapaxes(1, 2), rotations), weighted, rotations)


# --- coefficients --------------------------------------------------------------------------------


def multiply_single(encrypted: Encrypted, matrix: ArrayLike) -> Encrypted:
    """w_c = A m_c for one ``matrix`` d × d and encrypted ``flat`` vectors C × d, C·d ≤ N.

    m(X) = Σ m_{c,j} X^(c·d+j) times a(X) = Σ A_{i,j} X^(i·C·d+d−1−j) has w_{c,i} as its coefficient
    i·C·d + c·d + d−1. The other coefficients are partial sums of products of A and m. They are
    masked by numbers uniform modulo the ciphertext's modulus and tell key holders nothing.
    """
    label = encrypted.label
    if sum(label.parameters.moduli[:-2]) > 60:
        raise UsageError(
            f"multiply_single: {label.parameters} has too large a modulus to mask after a product"
        )
    if label.layout != "flat" or len(label.shape) != 2 or label.blocks != 1:
        raise UsageError(
            f"multiply_single: needs 'flat' C × d vectors in one ciphertext, "
            f"not {label.layout!r} of shape {label.shape}",
            hint="use multiply for larger ones",
        )
    outputs, size = label.shape
    parameters, here = label.parameters, ring(label.parameters)
    (scaled,), exponent = _scaled(np.asarray(matrix)[None], (1, size, size), label)
    rows = rows_per_block(label.shape, parameters.degree)
    (ciphertext,) = encrypted.ciphertexts
    place = (ciphertext.parms_id(), 2.0**parameters.matrix_bits)
    products = []
    for start in range(0, size, rows):
        chunk = scaled[start : start + rows]
        polynomial = np.zeros(parameters.degree)
        spread = polynomial[: len(chunk) * outputs * size].reshape(len(chunk), -1)
        spread[:, :size] = chunk[:, ::-1]
        plaintext = here.encode(embed(polynomial), *place)
        if plaintext.is_zero():  # SEAL cannot multiply by 0, so by the smallest there is
            polynomial[0] = 2.0**-parameters.matrix_bits
            plaintext = here.encode(embed(polynomial), *place)
        product = _times(here, ciphertext, plaintext)
        here.evaluator.rescale_to_next_inplace(product)
        _mask(here, product, label.shape)
        products.append(product)
    return Encrypted(replace(_after(label, exponent[0]), layout="rows"), ciphertexts=products)


def _mask(here: Ring, product: Any, shape: tuple[int, ...]) -> None:
    """Add numbers uniform modulo q, down to the noise, to all coefficients that hold no result.

    The encoder takes numbers up to q/4; added twice they cover the whole range.
    """
    degree = here.parameters.degree
    words = np.frombuffer(secrets.token_bytes(8 * degree), np.int64)
    mask = words * (math.prod(here.primes[:-1]) / 2.0**65)
    mask[useful(shape, degree)] = 0
    plaintext = here.encode(embed(mask / product.scale), product.parms_id(), product.scale)
    for _ in range(2):
        here.evaluator.add_plain_inplace(product, plaintext)


# --- both ----------------------------------------------------------------------------------------


def _scaled(
    matrices: ArrayLike, shape: tuple[int, int, int], label: Label
) -> tuple[Reals, NDArray[np.int16]]:
    """A_ij·2^(e_j − r_i) with rows of L1 norm at most 1, and the exponents r_i as T × 1 × d.

    e_j is the exponent of m_j. |Σ_j A'_ij m'_j| ≤ max |m'|: a product needs no more headroom
    than the sum it is applied to, and each row is as precise as its own size allows.
    """
    parameters, level = label.parameters, label.level + 1
    if level > parameters.depth:
        raise UsageError(
            f"{parameters} allows {parameters.depth} products, this would be number {level}",
            hint="generate the keys with COORDINATOR, or COMPAT for two products",
        )
    if label.addends > parameters.headroom(level):
        raise UsageError(
            f"a product of a sum of {label.addends} arrays overflows {parameters}, "
            f"which has room for {parameters.headroom(level)}",
            hint="use parameters with fewer scale_bits",
        )
    values = np.asarray(matrices, np.float64)
    if values.shape != shape:
        raise UsageError(f"matrices of shape {values.shape} do not fit vectors {label.shape}")
    if label.exponent.ndim > 1 and label.exponent.shape[-2] > 1:
        raise UsageError("outputs that share a matrix must share their magnitude")
    entering = np.broadcast_to(label.exponent, (shape[0], 1, shape[2])).astype(np.int64)
    rows = np.abs(np.ldexp(values, entering)).sum(axis=2)
    if not np.isfinite(rows).all():
        raise DataError("a matrix with NaN or infinite entries cannot be applied")
    leaving = np.where(rows > 0, np.frexp(rows)[1], 0)
    scaled = np.ldexp(values, entering - leaving[:, :, None])
    return scaled, leaving[:, None, :].astype(np.int16)


def _after(label: Label, exponent: NDArray[np.int16]) -> Label:
    return replace(label, exponent=exponent, level=label.level + 1)


def _times(here: Ring, ciphertext: Any, plaintext: Any) -> Any:
    product = seal().Ciphertext()
    here.evaluator.multiply_plain(ciphertext, plaintext, product)
    return product


def _sum(here: Ring, terms: Iterator[Any]) -> Any | None:
    """Σ of ciphertexts, into the first; None of none."""
    total = next(terms, None)
    for term in terms:
        here.evaluator.add_inplace(total, term)
    return total
