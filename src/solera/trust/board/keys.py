"""Keys in common, seals and signatures of a closed job.

Every seal has a key of its own (HKDF with all that the content is for), which seals one content, so
that the nonce may be fixed: an owner that works out the same content again seals the same bytes.
"""

from __future__ import annotations

from typing import Protocol

from solera.core.errors import MissingExtra
from solera.trust.board.hashing import Part, framed

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise MissingExtra.of("a closed job", "secure") from None

SIGNATURE = 64
"""Bytes of a signature."""
_NONCE = bytes(12)
_PURPOSE = "solera board 1"
"""No signature made here is worth anything elsewhere."""


class Signing(Protocol):
    """An Ed25519 key, or a client's identity."""

    def sign(self, message: bytes, /) -> bytes:
        """64 bytes that only its owner can make."""


def hkdf(key: bytes, *info: Part) -> bytes:
    """32 bytes out of a secret, for one purpose (RFC 5869)."""
    return HKDF(SHA256(), 32, None, framed(_PURPOSE, *info)).derive(key)


def new_private() -> bytes:
    """A new X25519 key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_of(private: bytes) -> bytes:
    """The public half."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def common_secret(private: bytes, public: bytes) -> bytes:
    """DH: what the owners of both keys can compute; ValueError for a point of low order."""
    key = X25519PrivateKey.from_private_bytes(private)
    return key.exchange(X25519PublicKey.from_public_bytes(public))


def seal(key: bytes, content: bytes) -> bytes:
    """AEAD with a key that is used for this content alone."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, content, None)


def unseal(key: bytes, body: bytes) -> bytes | None:
    """The content, or None where it was not sealed with this key."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, body, None)
    except InvalidTag:
        return None


def sign(identity: Signing, *about: Part) -> bytes:
    """A signature for what this is about."""
    return identity.sign(framed(_PURPOSE, *about))


def is_signed(public: bytes, signature: bytes, *about: Part) -> bool:
    """Whether the owner of a public key has signed that."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, framed(_PURPOSE, *about))
    except (InvalidSignature, ValueError):
        return False
    return True
