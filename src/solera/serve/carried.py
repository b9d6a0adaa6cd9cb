"""A connection whose answers come from this process: somebody else's messages carry them.

Driver and agent talk to a coordinator through :class:`~solera.serve.connection.Connection`. Where
another system carries their messages, as Flower does, there is no coordinator to talk to: each side
has a :class:`CarriedConnection` in its place, which answers what it is asked for out of the
messages that came. All else stays as it is: digests, signatures, policies, plans.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from solera.core.errors import PayloadError
from solera.serve import wire
from solera.serve.connection import Connection, CoordinatorError

Parts = dict[str, bytes]
"""A message, whoever carries it: blobs by their digests, and what is said by short names."""


class _Response(NamedTuple):
    content: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.content)


class CarriedConnection(Connection):
    """Answers requests itself, with :meth:`answer`; blobs lie in a dictionary."""

    def __init__(self) -> None:
        self.blobs: Parts = {}

    def answer(self, method: str, path: str, message: Any) -> Any:
        """What a coordinator would say; :meth:`no_such` if it is never asked here."""
        raise NotImplementedError

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        return _Response(msgspec.json.encode(self.answer(method, path, json)))

    def no_such(self, method: str, path: str) -> CoordinatorError:
        """The error that says that nobody serves this."""
        error = CoordinatorError(f"{method} {path}: without a coordinator there is no such thing")
        error.status = 404
        return error

    def reply(self, path: str, new: wire.NewReply, frame: bytes) -> None:
        if new.digest is not None:
            self.upload(frame)
        self.request("POST", path, json=new)

    def upload(self, frame: bytes) -> str:
        digest = hashlib.sha256(frame).hexdigest()
        self.blobs[digest] = frame
        return digest

    def download(
        self, digest: str, inline: str | None = None, *, place: str | None = None
    ) -> bytes:
        frame = self.blobs.get(digest) if inline is None else b64decode(inline)
        if frame is None:
            raise PayloadError(f"{digest[:12]}… did not come with the message")
        if hashlib.sha256(frame).hexdigest() != digest:
            raise PayloadError(f"what came as {digest[:12]}… is something else")
        return frame

    def close(self) -> None:
        self.blobs.clear()
