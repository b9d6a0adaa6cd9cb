"""What every request passes: it is bounded, counted and logged, and no error gets past.

Bodies that are not small are taken from drivers and clients alone, wait on the disk until they are
complete, and a few at a time are then read: a thousand clients that send slowly cost no memory. A
body that does not arrive in time ends its request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from solera.serve.coordinator import logs
from solera.serve.coordinator.body import BODY
from solera.serve.coordinator.metrics import Metrics
from solera.serve.coordinator.service import Coordinator, Refused
from solera.serve.coordinator.store.blobs import Received
from solera.serve.identity import Unauthorised

LARGEST_BODY = 8 << 20
_SMALL = 1 << 16
_AT_ONCE = 4
"""Bodies in memory, each up to twice: a constant, whatever the number of clients."""
_PIECE = 1 << 18
_BODY_SECONDS = 20.0
_SLOWEST = 20_000.0
"""Bytes per second: a body has 20 seconds, and one more for each of these."""
_NO_BODY = ("GET", "HEAD", "OPTIONS", "DELETE")
_GONE = 499
"""What is counted when nobody was left to answer, as other servers do."""


class _Slow(Exception):
    """A body did not arrive in time."""


class RequestMiddleware:
    """Wraps the service; see the module."""

    def __init__(self, app: ASGIApp, coordinator: Coordinator, metrics: Metrics) -> None:
        self.app = app
        self.coordinator = coordinator
        self.metrics = metrics
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        try:
            size = _body_size(scope)
            exchange.expect(size or 0)
            if size is not None and size <= _SMALL:
                await self.app(scope, exchange.receive, exchange.send)
            elif size is not None:
                await self.coordinator.admit(Request(scope))
                await self._read_and_go_on(scope, exchange)
            else:
                wanted = f"a body of known length, at most {LARGEST_BODY:,} bytes"
                await _answer(413, f"the request needs {wanted}", scope, exchange)
        except (Refused, Unauthorised) as error:
            if isinstance(error, Unauthorised) and error.reason == "start":
                await exchange.drain()  # an honest client reads the answer when all is sent
            await self.coordinator.refusal(error)(scope, exchange.receive, exchange.send)
        except _Slow:
            await _answer(408, "the body did not arrive in time", scope, exchange)
        except Exception as error:
            exchange.error = error
            if exchange.status is not None:  # half an answer cannot be taken back
                raise
            await _answer(500, "an error at the coordinator; its log has more", scope, exchange)
        finally:
            self._record(scope, exchange)

    async def _read_and_go_on(self, scope: Scope, exchange: _Exchange) -> None:
        with self.coordinator.blobs.receive() as body:
            if not await exchange.receive_all(body):
                return
            scope[BODY] = body
            left = body.size
            # The turn ends when the answer begins: whoever does not read theirs delays nobody.
            turn: list[Callable[[], None]] = []

            async def again() -> Message:
                nonlocal left
                if not left:
                    return await exchange.receive()
                if left == body.size:
                    await self._turns.acquire()
                    turn.append(self._turns.release)
                    body.file.seek(0)
                piece = body.file.read(_PIECE)
                left -= len(piece)
                return {"type": "http.request", "body": piece, "more_body": left > 0}

            async def send(message: Message) -> None:
                while turn:
                    turn.pop()()
                await exchange.send(message)

            try:
                await self.app(scope, again, send)
            finally:
                while turn:
                    turn.pop()()

    def _record(self, scope: Scope, exchange: _Exchange) -> None:
        route = getattr(scope.get("route"), "path", "none")
        status = _GONE if exchange.status is None else exchange.status
        seconds = time.perf_counter() - exchange.began
        self.metrics.count(
            scope["method"], route, status, seconds, exchange.received, exchange.sent
        )
        facts: dict[str, Any] = {
            "method": scope["method"][:16],
            "route": route,
            "status": status,
            "ms": round(1000 * seconds, 1),
            "who": scope.get("state", {}).get("who", "-"),
            "bytes_in": exchange.received,
            "bytes_out": exchange.sent,
        }
        logs.log_request(facts, exchange.error)


class _Exchange:
    """One request on its way, and what is known of it so far."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.began = time.perf_counter()
        self.received = self.sent = 0
        self.status: int | None = None
        self.error: Exception | None = None
        self._due: float | None = None
        self._unread = False

    def expect(self, size: int) -> None:
        """A body of so many bytes shall come."""
        if size:
            self._unread = True
            self._due = asyncio.get_running_loop().time() + _BODY_SECONDS + size / _SLOWEST

    async def receive(self) -> Message:
        async with self._in_time():
            return self._count(await self._receive())

    async def receive_all(self, body: Received) -> bool:
        """Write the whole body down; False if whoever sends it has gone."""
        async with self._in_time():
            while self._unread:
                message = self._count(await self._receive())
                if message["type"] == "http.disconnect":
                    return False
                body.write(message.get("body", b""))
        return True

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(self._due):
                yield
        except TimeoutError:
            self._due = None
            raise _Slow from None

    def _count(self, message: Message) -> Message:
        self.received += len(message.get("body", b""))
        if not message.get("more_body", False):
            self._due, self._unread = None, False
        return message

    async def drain(self) -> None:
        """Receive the body for nothing."""
        with suppress(_Slow):
            while self._unread:
                await self.receive()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._unread:  # what is still to come of the body is of no use
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        self.sent += len(message.get("body", b""))
        await self._send(message)


async def _answer(status: int, detail: str, scope: Scope, exchange: _Exchange) -> None:
    response = JSONResponse({"detail": detail}, status_code=status)
    await response(scope, exchange.receive, exchange.send)


def _body_size(scope: Scope) -> int | None:
    """Bytes of the body, which must be said before one is read; None if it is not, or too many."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    bodiless = scope["method"] in _NO_BODY
    length = headers.get(b"content-length", b"0" if bodiless else b"")
    most = _SMALL if bodiless else LARGEST_BODY
    if not length.isdigit() or len(length) > 20 or int(length) > most:
        return None
    return int(length)
