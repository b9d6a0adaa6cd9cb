"""Ed25519 signatures (RFC 8032) over messages whose bytes mean one thing only."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

from solera.core.errors import MissingExtra
from solera.core.payload import encode

KEY = 32
SIGNATURE = 64


class Signer(Protocol):
    """Who can sign, such as a client's ``Identity``."""

    @property
    def sign_key(self) -> bytes:
        """The public key, 32 bytes."""

    def sign(self, message: bytes) -> bytes:
        """64 bytes that only the owner of the key can make for this message."""


def signed_message(purpose: str, *parts: str | int | bytes) -> bytes:
    """The only bytes that mean these parts for this purpose."""
    return encode([f"solera {purpose} 1", *parts])


def verify(sign_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the owner of ``sign_key`` signed ``message``; False whatever the bytes are."""
    ed25519, exceptions = _library()
    try:
        _public_key(ed25519, sign_key).verify(signature, message)
    except (exceptions.InvalidSignature, ValueError):
        return False
    return True


@lru_cache(1024)
def _public_key(ed25519: Any, sign_key: bytes) -> Any:
    return ed25519.Ed25519PublicKey.from_public_bytes(sign_key)


def _library() -> tuple[Any, Any]:
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingExtra.of("a signature", "secure") from None
    return ed25519, exceptions
