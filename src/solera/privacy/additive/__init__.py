"""Additive ciphers behind one interface: encrypted vectors of whole numbers times plain matrices.

``ckks`` (rows as coefficients) and ``paillier`` (3072 bits) do the same:

    secret = generate("ckks")
    form = secret.public.form(vectors=1, rows=4, columns=2, sum_bits=20)
    encrypted = secret.encrypt(values, form)                       # 1 × 4 whole numbers
    products = secret.public.multiply(encrypted, prepared, form)   # by whoever knows the matrix
    secret.public.unmask(secret.decrypt(products.blocks, form, 2), products.masks, form, 2)

``plain`` encrypts nothing, for comparison. Keys come from the system's randomness, or from a seed
of secret bytes where a program that is started again must find the same key.
"""

from __future__ import annotations

from typing import Literal

from solera.core.errors import PayloadError, UsageError
from solera.privacy import he
from solera.privacy.additive import ckks, paillier, plain
from solera.privacy.additive.interface import (
    Blocks,
    Form,
    Products,
    PublicKey,
    SecretKey,
    WeakCipher,
)

__all__ = [
    "Blocks", "CipherName", "Form", "Products", "PublicKey", "SecretKey", "WeakCipher", "generate",
    "read_public", "read_secret",
]  # fmt: skip

CipherName = Literal["ckks", "paillier", "paillier-2048", "plain"]
"""``paillier`` is of 3072 bits; ``paillier-2048`` warns; ``plain`` encrypts nothing and warns."""


def generate(cipher: CipherName, seed: bytes | None = None) -> SecretKey:
    """A new key pair; the same from the same ``seed`` of secret random bytes."""
    if cipher == "ckks":
        return ckks.generate(seed)
    if cipher == "paillier":
        return paillier.generate(3072, seed)
    if cipher == "paillier-2048":
        return paillier.generate(2048, seed)
    if cipher == "plain":
        return plain.PlainSecret()
    raise UsageError(f"generate(cipher={cipher!r}): there is no such cipher")


def read_public(cipher: CipherName, data: bytes) -> PublicKey:
    """A public key of that cipher, and of no weaker one, out of its bytes."""
    if cipher == "ckks":
        return ckks.CkksKey(he.PublicKey.from_bytes(data))
    if cipher == "plain":
        if data != plain.PlainSecret().to_bytes():
            raise PayloadError("these bytes are not what stands for a key of no cipher")
        return plain.PlainKey()
    key = paillier.PaillierKey.from_bytes(data)
    least = 2048 if cipher == "paillier-2048" else 3072
    if key.modulus.bits < least:
        raise PayloadError(f"a key of {key.modulus.bits} bits is too short for {cipher!r}")
    return key


def read_secret(cipher: CipherName, data: bytes) -> SecretKey:
    """A secret key of that cipher out of its bytes."""
    if cipher == "ckks":
        return ckks.CkksSecret(he.SecretKey.from_bytes(data))
    if cipher == "plain":
        return plain.PlainSecret()
    return paillier.PaillierSecret.from_bytes(data)
