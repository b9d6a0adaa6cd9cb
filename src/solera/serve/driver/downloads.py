"""What replies carry, several of them downloaded at the same time.

One after the other, the driver and the coordinator would wait for each other in turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from solera.core.errors import PayloadError
from solera.serve.connection import Connection
from solera.serve.wire import Reply

_AT_ONCE = 4

Frame = bytes | PayloadError | None
"""What a reply carries, what is wrong with it, or None if it has nothing."""


def frames_of(connection: Connection, replies: Sequence[Reply | None]) -> Iterator[Frame]:
    """What each of these replies carries, in their order."""

    def frame(reply: Reply | None) -> Frame:
        if reply is None or reply.status != "ok" or reply.digest is None:
            return None
        try:
            return connection.download(reply.digest, reply.frame)
        except PayloadError as error:
            return error

    if sum(reply is not None and reply.frame is None for reply in replies) <= 1:
        yield from map(frame, replies)
        return
    with ThreadPoolExecutor(_AT_ONCE, "solera-download") as pool:
        yield from pool.map(frame, replies)  # which tries no more of them after an error
