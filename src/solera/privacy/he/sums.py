"""Sums of encrypted arrays as an aggregation."""

from __future__ import annotations

from typing import Any

from solera.core.aggregation import Aggregation
from solera.core.replies import Reply
from solera.privacy.he.ciphertexts import Encrypted, add
from solera.privacy.he.keys import WrongKey


class EncryptedSum(Aggregation):
    """Σ of ciphertexts made with one key pair; the coordinator reads neither addends nor sum.

    ``fingerprint`` names the pair; a ciphertext of another one is an error.
    """

    def __init__(self, fingerprint: bytes) -> None:
        self.fingerprint = fingerprint

    def lift(self, reply: Reply) -> Encrypted:
        return self._read(reply.payload)

    def combine(self, a: Any, b: Any) -> Encrypted:
        return add(self._read(a), self._read(b))

    def _read(self, value: Any) -> Encrypted:
        encrypted = Encrypted.from_payload(value)
        if encrypted.label.pair != self.fingerprint:
            raise WrongKey("a ciphertext was made with another key pair than the one agreed on")
        return encrypted
