"""Hashes of parts: no two lists of parts give the same bytes."""

from __future__ import annotations

import hashlib
import hmac

Part = bytes | str | int


def framed(*parts: Part) -> bytes:
    """Each part after its length."""
    raw = [_as_bytes(part) for part in parts]
    return b"".join(len(part).to_bytes(8, "little") + part for part in raw)


def digest(*parts: Part) -> bytes:
    """H: SHA-256 of the parts."""
    return hashlib.sha256(framed(*parts)).digest()


def mac(key: bytes, *parts: Part) -> bytes:
    """HMAC-SHA256 of the parts."""
    return hmac.digest(key, framed(*parts), "sha256")


def _as_bytes(part: Part) -> bytes:
    if isinstance(part, int):
        return part.to_bytes(8, "little")
    return part.encode() if isinstance(part, str) else part
