"""What leaves: logged first, kept as a copy where the policy says so, signed, and sent."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from solera.core.payload import decode
from solera.serve import wire
from solera.serve.agent.copies import Copies
from solera.serve.agent.home import Place
from solera.serve.agent.memory import Memory, digest_of
from solera.serve.audit import AuditLog, Head
from solera.serve.connection import Connection
from solera.serve.identity import Identity, reply_message


class Sender:
    """Sends the replies of one client."""

    def __init__(
        self, place: Place, identity: Identity, audit: AuditLog, connection: Connection
    ) -> None:
        self.place, self.identity = place, identity
        self.audit, self.connection = audit, connection

    def log(self, pending: wire.PendingAsk, done: Memory, hash: str, copies: Copies | None) -> Head:
        """Write down what is about to leave; where the log ends then."""
        answered = done.status == "ok"
        if answered and copies is not None:
            names = (self.place.federation, pending.job, pending.sequence, pending.task)
            copies.keep(*names, done.frame)
        return self.audit.append(
            "reply",
            job=pending.job,
            sequence=pending.sequence,
            hash=hash,
            owner=pending.owner,
            task=pending.task,
            status=done.status,
            digest=_digest(done),
            bytes=len(done.frame),
            numbers=numbers_in(decode(done.frame)) if answered else 0,
            epsilon=done.epsilon,
            reason=done.reason,
        )

    def send(self, pending: wire.PendingAsk, done: Memory) -> None:
        """Let it leave, signed for this ask."""
        frame, digest = done.frame, _digest(done)
        message = reply_message(
            self.place.federation,
            pending.job,
            pending.sequence,
            str(self.place.client),
            digest_of(pending),
            done.status,
            digest,
            len(frame),
        )
        reply = wire.NewReply(
            status=done.status,
            digest=digest or None,
            size=len(frame),
            reason=done.reason,
            signature=self.identity.sign(message).hex(),
        )
        path = f"/v1/jobs/{pending.job}/asks/{pending.sequence}/reply"
        self.connection.reply(path, reply, frame)


def _digest(done: Memory) -> str:
    """Of the reply's bytes; a refusal and a failure have none."""
    return hashlib.sha256(done.frame).hexdigest() if done.status == "ok" else ""


def numbers_in(tree: Any) -> int:
    """How many numbers a reply holds; bytes, such as ciphertexts, hold none that can be read."""
    if isinstance(tree, dict):
        return sum(map(numbers_in, tree.values()))
    if isinstance(tree, list | tuple):
        return sum(map(numbers_in, tree))
    return int(np.size(tree)) if not isinstance(tree, str | bytes | None.__class__) else 0
