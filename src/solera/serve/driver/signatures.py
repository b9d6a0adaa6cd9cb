"""What a driver believes: replies that a client signed with its known key, for what was asked."""

from __future__ import annotations

from typing import Any

from solera.core.errors import SoleraError
from solera.serve import wire
from solera.serve.connection import Connection
from solera.serve.identity import ask_digest, reply_message, verify
from solera.serve.peers import KnownKeys


class ForgedReply(SoleraError):
    """A reply that the client it is said to come from has not signed."""


class Signatures:
    """Checks the replies of one job; the coordinator's word is not enough."""

    def __init__(self, connection: Connection, federation: str, job: str, known: KnownKeys) -> None:
        self._connection, self._federation, self._job = connection, federation, job
        self._known = known
        self._keys: dict[int, bytes] = {}

    def check(
        self,
        client: int,
        sequence: int,
        seed: int,
        round: int,
        asked: wire.Call | wire.NewAsk,
        reply: wire.Reply | wire.Queued,
    ) -> None:
        """:class:`ForgedReply` unless the client signed this reply to this ask."""
        payload: Any = asked.payload
        payload = payload if isinstance(payload, str) else payload[client]
        message = reply_message(
            self._federation,
            self._job,
            sequence,
            str(client),
            ask_digest(asked.task, asked.version, payload, asked.prepare, round, seed),
            "ok" if isinstance(reply, wire.Queued) else reply.status,
            reply.digest or "",
            reply.size,
        )
        if not verify(self._key(client), message, bytes.fromhex(reply.signature or "")):
            raise ForgedReply(
                f"job {self._job!r}: client {client} has not signed the reply to ask {sequence} "
                f"that the coordinator gives for it",
                hint="the coordinator has changed it, or asked something else; do not use it",
            )

    def _key(self, client: int) -> bytes:
        """The key of a client, the same as ever."""
        if client not in self._keys:
            path = f"/v1/federations/{self._federation}"
            for member in self._connection.call("GET", path, wire.Members).clients:
                self._known.check(self._federation, member.name, member.sign_key)
                self._keys.setdefault(member.id, bytes.fromhex(member.sign_key))
        return self._keys.get(client, b"")
