"""The body of a request where it is not small: on the disk, with its SHA-256.

Whoever wants the bytes in memory reads the request as ever; whoever stores them takes the file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from fastapi import Request

from solera.serve.coordinator.store.blobs import Blobs, Received

BODY = "solera.body"
"""Where a request finds its body."""


def waiting_body(request: Request) -> Received | None:
    """The body that waits on the disk; None of a small one, which has to be read."""
    return cast(Received | None, request.scope.get(BODY))


@asynccontextmanager
async def received_body(request: Request, blobs: Blobs) -> AsyncIterator[Received]:
    """The body, to be taken by ``blobs``."""
    waiting = waiting_body(request)
    if waiting is not None:
        yield waiting
        return
    with blobs.receive() as received:
        received.write(await request.body())
        yield received
