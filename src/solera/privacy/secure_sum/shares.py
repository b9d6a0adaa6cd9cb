"""Secrets in shares: any t of m holders can put one together, t − 1 know nothing (Shamir 1979).

Every byte of the secret is the value at 0 of a polynomial of degree t − 1 over GF(2⁸), the field of
AES (x⁸ + x⁴ + x³ + x + 1); holder h has its value at h + 1. All bytes and holders are computed at
once, by a table of products.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from solera.core.errors import PayloadError, UsageError

Bytes = NDArray[np.uint8]

MOST_HOLDERS = 255
"""Points of the field besides 0, at which the secret is."""
_POLYNOMIAL = 0x11B


@cache
def _tables() -> tuple[NDArray[np.int64], Bytes, Bytes]:
    """Logarithms, powers of the generator (twice, so that sums need no modulus) and products."""
    power = np.zeros(510, dtype=np.uint8)
    value = 1
    for exponent in range(255):
        power[exponent] = power[exponent + 255] = value
        doubled = value << 1
        value ^= doubled ^ (_POLYNOMIAL if doubled & 0x100 else 0)
    log = np.zeros(256, dtype=np.int64)
    log[power[:255]] = np.arange(255)
    product = power[log[:, None] + log]
    product[0, :] = product[:, 0] = 0
    return log, power, product


def split(secret: bytes, holders: int, threshold: int) -> Bytes:
    """The shares of so many holders, a line each, of which ``threshold`` give the secret."""
    if not 1 <= threshold <= holders <= MOST_HOLDERS:
        raise UsageError(
            f"{threshold} of {holders} shares: at most {MOST_HOLDERS} holders, and no more are "
            "needed than there are"
        )
    _, _, product = _tables()
    random = secrets.token_bytes((threshold - 1) * len(secret))
    coefficients = np.frombuffer(random + secret, dtype=np.uint8).reshape(threshold, len(secret))
    points = np.arange(1, holders + 1, dtype=np.uint8)[:, None]
    shares = np.zeros((holders, len(secret)), dtype=np.uint8)
    for coefficient in coefficients:  # Horner's rule, the secret last
        shares = product[shares, points] ^ coefficient
    return shares


def combine(holders: Sequence[int], shares: Bytes) -> bytes:
    """The secret of which these holders, numbered from 0, have these shares.

    With fewer than the threshold the result is a random one: no share is known to be right.
    """
    points = np.asarray(holders, dtype=np.int64) + 1
    if len(set(points.tolist())) != len(points) or len(points) != len(shares):
        raise PayloadError(f"{len(shares)} shares of holders {list(holders)[:10]} do not fit")
    if not len(points) or points.min() < 1 or points.max() > MOST_HOLDERS:
        raise PayloadError(f"holders of a share are 0 to {MOST_HOLDERS - 1}")
    log, power, product = _tables()
    apart = points[:, None] ^ points
    np.fill_diagonal(apart, 1)  # whose logarithm is 0
    above = log[points].sum() - log[points]
    weights = power[(above - log[apart].sum(axis=1)) % 255]
    parts = product[weights[:, None], shares]
    return bytes(np.bitwise_xor.reduce(parts, axis=0).tobytes())
