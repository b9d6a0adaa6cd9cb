"""A running coordinator: its store, its blobs, who is asking, and who waits for what."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool

from solera.core.errors import UsageError
from solera.engines.connection import INLINE
from solera.serve.blobs import Blobs, NoBlob
from solera.serve.identity import NonceCache, Unauthorised, check_request, token_hash
from solera.serve.store import Store
from solera.serve.tables import Client, Job

LONGEST_WAIT = 30.0


class Bell:
    """Wakes those who wait for something to change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, ready: Callable[[], Any], seconds: float) -> Any:
        """The first true result of ``ready`` (run in a thread), or its last one when time is up."""
        end = time.monotonic() + (min(seconds, LONGEST_WAIT) if seconds > 0 else 0.0)
        while True:
            event = self._event
            found = await run_in_threadpool(ready)
            left = end - time.monotonic()
            if found or left <= 0:
                return found
            try:
                await asyncio.wait_for(event.wait(), left)
            except TimeoutError:
                return await run_in_threadpool(ready)


class Coordinator:
    """Store, blobs and bells of a running coordinator."""

    def __init__(self, store: Store, blobs: Blobs, admin: bytes) -> None:
        self.store = store
        self.blobs = blobs
        self.admin = admin
        """Hash of the token of drivers and administrators."""
        self.nonces = NonceCache()
        self.bell = Bell()

    # --- who is asking ---

    async def driver(self, request: Request) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(token_hash(token), self.admin):
            raise await self.refusal("driver", "wrong token")

    async def key(self, request: Request) -> bytes:
        """The key that signed this request."""
        body = hashlib.sha256(await request.body()).hexdigest()
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            return check_request(
                request.headers, request.method, path, body, time.time(), self.nonces
            )
        except Unauthorised as error:
            raise await self.refusal("client", error.message) from None

    async def client(self, request: Request) -> Client:
        """The enrolled client that signed this request."""
        key = await self.key(request)
        found = await run_in_threadpool(self.store.client_by_key, key)
        if found is None:
            raise await self.refusal("client", "unknown key")
        if found.revoked is not None:
            raise await self.refusal(f"client {found.name}", f"revoked: {found.reason}")
        return found

    async def anyone(self, request: Request) -> Client | None:
        """A client, or None for a driver."""
        if "Authorization" in request.headers:
            await self.driver(request)
            return None
        return await self.client(request)

    async def refusal(self, who: str, reason: str) -> HTTPException:
        """A refusal, logged."""
        await run_in_threadpool(
            self.store.log, "", None, None, "refused", f"{who}: {reason}", time.time()
        )
        return HTTPException(401, f"refused: {reason}")

    def inline(self, digest: str | None, most: int = INLINE) -> str | None:
        """A small blob as text, to be sent along with the message that names it."""
        if digest is None or self.blobs.size(digest) > most:
            return None
        return b64encode(self.blobs.read(digest)).decode()

    def keep(self, digest: str, frame: str) -> None:
        """Store a blob that was sent along with a message."""
        try:
            stored = self.blobs.put(b64decode(frame, validate=True))
        except ValueError:
            raise UsageError("the reply's blob is not base64") from None
        if stored != digest:
            raise UsageError("the reply's blob is not the one it names")

    def expire(self, job: str, now: float) -> Job:
        """The job, ended if its time is up."""
        found = self.store.job(job)
        if found.deadline is not None and now > found.deadline and found.state == "running":
            return self.store.set_job_state(job, "expired", "its deadline has passed", now)
        return found

    def close_late(self, job: str, sequence: int, now: float) -> None:
        """End an ask whose time is up, or whose job's is; say in the log who was late."""
        of, ask = self.expire(job, now), self.store.ask(job, sequence)
        over = of.state == "expired"
        if over or (ask.deadline is not None and now > ask.deadline):
            reason = f"no reply before the deadline of the {'job' if over else 'ask'}"
            self.store.fail_open(job, sequence, "late", reason, now)

    def has(self, digest: str) -> bool:
        """Whether a blob is here, whole."""
        try:
            self.blobs.size(digest)
        except NoBlob:
            return False
        return True
