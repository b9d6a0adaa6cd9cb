"""Whose key is whose: keys are remembered at first sight, or from a file, and never change.

A coordinator tells who takes part and with which keys, and could tell anything. A driver checks the
signature of every reply with the key that it knows, and a client checks, before it seals something
to another, that the other signed the key to seal to. Both keep what they know in a file of lines
``federation name key``, which people fill in or compare over the telephone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from solera.core.errors import SoleraError, UsageError
from solera.serve import wire
from solera.serve.connection import Connection
from solera.serve.identity import seal_key_message, verify

FILE = "known_keys"
"""The file of known keys in the folder of a client."""
_LINE = re.compile(rf"({wire.NAME[1:-1]}) +({wire.NAME[1:-1]}) +([0-9a-f]{{64}})")


class WrongKey(SoleraError):
    """A client shows another key than before, or one that it has not signed."""


class KnownKeys:
    """Keys by federation and client name; without a file, remembered as long as this lives."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._keys = {} if self.path is None or not self.path.exists() else _read(self.path)

    def key(self, federation: str, name: str) -> str | None:
        """The key by which a client is known, if it is."""
        return self._keys.get((federation, name))

    def check(self, federation: str, name: str, key: str) -> None:
        """Remember a client's key, or make sure that it is the one that is known."""
        known = self._keys.get((federation, name))
        if known is None:
            self._remember(federation, name, key)
        elif known != key:
            where = "" if self.path is None else f", see {self.path}"
            raise WrongKey(
                f"client {name!r} of {federation!r} had the key {known}, now the coordinator says "
                f"it is {key}",
                hint=f"ask the client which is right before you go on{where}",
            )

    def _remember(self, federation: str, name: str, key: str) -> None:
        self._keys[federation, name] = key
        if self.path is None:
            return
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{federation} {name} {key}\n".encode())
        finally:
            os.close(file)


def _read(path: Path) -> dict[tuple[str, str], str]:
    keys = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            raise UsageError(
                f"{path}, line {number}: {text[:100]!r} is not a known key",
                hint="write the names of federation and client, and the client's key",
            )
        keys[found[1], found[2]] = found[3]
    return keys


def find_peers(connection: Connection, federation: str, known: KnownKeys) -> dict[int, wire.Peer]:
    """Everyone who takes part in a client's federation, each with a key to seal to that is theirs.

    A key that its owner has not signed for this federation, or an owner with another key than is
    known, is an error: whoever holds the other key would read what is sealed.
    """
    peers = connection.call("GET", "/v1/peers", wire.Peers).peers
    for peer in peers:
        known.check(federation, peer.name, peer.sign_key)
        if not is_vouched(peer, federation):
            raise WrongKey(
                f"client {peer.name!r} of {federation!r} has not signed the key to seal to "
                f"that the coordinator gives, {peer.seal_key}",
                hint="nothing is sealed to it; ask the client, and whoever runs the coordinator",
            )
    return {peer.id: peer for peer in peers}


def is_vouched(peer: wire.Peer, federation: str) -> bool:
    """Whether a client has signed the key to seal to that the coordinator gives as its own."""
    vouched = seal_key_message(federation, bytes.fromhex(peer.seal_key))
    return verify(bytes.fromhex(peer.sign_key), vouched, bytes.fromhex(peer.seal_signature))
