"""A running coordinator: its store, its blobs, and who is asking."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import shutil
import time
from base64 import b64decode, b64encode
from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from solera.core.errors import SoleraError, UsageError
from solera.serve.coordinator.body import waiting_body
from solera.serve.coordinator.clock import Clock
from solera.serve.coordinator.connections import SCOPE
from solera.serve.coordinator.news import CLIENTS, TOKENS, News
from solera.serve.coordinator.notifier import Notifier
from solera.serve.coordinator.pending import PendingWork
from solera.serve.coordinator.quotas import DiskFull, Rates, TooMany, Uploads
from solera.serve.coordinator.refusals import Refusals
from solera.serve.coordinator.store.base import Denied
from solera.serve.coordinator.store.blobs import Blobs
from solera.serve.coordinator.store.store import Store
from solera.serve.coordinator.store.tables import ClientRow, TokenRow
from solera.serve.identity import (
    UNKNOWN_KEY,
    Claim,
    Identity,
    NonceCache,
    Unauthorised,
    check_request,
    new_start,
    new_token,
    read_claim,
    token_hash,
)
from solera.serve.wire import INLINE, Job

UPLOADS = 4 << 30
"""Bytes that a client, or drivers, may have uploaded and not used yet."""
_SPARE = 256 << 20
"""Bytes of the disk that uploads leave to the database and the log."""
_RATE, _BURST = 100.0, 400.0
"""Requests per second of a client, or of one connection of a driver."""
_COSTS = {
    "/v1/heartbeat": 25.0,
    "/v1/jobs/{job}/contributions": 25.0,
    "/v1/jobs/{job}/notes": 20.0,
    "/v1/jobs/{job}/asks/{sequence}/problems": 5.0,
    "/v1/federations/{federation}/invites": 5.0,
    "/v1/federations/{federation}/jobs": 2.0,
}
"""Requests that leave something on the disk for good cost more."""
_LOOK_AGAIN = 1.0
_FOR_ADMINISTRATORS = (
    "/v1/federations/{federation}/invites",
    "/v1/federations/{federation}/clients/{client}/revoke",
)
_OF_NO_FEDERATION = ("/v1/blobs", "/v1/blobs/{digest}")
"""Blobs are named by their SHA-256: who can name one has it, or was told of it."""
_MOST_DRIVEN = 10_000
"""Names of jobs that are remembered."""


class Refused(SoleraError):
    """Somebody asks for what they may not; ``who`` is for the coordinator's own log."""

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(reason)
        self.who = who


class Coordinator:
    """Store, blobs and waiting requests of a running coordinator."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        admin: bytes,
        *,
        uploads: int = UPLOADS,
        identity: Identity | None = None,
        managed_token: str | None = None,
    ) -> None:
        self.store = store
        self.blobs = blobs
        self.admin = admin
        """Hash of the token of drivers and administrators."""
        self.managed_token = managed_token or new_token()
        """The token of drivers that the coordinator starts; nobody else asks in their jobs."""
        self.start = new_start()
        """What was signed for another start, or another worker, is void."""
        self.nonces = NonceCache()
        self.notifier = Notifier()
        self.news: News | None = None
        """What other workers say, where there are several."""
        self.refusals = Refusals()
        self.pending = PendingWork(store, self.inline)
        self.rates = Rates(_RATE, _BURST)
        self.uploads = Uploads(uploads)
        self.clock = Clock(store.last_moment())
        self.identity = identity
        """The keys with which it signs its log, and what it says of models."""
        self.signed_event = 0
        """The last event that is in the signed log."""
        self.log_problem = ""
        """Why nothing can be added to the signed log, if so: then no job begins."""
        self.certificate: str | None = None
        """The file of the certificate that is shown, for people who look after it."""
        self.studies: Path | None = None
        """The folder with studies of its federations, to be compared with their jobs."""
        self.heard: dict[tuple[str, int], float] = {}
        """When clients were heard of, until it is written down."""
        self._clients: dict[bytes, ClientRow] = {}
        self._keys: set[bytes] = set()
        self._tokens: dict[bytes, TokenRow] | None = None
        self._driven: set[str] = set()
        self._look_at = float("-inf")
        self._looking = asyncio.Lock()

    # --- other workers ---

    def listen(self) -> None:
        """Hear of what other workers on the same database do, and tell them what this one does."""
        self.news = news = self.store.news(self.start, self._hear)
        self.notifier = Notifier(lambda topics: news.tell(topics=topics or [None]))

    def tell_log(self) -> None:
        """Say how far the signed log is, which one worker writes."""
        if self.news is not None:
            self.news.tell(signed=self.signed_event, problem=self.log_problem)

    def _hear(self, said: dict[str, Any] | None) -> None:
        """What another worker says; None if something may have been missed."""
        said = {"changed": ["asks", CLIENTS, TOKENS], "topics": [None]} if said is None else said
        changed = said.get("changed", ())
        if changed:
            self.store.count_change()
        if CLIENTS in changed:
            self._clients = {}
            self._keys, self._look_at = set(), float("-inf")
            self.notifier.wake()
        if TOKENS in changed:
            self.forget_tokens()
        if "signed" in said:
            self.signed_event, self.log_problem = said["signed"], said["problem"]
        topics = [tuple(t) if isinstance(t, list) else t for t in said.get("topics", ())]
        if None in topics:
            self.notifier.wake()
        elif topics:
            self.notifier.wake(*topics)

    # --- who is asking ---

    async def driver(self, request: Request) -> None:
        self._check_token(request)
        if request.state.limited is not None:
            await self._check_limits(request, request.state.limited)
        self._spend(request, request.client)
        self._known(request, "driver")

    async def asker(self, request: Request) -> None:
        """The driver of the job in the path: in a job that the coordinator runs, its own alone."""
        await self.driver(request)
        job = request.path_params["job"]
        if not request.state.is_managed and not await self._is_driven(job):
            raise Refused("driver", f"job {job!r} is run by the coordinator, which alone asks")

    async def _is_driven(self, job: str) -> bool:
        """Whether a job is driven from outside, which never changes: it is looked up once."""
        if job not in self._driven:
            stored = await run_in_threadpool(self.store.job, job)
            if stored.kind != "driven":
                return False
            if len(self._driven) >= _MOST_DRIVEN:
                self._driven.clear()
            self._driven.add(job)
        return True

    async def signed(self, request: Request, audience: str, seen: NonceCache | None) -> bytes:
        """The key that signed this request for a federation."""
        waiting = waiting_body(request)
        if waiting is not None:
            return self._check_signature(request, audience, waiting.digest, seen)
        body = hashlib.sha256(await request.body()).hexdigest()
        return self._check_signature(request, audience, body, seen)

    async def client(self, request: Request) -> ClientRow:
        """The enrolled client that signed this request."""
        client = await self._claimed_client(request)
        await self.signed(request, client.federation, self.nonces)
        if client.revoked is not None:
            raise Refused(f"client {client.name}", f"revoked: {client.reason}")
        self._spend(request, (client.federation, client.id))
        self._known(request, f"{client.federation}/{client.id}")
        return client

    async def anyone(self, request: Request) -> ClientRow | None:
        """A client, or None for a driver."""
        if "Authorization" in request.headers:
            await self.driver(request)
            return None
        return await self.client(request)

    async def admit(self, request: Request) -> None:
        """An error unless a driver or a client sends this, by its headers: the body is not here."""
        if "Authorization" in request.headers:
            self._check_token(request)
            return
        client = await self._claimed_client(request)
        self._check_signature(request, client.federation, None, None)
        request.state.admitted = client.federation

    def _check_token(self, request: Request) -> None:
        token = token_hash(request.headers.get("Authorization", "").removeprefix("Bearer "))
        own = token_hash(self.managed_token)
        request.state.is_managed = hmac.compare_digest(token, own)
        request.state.limited = None
        if request.state.is_managed or hmac.compare_digest(token, self.admin):
            return
        if self._tokens is None:
            self._tokens = {row.token_hash: row for row in self.store.tokens()}
        limited = self._tokens.get(token)
        if limited is None or limited.expires < time.time():
            raise Refused("driver", "wrong token")
        request.state.limited = limited

    async def _check_limits(self, request: Request, token: TokenRow) -> None:
        """What a program's token allows: a role, and one federation or all."""
        route = getattr(request.scope.get("route"), "path", "")
        if request.method != "GET" and token.role == "viewer":
            raise Refused("driver", f"token {token.name!r} may look only")
        if route in _FOR_ADMINISTRATORS and token.role != "administrator":
            raise Refused("driver", f"token {token.name!r} may not do that")
        if token.federation is None:
            return
        federation = request.path_params.get("federation")
        if "job" in request.path_params:
            job = await run_in_threadpool(self.store.job, request.path_params["job"])
            federation = job.federation
        if federation is None and route not in _OF_NO_FEDERATION:
            raise Refused("driver", f"token {token.name!r} is for {token.federation!r} only")
        if federation not in (None, token.federation):
            raise Refused("driver", f"token {token.name!r} is for {token.federation!r} only")

    def _check_signature(
        self, request: Request, audience: str, body: str | None, seen: NonceCache | None
    ) -> bytes:
        query = request.scope["query_string"].decode("latin-1")
        path = request.scope["path"] + (f"?{query}" if query else "")
        sent = (_claim(request), audience, request.method, path, body)
        admitted = getattr(request.state, "admitted", None) == audience
        return check_request(*sent, time.time(), seen, start=self.start, verified=admitted)

    async def _claimed_client(self, request: Request) -> ClientRow:
        """The client whose key a request names. Strangers cost no query, but one a second."""
        key = bytes.fromhex(_claim(request).key)
        client = self._clients.get(key)
        if client is None and key not in self._keys:
            async with self._looking:
                if self.news is not None:  # another worker may have enrolled it a moment ago
                    await asyncio.sleep(self._look_at - time.monotonic())
                if key not in self._keys and time.monotonic() >= self._look_at:
                    self._keys = await run_in_threadpool(self.store.client_keys)
                    self._look_at = time.monotonic() + _LOOK_AGAIN
        known = self._clients
        if client is None and key in self._keys:
            client = await run_in_threadpool(self.store.client_by_key, key)
        if client is None:
            raise Refused("client", UNKNOWN_KEY)
        known[key] = client  # nowhere, if who takes part has changed while this was looked up
        return client

    def enrolled(self, key: bytes) -> None:
        """Somebody has joined."""
        self._keys.add(key)
        self.notifier.notify()

    def forget_tokens(self) -> None:
        """Tokens have changed: look again."""
        self._tokens = None

    def forget_clients(self) -> None:
        """Who takes part has changed: look again, and wake everybody."""
        self._clients = {}
        self.notifier.notify()

    def _known(self, request: Request, who: str) -> None:
        request.state.who = who
        if SCOPE in request.scope:
            request.scope[SCOPE].identify(who)

    def _spend(self, request: Request, who: Hashable) -> None:
        route = getattr(request.scope.get("route"), "path", "")
        cost = _COSTS.get(route, 1.0) if request.method != "GET" else 1.0
        self.rates.spend(who, cost)

    def refusal(self, error: Refused | Unauthorised | TooMany) -> JSONResponse:
        """The answer to who may not ask this, or not now; it is counted."""
        if isinstance(error, TooMany):
            self.refusals.count(f"too many requests: {error.message}")
            return JSONResponse({"detail": f"refused: {error.message}"}, 429, {"Retry-After": "1"})
        detail = {"detail": f"refused: {error.message}"}
        if isinstance(error, Refused):
            self.refusals.count(f"{error.who}: {error.message}")
        elif error.reason == "start":
            detail["start"] = self.start
        else:
            self.refusals.count(f"client: {error.reason}")
        return JSONResponse(detail, status_code=401)

    def write_refusals(self, now: float) -> None:
        """Write down what was refused, and how often."""
        for what, count in self.refusals.due():
            self.store.log("refused", now, reason=what, facts={"count": count})

    def write_heard(self) -> None:
        """Write down when clients were heard of."""
        heard, self.heard = self.heard, {}
        if heard:
            self.store.seen_all(heard)

    # --- blobs ---

    def upload(self, owner: str, who: ClientRow | None, digest: str, size: int, more: int) -> None:
        """Let ``more`` bytes of a blob come, of which there are then ``size``.

        A client has something to send when it was asked something, or takes part in a closed job.
        """
        if who is not None and not (
            self.store.pending(who.federation, who.id, 1)
            or self.store.has_closed_jobs(who.federation)
        ):
            raise Denied(f"client {who.id} of {who.federation!r} is asked nothing to send")
        self.make_room(owner, digest, size, more)

    def make_room(self, owner: str, digest: str, size: int, more: int) -> None:
        """The same once it is known that the owner has something to send."""
        if shutil.disk_usage(self.blobs.folder).free < more + _SPARE:
            raise DiskFull("the coordinator's disk is full", hint="tell who runs it")
        self.uploads.add(owner, digest, size)

    def inline(self, digest: str | None, most: int = INLINE) -> str | None:
        """A small blob as text, to be sent along with the message that names it."""
        if digest is None:
            return None
        data = self.blobs.read_small(digest, most)
        return None if data is None else b64encode(data).decode()

    def keep(self, digest: str, frame: str) -> None:
        """Store a blob that was sent along with a message."""
        try:
            data = b64decode(frame, validate=True)
        except ValueError:
            raise UsageError("the blob sent along is not base64") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise UsageError("the blob sent along is not the one that is named")
        self.blobs.put(data)

    def check_uploaded(self, *digests: str | None) -> None:
        """What a driver's message names must be here, and counts as used from now on."""
        for digest in digests:
            if digest is not None and digest not in self.blobs:
                raise UsageError(f"blob {digest[:12]}… was not uploaded")
        self.uploads.settle_all(*digests)

    # --- time ---

    def expire(self, job: Job, now: float) -> Job:
        """The job as it was read, or ended if its time is up."""
        over = job.deadline is not None and now > job.deadline
        if over and job.state == "running" and self.clock.believed():
            return self.store.set_job_state(job.id, "expired", "its deadline has passed", now)
        return job

    def close_late(self, job: str, sequence: int, now: float) -> None:
        """End an ask whose time is up, or whose job's is; say in the log who was late."""
        of, ask = self.expire(self.store.job(job), now), self.store.ask(job, sequence)
        over = of.state == "expired"
        late = ask.deadline is not None and now > ask.deadline
        if over or (late and self.clock.believed()):
            reason = f"no reply before the deadline of the {'job' if over else 'ask'}"
            self.store.fail_open(job, sequence, "late", reason, now)


def _claim(request: Request) -> Claim:
    """Who is said to have signed a request; its headers are read once."""
    if not hasattr(request.state, "claim"):
        request.state.claim = read_claim(request.headers)
    return cast(Claim, request.state.claim)


def uploader(who: ClientRow | None, request: Request | None = None) -> str:
    """The owner of what is uploaded: a client, or the drivers of one address."""
    if who is not None:
        return f"{who.federation}@{who.id}"
    host = request.client.host if request is not None and request.client else ""
    return f"driver {host}"
