"""Encrypted arrays: made, added, decrypted, and written as payloads."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solera.core.errors import DataError, PayloadError, UsageError
from solera.core.payload import encode_pieces
from solera.privacy.he.keys import PublicKey, Rotations, SecretKey, WrongKey
from solera.privacy.he.packing import LAYOUTS, Layout, Reals, block_count, fits, pack, unpack
from solera.privacy.he.ring import Parameters, dump, ring, seal

_MOST = 1000
"""Exponents are within ± this, far from where a float overflows."""


@dataclass(frozen=True, eq=False)
class Label:
    """What a ciphertext says about itself in the clear.

    The array is the decrypted numbers times 2^``exponent``, a whole number or an array of them that
    broadcasts to ``shape``. ``addends`` arrays were summed, ``level`` matrices were applied.
    """

    parameters: Parameters
    pair: bytes
    layout: Layout
    shape: tuple[int, ...]
    exponent: NDArray[np.int16]
    addends: int = 1
    level: int = 0

    @property
    def blocks(self) -> int:
        return block_count(self.layout, self.shape, self.parameters.degree)

    def check(self) -> None:
        """Refuse what no honest sender produces, before anything is computed from it."""
        shape, degree = self.shape, self.parameters.degree
        if len(shape) > 32 or math.prod(shape) > 1 << 40:
            raise PayloadError(f"damaged ciphertext: shape {shape} is too large")
        if self.layout not in LAYOUTS or not fits(self.layout, shape, degree):
            raise PayloadError(f"damaged ciphertext: no layout {self.layout!r} of shape {shape}")
        least, most = {"flat": (0, 0), "rows": (1, 1)}.get(self.layout, (0, self.parameters.depth))
        if not least <= self.level <= min(most, self.parameters.depth):
            raise PayloadError(f"damaged ciphertext: {self.level} products were applied to it")
        _check_exponent(self.exponent, shape, PayloadError)
        if not 1 <= self.addends <= self.parameters.headroom(self.level):
            raise PayloadError(
                f"a sum of {self.addends} arrays overflows {self.parameters}",
                hint="use parameters with fewer scale_bits",
            )


def _check_exponent(
    exponent: NDArray[Any], shape: tuple[int, ...], error: type[PayloadError] | type[UsageError]
) -> None:
    try:
        fitting = np.broadcast_shapes(exponent.shape, shape) == shape
    except ValueError:
        fitting = False
    if (
        exponent.dtype.kind != "i"
        or not fitting
        or not (-_MOST <= exponent.min() <= exponent.max() <= _MOST)
    ):
        raise error(
            f"a magnitude is whole numbers within ±{_MOST} that broadcast to {shape}, "
            f"not {exponent.dtype} of shape {exponent.shape}"
        )


class Encrypted:
    """An encrypted array, or a sum of them: a label and the ciphertexts of its blocks.

    It holds bytes when it comes from :func:`encrypt`, SEAL's objects when it was computed or
    received, and makes the one from the other when asked.
    """

    def __init__(
        self,
        label: Label,
        *,
        data: Sequence[bytes] | None = None,
        ciphertexts: Sequence[Any] | None = None,
    ) -> None:
        self.label = label
        if data is not None:
            self.data = tuple(data)
        if ciphertexts is not None:
            self.ciphertexts = tuple(ciphertexts)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.label.shape

    @cached_property
    def data(self) -> tuple[bytes, ...]:
        return tuple(dump(ciphertext) for ciphertext in self.ciphertexts)

    @cached_property
    def ciphertexts(self) -> tuple[Any, ...]:
        label = self.label
        here = ring(label.parameters)
        return tuple(here.ciphertext(block, label.layout, label.level) for block in self.data)

    def __repr__(self) -> str:
        return f"Encrypted(shape={self.shape}, addends={self.label.addends})"

    def to_payload(self) -> dict[str, Any]:
        """Scalars and bytes, with a SHA-256 over all of them against damage on the way."""
        fields = {
            **vars(self.label),
            "parameters": self.label.parameters.to_list(),
            "shape": list(self.shape),
            "blocks": list(self.data),
        }
        return fields | {"sha256": _digest(fields)}

    @classmethod
    def from_payload(
        cls, payload: Any, key: PublicKey | SecretKey | Rotations | None = None
    ) -> Encrypted:
        """The inverse, or a :class:`PayloadError`. With ``key``, anything of another key pair is
        refused here rather than when it is added; without it, weak parameters are. What is no
        payload but an encrypted array already is returned as it is."""
        if isinstance(payload, cls):
            return payload
        if (
            not isinstance(payload, Mapping)
            or {name: type(value) for name, value in payload.items()} != _FIELDS
        ):
            raise PayloadError("not an encrypted array: its fields are not those of this version")
        fields = {name: payload[name] for name in _FIELDS if name != "sha256"}
        if _digest(fields) != payload["sha256"]:
            raise PayloadError("damaged ciphertext: its checksum is wrong")
        numbers, shape = fields["parameters"], tuple(fields["shape"])
        if any(type(number) is not int for number in (*numbers, *shape)):
            raise PayloadError("damaged ciphertext: its parameters or shape are no whole numbers")
        if key is None:
            parameters = Parameters.from_list(numbers)
        elif (numbers, fields["pair"]) == (key.parameters.to_list(), key.fingerprint):
            parameters = key.parameters
        else:
            raise WrongKey("the ciphertext was made with another key pair")
        blocks = fields.pop("blocks")
        label = Label(**{**fields, "parameters": parameters, "shape": shape})
        label.check()
        if len(blocks) != label.blocks or any(type(block) is not bytes for block in blocks):
            raise PayloadError(f"damaged ciphertext: not {label.blocks} blocks of bytes")
        received = cls(label, data=blocks)
        return cls(label, ciphertexts=received.ciphertexts)


_FIELDS = {
    "parameters": list,
    "pair": bytes,
    "layout": str,
    "shape": list,
    "exponent": np.ndarray,
    "addends": int,
    "level": int,
    "blocks": list,
    "sha256": bytes,
}


def _digest(fields: Mapping[str, Any]) -> bytes:
    digest = hashlib.sha256()
    for piece in encode_pieces(fields):
        digest.update(piece)
    return digest.digest()


def magnitude_of(array: ArrayLike) -> int:
    """The smallest e with |x| ≤ 2ᵉ for every x: what a client needs, for agreeing on one."""
    largest = float(np.max(np.abs(np.asarray(array, np.float64)), initial=0.0))
    mantissa, exponent = np.frexp(largest)
    return int(exponent) - int(mantissa == 0.5)


def encrypt(
    key: SecretKey | PublicKey,
    array: ArrayLike,
    *,
    magnitude: int | NDArray[np.integer[Any]],
    layout: Layout = "flat",
) -> Encrypted:
    """Encrypt an array whose entries are within ±2^``magnitude``.

    The magnitude is public, and one sum has one magnitude: agree on it beforehand. It may be an
    array that broadcasts to the shape, such as one entry per feature. A larger one than needed
    costs precision: errors are a fixed fraction of 2^magnitude. ``layout="systems"`` is for
    :func:`solera.privacy.he.products.multiply`.
    """
    values = np.asarray(array)
    if values.dtype.kind not in "biuf":
        raise DataError(f"only real numbers can be encrypted, not {values.dtype}")
    if layout == "rows" or not fits(layout, values.shape, key.parameters.degree):
        raise UsageError(
            f"encrypt(layout={layout!r}): no place for shape {values.shape} at degree "
            f"{key.parameters.degree}",
            hint="'flat' takes any shape but an empty one, 'systems' T × C × d with d <= N/2",
        )
    exponent = np.asarray(magnitude)
    _check_exponent(exponent, values.shape, UsageError)
    scaled: Reals = np.ldexp(values.astype(np.float64), -exponent)
    if not np.isfinite(scaled).all():
        raise DataError("an array with NaN or infinite entries cannot be encrypted")
    if np.abs(scaled).max() > 1:
        raise UsageError(
            f"encrypt: entries up to {np.abs(values).max():.3g} exceed 2^magnitude",
            hint=f"agree on magnitude={magnitude_of(values)} or more with the other clients",
        )
    here = ring(key.parameters)
    place = here.place(layout, 0)
    slots = pack(scaled, layout, key.parameters.degree)
    blocks = [key.encrypt_block(here.encode(block, *place)) for block in slots]
    label = Label(key.parameters, key.fingerprint, layout, values.shape, exponent.astype(np.int16))
    return Encrypted(label, data=blocks)


def add(a: Encrypted, b: Encrypted) -> Encrypted:
    """The encrypted sum; any order and grouping of additions gives the same ciphertext."""
    x, y = a.label, b.label
    if (x.parameters, x.pair) != (y.parameters, y.pair):
        raise WrongKey("ciphertexts of different key pairs cannot be added")
    for name in ("layout", "shape", "level"):
        one, other = getattr(x, name), getattr(y, name)
        if one != other:
            raise PayloadError(f"cannot add encrypted arrays of {name} {one!r} and {other!r}")
    if not np.array_equal(x.exponent, y.exponent):
        raise PayloadError(
            "cannot add encrypted arrays of different magnitudes",
            hint="all clients of a sum encrypt with the same magnitude=",
        )
    label = replace(x, addends=x.addends + y.addends)
    label.check()
    evaluator, sums = ring(label.parameters).evaluator, []
    for left, right in zip(a.ciphertexts, b.ciphertexts, strict=True):
        total = seal().Ciphertext()
        evaluator.add(left, right, total)
        sums.append(total)
    return Encrypted(label, ciphertexts=sums)


def decrypt(secret: SecretKey, encrypted: Encrypted) -> Reals:
    """The array; only key holders can."""
    if not isinstance(secret, SecretKey):
        raise UsageError(f"decrypt: needs a SecretKey, not a {type(secret).__name__}")
    label = encrypted.label
    if (secret.parameters, secret.fingerprint) != (label.parameters, label.pair):
        raise WrongKey("the ciphertext was made with another key pair")
    slots = np.stack([secret.decrypt_block(ciphertext) for ciphertext in encrypted.ciphertexts])
    return np.ldexp(unpack(slots, label.layout, label.shape), label.exponent)
