"""Masks: words that look random, of which those of a pair of clients cancel.

A mask is the keystream of AES-128 in counter mode, as machine words, for a key that is used once.
A client adds the masks of pairs in which it comes first and takes away those of the others, all
modulo 2³² or 2⁶⁴ (Bonawitz et al. 2017, equation 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.errors import MissingExtra

Words = NDArray[np.uint32] | NDArray[np.uint64]

KEY = 16
"""Bytes of the key of a mask."""
_CHUNK = 1 << 17
"""Bytes of all masks that are added before the next: they stay in the processor's cache."""
_BLOCK = 16


def keystream(key: bytes, words: int, dtype: Any = np.uint64) -> NDArray[Any]:
    """The first words of a mask."""
    masked = np.zeros(words, dtype)
    add_masks(masked, [key], [])
    return masked


def add_masks(values: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Add the masks of some keys to the values, in place, and take those of others away."""
    size = values.dtype.itemsize
    signed: list[tuple[Any, Any]] = [(_encryptor(key), np.add) for key in plus]
    signed += [(_encryptor(key), np.subtract) for key in minus]
    length = _CHUNK // size
    zeros = bytes(_CHUNK)
    room = bytearray(_CHUNK + _BLOCK)
    mask = np.frombuffer(room, dtype=values.dtype.newbyteorder("<"), count=length)
    for start in range(0, len(values), length):
        part = values[start : start + length]
        plain = zeros if len(part) == length else bytes(len(part) * size)
        for encryptor, change in signed:
            encryptor.update_into(plain, room)
            change(part, mask[: len(part)], out=part)


def _encryptor(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        raise MissingExtra.of("a secure sum", "secure") from None
    return Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK))).encryptor()
