"""Keys of one secure sum: drawn for it alone, never used again.

A client has two pairs of X25519 keys. The *mask* pair gives a key in common with every neighbour
from which both expand the same mask; its private half is shared out, so that the masks of a client
that drops out can be taken away. The *seal* pair gives a key in common to seal shares and to
confirm what both were told; its private half never leaves the client.

They are new in every attempt, from the system's randomness, unlike noise: a mask that is
used for two messages tells their difference, so a sum that is asked again must find other masks.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from functools import cache
from importlib import import_module
from typing import Any

from solera.core.errors import MissingExtra, PayloadError

KEY = 32
"""Bytes of a key, public or private."""
OVERHEAD = 16
"""Bytes a sealed share is longer than the share."""
MAC = 16
_PURPOSE = b"solera secure sum 1 "


def new_private() -> bytes:
    """A new private key."""
    return secrets.token_bytes(KEY)


def public_of(private: bytes) -> bytes:
    """The public key of a private one."""
    return bytes(load(private).public_key().public_bytes_raw())


def load(private: bytes) -> Any:
    """A private key to compute with, which takes as long to make as a key in common."""
    return _x25519().X25519PrivateKey.from_private_bytes(private)


def common_key(private: Any, public: bytes, purpose: str, context: bytes) -> bytes:
    """32 bytes that the owners of both keys can compute, and nobody else."""
    try:
        shared = private.exchange(_x25519().X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of low order, which would make the secret a known one
        raise PayloadError("a client's key is none that a client makes") from None
    return derive(shared, purpose, context)


def derive(secret: bytes, purpose: str, context: bytes) -> bytes:
    """A key for one purpose and context out of a secret (HKDF-SHA256, RFC 5869)."""
    kdf = library("cryptography.hazmat.primitives.kdf.hkdf")
    hashes = library("cryptography.hazmat.primitives.hashes")
    info = _PURPOSE + purpose.encode()
    return bytes(kdf.HKDF(hashes.SHA256(), KEY, salt=context, info=info).derive(secret))


def seal(key: bytes, data: bytes, sender: int, recipient: int) -> bytes:
    """Data for the other owner of a common key; it opens for this sender and recipient alone.

    The common key is of one sum and of two clients, and each sends the other one message, so the
    nonce need only tell the two directions apart.
    """
    nonce = _nonce(sender, recipient)
    return bytes(_aead(key).encrypt(nonce, data, _direction(sender, recipient)))


def open_sealed(key: bytes, data: bytes, sender: int, recipient: int) -> bytes:
    """What :func:`seal` was given, or a :class:`PayloadError`."""
    try:
        nonce = _nonce(sender, recipient)
        return bytes(_aead(key).decrypt(nonce, data, _direction(sender, recipient)))
    except library("cryptography.exceptions").InvalidTag:
        raise PayloadError(
            f"what client {sender} sealed for client {recipient} was changed"
        ) from None


def confirmation(key: bytes, sender: int, recipient: int, what: bytes) -> bytes:
    """The sender's word to the other owner of a common key that it was told ``what``."""
    return hmac.digest(key, b"confirm" + _direction(sender, recipient) + what, "sha256")[:MAC]


def digest(*parts: bytes) -> bytes:
    """SHA-256 of parts, each after its length."""
    total = hashlib.sha256(_PURPOSE)
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.digest()


def _direction(sender: int, recipient: int) -> bytes:
    return sender.to_bytes(8, "little") + recipient.to_bytes(8, "little")


def _nonce(sender: int, recipient: int) -> bytes:
    return bytes([sender < recipient]) + bytes(11)


def _aead(key: bytes) -> Any:
    return library("cryptography.hazmat.primitives.ciphers.aead").ChaCha20Poly1305(key)


def _x25519() -> Any:
    return library("cryptography.hazmat.primitives.asymmetric.x25519")


@cache
def library(module: str) -> Any:
    """A part of the library, imported when it is first used."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra.of("a secure sum", "secure") from None
