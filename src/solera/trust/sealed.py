"""Sealed messages: from client to client, through a coordinator that relays but cannot read.

A message is sealed to the recipient's enrolled X25519 key (as in HPKE base mode, RFC 9180)::

    shared = X25519(ephemeral private, recipient public)
    secret = HKDF-SHA256(shared, salt = header, info = purpose · SHA-256(context) · recipient)
    sealed = header · marks · ChaCha20-Poly1305(secret, data, header · marks · recipient · context)

with header = ``SEA`` · version · ephemeral public. Each message has its own ephemeral key, hence
its own secret, and the nonce may be zero. The two marks, 16 bytes each, depend on the shared
secret; they let the recipient tell a message for another key or another context from a damaged
one, and tell the relay nothing.

``context`` says what the message is for (federation, job, sequence, sender, recipient): a sealed
message that the relay moves elsewhere does not open there. A seal by itself does not say who made
it: :meth:`solera.serve.identity.Identity.seal` puts the sender's key and signature inside.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from solera.core.errors import MissingExtra, PayloadError, PayloadTooLarge, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    PrivateKey: TypeAlias = bytes | X25519PrivateKey

_MAGIC = b"SEA\x01"
_PURPOSE = b"solera sealed 1"
_HEADER = len(_MAGIC) + 32
_MARK = 16
_HEAD = _HEADER + 2 * _MARK
_NONCE = bytes(12)
_LARGEST = 2**31 - 1 - 16
OVERHEAD = _HEAD + 16
"""Bytes a sealed message is longer than its data."""


class SealError(PayloadError):
    """A sealed message that does not open."""


class NotForThisKey(SealError):
    """Sealed to another key than the one it was opened with."""


class OtherContext(SealError):
    """Sealed for another job, ask, sender or recipient: moved or replayed by the relay."""


class DamagedSeal(SealError):
    """Not a sealed message, or bytes of it were changed or lost."""


def seal(seal_key: bytes, data: bytes, *, context: bytes) -> bytes:
    """``data`` for the owner of ``seal_key`` alone, good for this ``context`` alone."""
    if len(data) > _LARGEST:
        raise PayloadTooLarge(
            f"a sealed message holds at most {_LARGEST:,} bytes, not {len(data):,}"
        )
    x25519 = _x25519()
    ephemeral = x25519.X25519PrivateKey.generate()
    try:
        shared = ephemeral.exchange(x25519.X25519PublicKey.from_public_bytes(seal_key))
    except (ValueError, TypeError):
        raise UsageError(
            f"seal(seal_key=<{len(seal_key)} bytes>): this is not a key to seal to",
            hint="use the 32 bytes the recipient enrolled",
        ) from None
    header = _MAGIC + bytes(ephemeral.public_key().public_bytes_raw())
    secret, marks = _secrets(shared, header, seal_key, context)
    bound = header + marks + seal_key + context
    return header + marks + bytes(_cipher(secret).encrypt(_NONCE, data, bound))


def open_sealed(private: PrivateKey, data: bytes, *, context: bytes) -> bytes:
    """The data sealed to ``private``'s public key for ``context``, or a :class:`SealError`."""
    if data[:3] != _MAGIC[:3] or len(data) < OVERHEAD:
        raise DamagedSeal(f"these {len(data):,} bytes are not a sealed message")
    if data[3] != _MAGIC[3]:
        raise SealError(
            f"sealed message version {data[3]} is not understood, this is version {_MAGIC[3]}",
            hint="update the older side",
        )
    x25519 = _x25519()
    key: Any = private
    if isinstance(private, bytes):
        if len(private) != 32:
            raise UsageError(f"open_sealed: a private key has 32 bytes, not {len(private)}")
        key = x25519.X25519PrivateKey.from_private_bytes(private)
    header, marks = data[:_HEADER], data[_HEADER:_HEAD]
    public = key.public_key().public_bytes_raw()
    try:
        shared = key.exchange(x25519.X25519PublicKey.from_public_bytes(header[len(_MAGIC) :]))
    except ValueError:  # a point of low order, which would make the secret a known one
        raise DamagedSeal("damaged sealed message: no sender makes such a key") from None
    secret, expected = _secrets(shared, header, public, context)
    if not hmac.compare_digest(marks[:_MARK], expected[:_MARK]):
        raise NotForThisKey("the message was sealed to another key, or its head was changed")
    if not hmac.compare_digest(marks[_MARK:], expected[_MARK:]):
        raise OtherContext("the message was sealed for another context")
    try:
        bound = header + marks + public + context
        return bytes(_cipher(secret).decrypt(_NONCE, data[_HEAD:], bound))
    except _library("cryptography.exceptions").InvalidTag:
        raise DamagedSeal("damaged sealed message: its bytes were changed") from None


def _secrets(shared: bytes, header: bytes, public: bytes, context: bytes) -> tuple[bytes, bytes]:
    """The cipher's key, and the marks of key and context."""

    def derive(info: bytes, length: int) -> bytes:
        hashes = _library("cryptography.hazmat.primitives.hashes")
        kdf = _library("cryptography.hazmat.primitives.kdf.hkdf")
        info = _PURPOSE + info + public
        return bytes(kdf.HKDF(hashes.SHA256(), length, salt=header, info=info).derive(shared))

    digest = hashlib.sha256(context).digest()
    both = derive(b" key and context " + digest, 32 + _MARK)
    return both[:32], derive(b" key ", _MARK) + both[32:]


def _x25519() -> Any:
    return _library("cryptography.hazmat.primitives.asymmetric.x25519")


def _cipher(secret: bytes) -> Any:
    return _library("cryptography.hazmat.primitives.ciphers.aead").ChaCha20Poly1305(secret)


@cache
def _library(module: str) -> Any:
    """A part of the library, imported when it is first used."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra.of("sealed messages", "serve") from None
