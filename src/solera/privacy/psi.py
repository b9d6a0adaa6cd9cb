"""Private set intersection by commutative encryption on Curve25519.

Every identifier x becomes a point H(x) of the curve, and every party k multiplies points by a
secret number a_k of its own. Multiplications commute: once all parties have multiplied them, the
points of two parties are equal where, and only where, their identifiers are,

    a_1 ⋯ a_n H(x) = a_1 ⋯ a_n H(y)  ⇔  x = y,

and to whoever lacks one of the numbers they are as good as random (Meadows 1986; Huberman, Franklin
& Hogg 1999; the decisional Diffie-Hellman problem, about 126 bits). Nobody can try identifiers
that he guesses on them, as he could on hashes.

Points are u-coordinates and the product is X25519 (RFC 7748) of the library *cryptography*: numbers
are multiples of 8, which removes the small subgroups. H(x) takes SHA-512 of x until it is the
coordinate of a point of the curve itself rather than of its twist; otherwise the side would be
kept by all multiplications, and tell one bit of every identifier. The library holds Python's lock
while it multiplies, so threads do not help: parties work at the same time in processes of their
own, at agents and with ``engine="processes"``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from solera.core.errors import MissingExtra, Refusal

_P = 2**255 - 19
_A = 486662
_MASK = 2**255 - 1
POINT = 32
"""Bytes of a point."""
SHOWN = 16
"""Bytes by which points are compared once all parties have multiplied them."""


def points_of(identifiers: Sequence[str]) -> bytes:
    """The points of these identifiers, one after the other."""
    try:
        from gmpy2 import legendre, mpz
    except ImportError:
        raise MissingExtra.of("private set intersection", "vertical") from None
    p, a = mpz(_P), mpz(_A)
    sha512, points = hashlib.sha512, []
    for identifier in identifiers:
        data = b"solera psi 1\0" + identifier.encode()
        while True:
            data = sha512(data).digest()
            u = mpz(int.from_bytes(data[:POINT], "little") & _MASK)
            if legendre(u * (u * (u + a) + 1) % p, p) == 1:
                points.append(int(u % p).to_bytes(POINT, "little"))
                break
    return b"".join(points)


def multiplied(points: bytes, number: bytes) -> bytes:
    """The points times a party's secret number, 32 bytes."""
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ImportError:
        raise MissingExtra.of("private set intersection", "vertical") from None
    exchange = x25519.X25519PrivateKey.from_private_bytes(number).exchange
    point = x25519.X25519PublicKey.from_public_bytes
    if len(points) % POINT:
        raise Refusal(f"{len(points):,} bytes are no list of points")
    points = bytes(points)
    try:
        product = [exchange(point(points[at : at + POINT])) for at in range(0, len(points), POINT)]
    except ValueError:  # a point of low order, which hides nothing
        raise Refusal("a point that no identifier has") from None
    return b"".join(product)


def shown(points: bytes) -> list[bytes]:
    """By what points that all parties have multiplied are compared."""
    return [points[at : at + SHOWN] for at in range(0, len(points), POINT)]


def matches(shown_by: Sequence[Sequence[bytes]]) -> list[list[int]]:
    """For every party the places in its list of what all have, in an order that is all's."""
    common: Any = set(shown_by[0])
    for values in shown_by[1:]:
        common = common.intersection(values)
    ordered = sorted(common)
    found = []
    for values in shown_by:
        place = {value: i for i, value in enumerate(values)}
        found.append([place[value] for value in ordered])
    return found


def commitment(contribution: bytes) -> bytes:
    """What a party shows of its contribution before it knows those of others."""
    return hashlib.sha256(b"solera psi commitment 1" + contribution).digest()


def together(contributions: Sequence[bytes]) -> bytes:
    """What no party could choose alone, if one of them drew at random."""
    total = bytes(32)
    for contribution in contributions:
        total = bytes(x ^ y for x, y in zip(total, contribution, strict=True))
    return hashlib.sha256(b"solera psi order 1" + total).digest()
