"""Payloads between an agent and the process that runs its tasks."""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Any

from solera.core.payload import DEFAULT_LIMITS, Limits, decode, encode_pieces

_LOCAL = Limits(size=4 * DEFAULT_LIMITS.size, structure=4 * DEFAULT_LIMITS.structure, depth=40)
"""A message holds an ask or a reply, each within the limits of its own, and the client's state."""


class Channel:
    """Payloads over a local socket, each behind its length; no wait goes past its deadline."""

    _length = struct.Struct("<Q")

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def send(self, payload: Any, deadline: float | None = None) -> None:
        pieces = encode_pieces(payload, _LOCAL)
        size = sum(len(piece) for piece in pieces)
        for piece in (self._length.pack(size), *pieces):
            self._wait_until(deadline)
            self.end.sendall(piece)

    def receive(self, deadline: float | None = None) -> Any:
        (size,) = self._length.unpack(self._take(self._length.size, deadline))
        if size > _LOCAL.size:
            raise EOFError(f"a message of {size:,} bytes")
        return decode(self._take(size, deadline), _LOCAL)

    def wait(self, seconds: float) -> bool:
        """Whether a message, or the end, has come in this time."""
        return bool(select.select([self.end], [], [], seconds)[0])

    def _take(self, size: int, deadline: float | None) -> bytearray:
        taken = bytearray(size)
        view, at = memoryview(taken), 0
        while at < size:
            self._wait_until(deadline)
            count = self.end.recv_into(view[at:])
            if not count:
                raise EOFError
            at += count
        return taken

    def _wait_until(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        self.end.settimeout(left)
