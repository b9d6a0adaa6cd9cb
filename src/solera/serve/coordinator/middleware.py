"""The coordinator's door: every request is bounded, counted and logged, and no error gets past.

Bodies that are not small wait on the disk until they are complete, and a few at a time are then
read: a thousand clients that send slowly cost no memory.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from solera.serve.coordinator import logs
from solera.serve.coordinator.metrics import Metrics

LARGEST_BODY = 8 << 20
_SMALL = 1 << 16
_AT_ONCE = 4
"""Bodies in memory, each up to twice: a constant, whatever the number of clients."""
_PIECE = 1 << 18
_NO_BODY = ("GET", "HEAD", "OPTIONS", "DELETE")
_GONE = 499
"""What is counted when nobody was left to answer, as other servers do."""


class Door:
    """Wraps the service; see the module."""

    def __init__(self, app: ASGIApp, metrics: Metrics, folder: Path) -> None:
        self.app = app
        self.metrics = metrics
        self.folder = folder
        """Where bodies wait."""
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = _Visit(receive, send)
        try:
            size = _body_size(scope)
            if size is not None and size <= _SMALL:
                await self.app(scope, visit.receive, visit.send)
            elif size is not None:
                await self._read_and_go_on(scope, visit)
            else:
                wanted = f"a body of known length, at most {LARGEST_BODY:,} bytes"
                await _answer(413, f"the request needs {wanted}", scope, visit)
        except Exception as error:
            visit.error = error
            if visit.status is not None:  # half an answer cannot be taken back
                raise
            await _answer(500, "an error at the coordinator; its log has more", scope, visit)
        finally:
            self._tell(scope, visit)

    async def _read_and_go_on(self, scope: Scope, visit: _Visit) -> None:
        with TemporaryFile(dir=self.folder) as body:
            more = True
            while more:
                message = await visit.receive()
                if message["type"] == "http.disconnect":
                    return
                body.write(message.get("body", b""))
                more = message.get("more_body", False)
            left = body.tell()
            body.seek(0)

            async def again() -> Message:
                nonlocal left
                if not left:
                    return await visit.receive()
                piece = body.read(_PIECE)
                left -= len(piece)
                return {"type": "http.request", "body": piece, "more_body": left > 0}

            async with self._turns:
                await self.app(scope, again, visit.send)

    def _tell(self, scope: Scope, visit: _Visit) -> None:
        route = getattr(scope.get("route"), "path", "none")
        status = _GONE if visit.status is None else visit.status
        seconds = time.perf_counter() - visit.began
        self.metrics.count(scope["method"], route, status, seconds, visit.received, visit.sent)
        facts: dict[str, Any] = {
            "method": scope["method"][:16],
            "route": route,
            "status": status,
            "ms": round(1000 * seconds, 1),
            "who": scope.get("state", {}).get("who", "-"),
            "bytes_in": visit.received,
            "bytes_out": visit.sent,
        }
        logs.log_request(facts, visit.error)


class _Visit:
    """One request on its way, and what is known of it so far."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.began = time.perf_counter()
        self.received = self.sent = 0
        self.status: int | None = None
        self.error: Exception | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        self.received += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.sent += len(message.get("body", b""))
        await self._send(message)


async def _answer(status: int, detail: str, scope: Scope, visit: _Visit) -> None:
    response = JSONResponse({"detail": detail}, status_code=status)
    await response(scope, visit.receive, visit.send)


def _body_size(scope: Scope) -> int | None:
    """Bytes of the body, which must be said before one is read; None if it is not, or too many."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    said = headers.get(b"content-length", b"0" if scope["method"] in _NO_BODY else b"")
    if not said.isdigit() or len(said) > 20 or int(said) > LARGEST_BODY:
        return None
    return int(said)
