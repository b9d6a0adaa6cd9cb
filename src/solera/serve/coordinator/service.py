"""A running coordinator: its store, its blobs, and who is asking."""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import b64decode, b64encode

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from solera.core.errors import SoleraError, UsageError
from solera.serve.coordinator.notifier import Notifier
from solera.serve.coordinator.store.blobs import Blobs
from solera.serve.coordinator.store.store import Store
from solera.serve.coordinator.store.tables import ClientRow
from solera.serve.identity import (
    UNKNOWN_KEY,
    NonceCache,
    check_request,
    claimed_key,
    token_hash,
)
from solera.serve.wire import INLINE, Job


class Refused(SoleraError):
    """Somebody asks for what they may not; ``who`` is for the coordinator's own log."""

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(reason)
        self.who = who


class Coordinator:
    """Store, blobs and waiting requests of a running coordinator."""

    def __init__(self, store: Store, blobs: Blobs, admin: bytes) -> None:
        self.store = store
        self.blobs = blobs
        self.admin = admin
        """Hash of the token of drivers and administrators."""
        self.nonces = NonceCache()
        self.notifier = Notifier()
        self.heard: dict[tuple[str, int], float] = {}
        """When clients were heard of, until it is written down."""
        self._clients: dict[bytes, ClientRow] = {}

    # --- who is asking ---

    async def driver(self, request: Request) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(token_hash(token), self.admin):
            raise Refused("driver", "wrong token")
        request.state.who = "driver"

    async def signed(self, request: Request, audience: str, seen: NonceCache | None) -> bytes:
        """The key that signed this request for a federation."""
        body = hashlib.sha256(await request.body()).hexdigest()
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return check_request(
            request.headers, audience, request.method, path, body, time.time(), seen
        )

    async def client(self, request: Request) -> ClientRow:
        """The enrolled client that signed this request."""
        key = claimed_key(request.headers)
        client = self._clients.get(key) or await run_in_threadpool(self._find, key)
        if client is None:
            raise Refused("client", UNKNOWN_KEY)
        await self.signed(request, client.federation, self.nonces)
        if client.revoked is not None:
            raise Refused(f"client {client.name}", f"revoked: {client.reason}")
        request.state.who = f"{client.federation}/{client.id}"
        return client

    def _find(self, key: bytes) -> ClientRow | None:
        client = self.store.client_by_key(key)
        if client is not None:
            self._clients[key] = client
        return client

    def forget_clients(self) -> None:
        """Who takes part has changed: look again, and wake everybody."""
        self._clients.clear()
        self.notifier.notify()

    async def anyone(self, request: Request) -> ClientRow | None:
        """A client, or None for a driver."""
        if "Authorization" in request.headers:
            await self.driver(request)
            return None
        return await self.client(request)

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
        stored = self.store.job(job)
        if stored.deadline is not None and now > stored.deadline and stored.state == "running":
            return self.store.set_job_state(job, "expired", "its deadline has passed", now)
        return stored

    def close_late(self, job: str, sequence: int, now: float) -> None:
        """End an ask whose time is up, or whose job's is; say in the log who was late."""
        of, ask = self.expire(job, now), self.store.ask(job, sequence)
        over = of.state == "expired"
        if over or (ask.deadline is not None and now > ask.deadline):
            reason = f"no reply before the deadline of the {'job' if over else 'ask'}"
            self.store.fail_open(job, sequence, "late", reason, now)

    def check_uploaded(self, *digests: str | None) -> None:
        """What a message names must be here."""
        for digest in digests:
            if digest is not None and digest not in self.blobs:
                raise UsageError(f"blob {digest[:12]}… was not uploaded")
