"""Keys of simulated clients, so that their messages are sealed as those of real ones are."""

from __future__ import annotations

import hashlib
from functools import cache

from solera.trust.sealed import _x25519, open_sealed, seal


class SimulatedKeys:
    """Seals between the clients of a simulation; each client's key follows from the seed.

    Everybody in a simulation lives in one process, so these keys keep nothing from its owner; they
    make what the coordinator relays the same bytes as between real clients.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def private(self, client: int) -> bytes:
        """The private key of a client."""
        return hashlib.sha256(f"solera simulated key {self.seed} {client}".encode()).digest()

    def seal(self, sender: int, to: int, data: bytes, *, context: bytes) -> bytes:
        return seal(_public(self.private(to)), data, context=context)

    def open(self, recipient: int, sender: int, sealed: bytes, *, context: bytes) -> bytes:
        return open_sealed(self.private(recipient), sealed, context=context)


@cache
def _public(private: bytes) -> bytes:
    key = _x25519().X25519PrivateKey.from_private_bytes(private)
    return bytes(key.public_key().public_bytes_raw())
