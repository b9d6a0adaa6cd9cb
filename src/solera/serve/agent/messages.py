"""What an agent does with messages between clients: it seals and opens them with its own keys.

Tasks run in the worker, which holds no key. What they write for other clients comes out of it as
plain bytes, and leaves this machine sealed to the recipient's enrolled key and signed inside
(:meth:`solera.serve.identity.Identity.seal`); what others sealed to this client is opened here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from solera.core.engine import Ask
from solera.core.errors import Refusal
from solera.core.payload import decode, encode
from solera.core.sealing import SEALED, each_message, open_message, seal_message
from solera.core.task import find_task
from solera.serve import wire
from solera.serve.agent.home import Place
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.connection import Connection
from solera.serve.identity import Identity
from solera.serve.peers import FILE, KnownKeys, WrongKey, find_peers


class Messages:
    """Seals and opens for the client of one folder."""

    def __init__(
        self,
        place: Place,
        identity: Identity,
        folder: Path,
        connection: Connection,
        policy: Callable[[], OwnerPolicy],
    ) -> None:
        self._place = place
        self._identity = identity
        self._folder = folder
        self._connection = connection
        self._policy = policy
        self._peers: dict[int, wire.Peer] = {}

    def opened(self, ask: Ask, job: str) -> Ask:
        """The ask with the bytes that other clients sealed to this one for it."""
        task = find_task(ask.task, ask.version)
        if not task.sealed:
            return ask

        def bare(m: Any) -> Mapping[str, Any]:
            scope = (self._place.federation, job)
            inside = open_message(task, m, ask.round, self._place.client, scope, self)
            return {"sender": m["sender"], SEALED: inside}

        return replace(ask, payload=each_message(ask.payload, bare), known_size=None)

    def sealed(self, ask: Ask, job: str, frame: bytes) -> bytes:
        """The reply as it leaves, each message for its recipient alone."""
        if not find_task(ask.task, ask.version).sealed:
            return frame

        def covered(m: Mapping[str, Any]) -> Mapping[str, Any]:
            scope = (self._place.federation, job)
            return {**m, SEALED: seal_message(m, self._place.client, scope, self)}

        return encode(each_message(decode(frame), covered))

    def seal(self, sender: int, to: int, data: bytes, *, context: bytes) -> bytes:
        peer = self._peer(to)
        return self._identity.seal(bytes.fromhex(peer.seal_key), data, context=context)

    def open(self, recipient: int, sender: int, sealed: bytes, *, context: bytes) -> bytes:
        peer = self._peer(sender)
        return self._identity.open(sealed, context=context, sender=bytes.fromhex(peer.sign_key))

    def _peer(self, number: int) -> wire.Peer:
        """A client of this federation whose keys are its own, as far as this one knows."""
        if number not in self._peers:
            known = KnownKeys(self._folder / FILE)
            try:
                self._peers = find_peers(self._connection, self._place.federation, known)
            except WrongKey as error:
                raise Refusal(f"messages among strangers: {error.message}") from None
        peer = self._peers.get(number)
        if peer is None:
            raise Refusal(f"there is no client {number} to exchange messages with")
        pinned = self._policy().peers
        if pinned and number != self._place.client and pinned.get(peer.name) != peer.sign_key:
            raise Refusal(f"the policy does not know client {peer.name!r} as a peer")
        return peer
