"""Plaintext matrices times encrypted vectors, against NumPy; what a result does not say."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from solera.core import payload
from solera.core.errors import DataError, SoleraError, UsageError
from solera.privacy import he
from solera.privacy.he import products
from solera.privacy.he.packing import extract, useful

RING = {
    "client": he.CLIENT,
    "coordinator": he.COORDINATOR,
    "compat": he.COMPAT,
    "small": he.SMALL,
    "small_client": he.SMALL_CLIENT,
}


@cache
def pair(name: str = "client") -> he.SecretKey:
    pytest.importorskip("tenseal", reason="the extra 'he' (tenseal) is not installed")
    return he.generate(RING[name])


def travel(encrypted: he.Encrypted, key: Any = None) -> he.Encrypted:
    """Through the wire and back."""
    return he.Encrypted.from_payload(payload.decode(payload.encode(encrypted.to_payload())), key)


def relative(found: Any, wanted: Any) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


TOLERANCE = {"coordinator": 1e-6, "compat": 1e-6, "small": 1e-4}


@cache
def rotations(name: str, shape: tuple[int, ...]) -> he.Rotations:
    return products.rotations_for(pair(name), shape)


def ridge(members: int, outputs: int, size: int, lam: float = 0.01) -> tuple[Any, Any, Any]:
    """Grams G_t + λI, right-hand sides m_{t,c} and weights w_{t,c} of random regressions."""
    rng = np.random.default_rng(size)
    x = rng.normal(size=(members, size, 3 * size))
    m = np.einsum("tdn,tcn->tcd", x, rng.normal(size=(members, outputs, 3 * size)))
    gram = x @ x.swapaxes(1, 2) + lam * np.eye(size)
    return gram, m, np.linalg.solve(gram, m.swapaxes(1, 2)).swapaxes(1, 2)


SHAPES = [(1, 1, 1), (1, 3, 5), (4, 10, 17), (7, 3, 33), (2, 10, 65), (40, 5, 30)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["coordinator", "small"])
def test_packed_diagonals(name: str, shape: tuple[int, ...]) -> None:
    gram, m, weights = ridge(*shape)
    halves = [
        he.encrypt(pair(name), half, magnitude=7, layout="systems") for half in (m / 4, m * 3 / 4)
    ]
    turns = he.Rotations.from_bytes(rotations(name, shape).to_bytes())
    product = products.multiply(he.add(*halves), np.linalg.inv(gram), turns)
    found = he.decrypt(pair(name), travel(product, pair(name)))
    assert relative(found, weights) < TOLERANCE[name]


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (10, 17), (10, 65), (1, 90), (63, 65)])
@pytest.mark.parametrize("name", ["coordinator", "small"])
def test_coefficient_product(name: str, shape: tuple[int, int]) -> None:
    if np.prod(shape) > RING[name].degree:
        pytest.skip("does not fit into one small ciphertext")
    gram, m, weights = ridge(1, *shape)
    halves = [he.encrypt(pair(name), half, magnitude=7) for half in (m[0] / 4, m[0] * 3 / 4)]
    product = products.multiply_single(he.add(*halves), np.linalg.inv(gram[0]))
    found = he.decrypt(pair(name), travel(product, pair(name)))
    assert relative(found, weights[0]) < TOLERANCE[name]


@pytest.mark.parametrize("shape", [(1, 3, 5), (3, 4, 17)])
def test_two_products_as_in_the_thesis(shape: tuple[int, ...]) -> None:
    gram, m, weights = ridge(*shape)
    values, vectors = np.linalg.eigh(gram)
    encrypted = he.encrypt(pair("compat"), m, magnitude=7, layout="systems")
    product = products.multiply_factors(encrypted, vectors, 1 / values, rotations("compat", shape))
    assert relative(he.decrypt(pair("compat"), travel(product)), weights) < TOLERANCE["compat"]
    thin = products.multiply_factors(
        encrypted, vectors[:, :, 2:], 1 / values[:, 2:], rotations("compat", shape)
    )
    some = vectors[:, :, 2:]
    wanted = np.einsum("tij,tj,tkj,tck->tci", some, 1 / values[:, 2:], some, m)
    assert relative(he.decrypt(pair("compat"), thin), wanted) < TOLERANCE["compat"]


def test_digits_ridge_weights_in_every_mode() -> None:
    """Unscaled pixels, three of them always 0, λ = 0.01: the conditioning of a real case."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = np.column_stack([np.ones(len(x)), x])
    target = np.where(y[:, None] == np.arange(10), 0.95, 0.05)
    slope = target * (1 - target)
    gram = (x.T * slope[:, 0] ** 2) @ x + 0.01 * np.eye(65)
    m = (x.T @ (slope**2 * np.log(target / (1 - target)))).T
    inverse, weights, magnitude = np.linalg.inv(gram), np.linalg.solve(gram, m.T).T, 8
    flat = he.encrypt(pair(), m, magnitude=magnitude)
    assert relative(np.linalg.solve(gram, he.decrypt(pair(), flat).T).T, weights) < 1e-6
    flat = he.encrypt(pair("coordinator"), m, magnitude=magnitude)
    found = he.decrypt(pair("coordinator"), products.multiply_single(flat, inverse))
    assert relative(found, weights) < 1e-6
    values, vectors = np.linalg.eigh(gram)
    for name, arguments in (
        ("coordinator", [inverse[None]]),
        ("compat", [vectors[None], 1 / values[None]]),
    ):
        product = products.multiply if len(arguments) == 1 else products.multiply_factors
        systems = he.encrypt(pair(name), m[None], magnitude=magnitude, layout="systems")
        encrypted = product(systems, *arguments, rotations(name, (1, 10, 65)))
        assert relative(he.decrypt(pair(name), encrypted)[0], weights) < 1e-6


def test_each_row_and_feature_keeps_its_own_precision() -> None:
    """Rows of A and features of m that differ by 2^40 are all precise to 1e-6 of themselves."""
    shape = (2, 4, 12)
    rng = np.random.default_rng(8)
    magnitude = rng.integers(-20, 20, size=(2, 1, 12))
    m = rng.uniform(-1, 1, size=shape) * 2.0**magnitude
    a = rng.uniform(0.5, 1, size=(2, 12, 12)) * 2.0 ** rng.integers(-20, 20, size=(2, 12, 1))
    wanted = np.einsum("tij,tcj->tci", a, m)
    bound = np.einsum("tij,toj->toi", a, 2.0**magnitude)
    systems = he.encrypt(pair("coordinator"), m, magnitude=magnitude, layout="systems")
    product = products.multiply(systems, a, rotations("coordinator", shape))
    found = he.decrypt(pair("coordinator"), travel(product))
    assert np.abs((found - wanted) / bound).max() < 1e-9
    flat = he.encrypt(pair("coordinator"), m[0], magnitude=magnitude[0])
    found = he.decrypt(pair("coordinator"), products.multiply_single(flat, a[0]))
    assert np.abs((found - wanted[0]) / bound[0]).max() < 1e-8


@pytest.mark.parametrize("matrix", [np.zeros((3, 3)), np.diag([1.0, 0, 0]), np.diag([1, 1e-40, 1])])
def test_matrices_with_nothing_in_them(matrix: Any) -> None:
    m = np.arange(6.0).reshape(2, 3) + 1
    secret = pair("coordinator")
    single = products.multiply_single(he.encrypt(secret, m, magnitude=3), matrix)
    systems = he.encrypt(secret, m[None], magnitude=3, layout="systems")
    many = products.multiply(systems, matrix[None], rotations("coordinator", (1, 2, 3)))
    for product in (single, many):
        assert np.allclose(he.decrypt(secret, travel(product)), m @ matrix.T, atol=1e-7)


def test_a_result_says_no_more_than_the_weights() -> None:
    """All that a key holder can decrypt besides w is zero, or uniform and new each time."""
    secret, shape = pair("coordinator"), (3, 5, 7)
    gram, m, _ = ridge(*shape)
    systems = he.encrypt(secret, m, magnitude=7, layout="systems")
    product = products.multiply(systems, np.linalg.inv(gram), rotations("coordinator", shape))
    slots = secret.decrypt_block(product.ciphertexts[0])
    assert np.abs(slots[9 * 7 :]).max() < 1e-9
    unpaired = slots[: 9 * 7].reshape(7, 9)[:, 2::3]
    assert np.abs(unpaired.imag).max() < 1e-9
    flat, inverse = he.encrypt(secret, m[0], magnitude=7), np.linalg.inv(gram[0])
    results = useful((5, 7), he.COORDINATOR.degree)
    seen = []
    for _ in range(2):
        (block,) = products.multiply_single(flat, inverse).ciphertexts
        coefficients = extract(secret.decrypt_block(block)) * block.scale / 2.0**59
        assert np.abs(coefficients[results]).max() < 2.0**-12
        seen.append(np.delete(coefficients, results))
    for masked in seen:
        counts, _ = np.histogram(masked, bins=16, range=(-1, 1))
        expected = masked.size / 16
        assert ((counts - expected) ** 2 / expected).sum() < 60, "15 degrees of freedom: p < 3e-7"
    assert abs(np.corrcoef(*seen)[0, 1]) < 0.1


def test_products_that_make_no_sense_are_refused() -> None:
    secret, shape = pair("coordinator"), (2, 4, 12)
    turns, matrices = rotations("coordinator", shape), np.ones((2, 12, 12))
    systems = he.encrypt(secret, np.ones(shape), magnitude=0, layout="systems")
    flat = he.encrypt(secret, np.ones((4, 12)), magnitude=0)
    cases: list[tuple[type[SoleraError], str, Any]] = [
        (UsageError, "must be 'systems'", lambda: products.multiply(flat, matrices, turns)),
        (UsageError, "'flat' C × d", lambda: products.multiply_single(systems, matrices[0])),
        (UsageError, "do not fit", lambda: products.multiply(systems, matrices[:1], turns)),
        (UsageError, "do not fit", lambda: products.multiply_single(flat, np.ones((3, 3)))),
        (DataError, "NaN", lambda: products.multiply(systems, matrices * np.nan, turns)),
        (
            UsageError,
            "rotations_for",
            lambda: products.multiply(systems, matrices, rotations("coordinator", (1, 2, 3))),
        ),
        (
            UsageError,
            "allows 1 products",
            lambda: products.multiply(products.multiply(systems, matrices, turns), matrices, turns),
        ),
        (
            UsageError,
            "allows 0 products",
            lambda: products.multiply_single(
                he.encrypt(pair(), np.ones((4, 12)), magnitude=0), matrices[0]
            ),
        ),
        (
            he.WrongKey,
            "another key pair",
            lambda: products.multiply(
                he.encrypt(pair("small"), np.ones(shape), magnitude=0, layout="systems"),
                matrices,
                turns,
            ),
        ),
        (
            UsageError,
            "share their magnitude",
            lambda: products.multiply_single(
                he.encrypt(secret, np.ones((4, 12)), magnitude=np.zeros((4, 1), int)), matrices[0]
            ),
        ),
    ]
    for error, named, call in cases:
        with pytest.raises(error, match=named):
            call()
    crowd = he.Encrypted(
        replace(flat.label, addends=he.COORDINATOR.headroom(1) + 1), ciphertexts=flat.ciphertexts
    )
    with pytest.raises(UsageError, match="room for 16384"):
        products.multiply_single(crowd, matrices[0])
