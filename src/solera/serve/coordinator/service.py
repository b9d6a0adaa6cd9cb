"""A running coordinator: its store, its blobs, who is asking, and who waits for what."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Hashable
from typing import Any

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool

from solera.core.errors import UsageError
from solera.serve.connection import INLINE
from solera.serve.coordinator.store.blobs import Blobs, NoBlob
from solera.serve.coordinator.store.store import Store
from solera.serve.coordinator.store.tables import Client, Job
from solera.serve.identity import (
    UNKNOWN_KEY,
    NonceCache,
    Unauthorised,
    check_request,
    claimed_key,
    token_hash,
)

LONGEST_WAIT = 30.0


class Bell:
    """Wakes those who wait for news of a topic: of a client's work, or of a job."""

    def __init__(self) -> None:
        self._events: dict[Hashable, asyncio.Event] = {}
        self.waiting = 0
        """How many wait now."""

    def ring(self, *topics: Hashable) -> None:
        """There is news of these topics; without any, of all."""
        for topic in topics or list(self._events):
            event = self._events.pop(topic, None)
            if event is not None:
                event.set()

    async def until(self, topic: Hashable, ready: Callable[[], Any], seconds: float) -> Any:
        """The first true result of ``ready`` (run in a thread), or its last one when time is up."""
        end = time.monotonic() + (min(seconds, LONGEST_WAIT) if seconds > 0 else 0.0)
        while True:
            event = self._events.setdefault(topic, asyncio.Event())
            found = await run_in_threadpool(ready)
            left = end - time.monotonic()
            if found or left <= 0:
                return found
            self.waiting += 1
            try:
                await asyncio.wait_for(event.wait(), left)
            except TimeoutError:
                self.ring(topic)  # no event is kept for those who are gone
                return await run_in_threadpool(ready)
            finally:
                self.waiting -= 1


class Coordinator:
    """Store, blobs and bells of a running coordinator."""

    def __init__(self, store: Store, blobs: Blobs, admin: bytes) -> None:
        self.store = store
        self.blobs = blobs
        self.admin = admin
        """Hash of the token of drivers and administrators."""
        self.nonces = NonceCache()
        self.bell = Bell()
        self.heard: dict[tuple[str, int], float] = {}
        """When clients were heard of, until it is written down."""
        self._clients: dict[bytes, Client] = {}

    # --- who is asking ---

    async def driver(self, request: Request) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(token_hash(token), self.admin):
            raise await self.refusal("driver", "wrong token")
        request.state.who = "driver"

    async def signed(self, request: Request, audience: str, seen: NonceCache | None) -> bytes:
        """The key that signed this request for a federation."""
        body = hashlib.sha256(await request.body()).hexdigest()
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            return check_request(
                request.headers, audience, request.method, path, body, time.time(), seen
            )
        except Unauthorised as error:
            raise await self.refusal("client", error.message) from None

    async def client(self, request: Request) -> Client:
        """The enrolled client that signed this request."""
        try:
            key = claimed_key(request.headers)
        except Unauthorised as error:
            raise await self.refusal("client", error.message) from None
        found = self._clients.get(key) or await run_in_threadpool(self._find, key)
        if found is None:
            raise await self.refusal("client", UNKNOWN_KEY)
        await self.signed(request, found.federation, self.nonces)
        if found.revoked is not None:
            raise await self.refusal(f"client {found.name}", f"revoked: {found.reason}")
        request.state.who = f"{found.federation}/{found.id}"
        return found

    def _find(self, key: bytes) -> Client | None:
        found = self.store.client_by_key(key)
        if found is not None:
            self._clients[key] = found
        return found

    def forget_clients(self) -> None:
        """Who takes part has changed: look again, and wake everybody."""
        self._clients.clear()
        self.bell.ring()

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

    def write_heard(self) -> None:
        """Write down when clients were heard of."""
        heard, self.heard = self.heard, {}
        if heard:
            self.store.seen_all(heard)

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
