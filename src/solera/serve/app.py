"""The coordinator's web service: what clients and drivers may ask of it.

Clients sign every request with their Ed25519 key; drivers and administrators show a token. Nothing
is acknowledged before it is stored. Waiting requests hold no thread and no database connection.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from solera.core.errors import PayloadError, SoleraError, UsageError
from solera.engines.connection import INLINE
from solera.serve.blobs import Blobs
from solera.serve.coordinator import Bell, Coordinator
from solera.serve.identity import new_token, reply_message, token_hash, verify
from solera.serve.messages import (
    Digest,
    Join,
    Name,
    NewAsk,
    NewCheckpoint,
    NewInvite,
    NewJob,
    NewReply,
    NewState,
    Reason,
)
from solera.serve.store import Store
from solera.serve.store_base import Conflict, Denied, NotFound
from solera.serve.tables import Client

LARGEST_BODY = 8 << 20
_NO_BODY = ("GET", "HEAD", "OPTIONS", "DELETE")
_MOST_INLINE = 1 << 20
_INVITE_SECONDS = 7 * 24 * 3600.0
_STATUS = {Conflict: 409, Denied: 403, NotFound: 404}


def create_app(store: Store, blobs: Blobs, admin: bytes) -> FastAPI:
    """The service over a store; ``admin`` is the hash of the driver's token."""
    here = Coordinator(store, blobs, admin)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        here.bell = Bell()
        yield

    app = FastAPI(title="Solera coordinator", version="1", lifespan=lifespan)
    app.state.coordinator = here

    @app.middleware("http")
    async def bounded(
        request: Request, go_on: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Turn large bodies away before a byte of them is read: blobs come in pieces."""
        size = request.headers.get("Content-Length", "0" if request.method in _NO_BODY else "")
        if not size.isdecimal() or int(size) > LARGEST_BODY:
            wanted = f"a body of known length, at most {LARGEST_BODY:,} bytes"
            return JSONResponse({"detail": f"the request needs {wanted}"}, status_code=413)
        return await go_on(request)

    @app.exception_handler(SoleraError)
    async def named(request: Request, error: SoleraError) -> Response:
        status = _STATUS.get(type(error), 400)
        return JSONResponse({"detail": str(error)}, status_code=status)

    @app.exception_handler(RequestValidationError)
    async def unclear(request: Request, error: RequestValidationError) -> Response:
        """What is wrong and where; what was sent is not repeated, it may be anything."""
        wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        said = "; ".join(wrong)[:1000].encode("ascii", "replace").decode()
        return JSONResponse({"detail": said}, status_code=422)

    driver = Depends(here.driver)

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        """Alive."""
        return {"status": "ok"}

    @app.get("/readyz")
    def ready() -> dict[str, Any]:
        """Alive, and the database answers."""
        return {"status": "ok", "federations": len(store.federations())}

    # --- enrolment ---

    @app.post("/v1/federations/{federation}/invites", dependencies=[driver])
    def invite(federation: Name, new: NewInvite) -> dict[str, str]:
        """A token with which one client may join, once, within a week."""
        if federation not in {f.name for f in store.federations()}:
            store.add_federation(federation)
        token = f"{federation}/{new.name}/{new_token()}"
        store.add_invite(federation, new.name, token_hash(token), time.time() + _INVITE_SECONDS)
        return {"token": token}

    @app.post("/v1/join")
    async def join(new: Join, key: Annotated[bytes, Depends(here.key)]) -> dict[str, Any]:
        """Enrol the key that signed this request."""
        if key.hex() != new.sign_key:
            raise await here.refusal("join", "the request is signed by another key than it names")
        federation, _, rest = new.token.partition("/")

        def enrol() -> Client:
            return store.enrol(
                federation,
                rest.partition("/")[0],
                key,
                bytes.fromhex(new.seal_key),
                new.tasks,
                token_hash=token_hash(new.token),
            )

        client = await run_in_threadpool(enrol)
        here.bell.ring()
        return {"client": client.id, "name": client.name, "federation": client.federation}

    @app.get("/v1/federations/{federation}", dependencies=[driver])
    def federation_of(federation: Name) -> dict[str, Any]:
        """Who takes part."""
        if federation not in {f.name for f in store.federations()}:
            raise HTTPException(404, f"no federation {federation!r}")
        return {
            "name": federation,
            "clients": [
                {
                    "id": c.id,
                    "name": c.name,
                    "status": "active" if c.revoked is None else "revoked",
                    "seen": c.seen,
                    "tasks": c.tasks,
                }
                for c in store.clients(federation)
            ],
        }

    @app.post("/v1/federations/{federation}/clients/{client}/revoke", dependencies=[driver])
    def revoke(federation: Name, client: int, why: Reason) -> dict[str, str]:
        """Shut a client out, at once."""
        store.revoke(federation, client, why.reason)
        return {"status": "revoked"}

    # --- blobs ---

    @app.post("/v1/blobs")
    async def put(request: Request, who: Annotated[Any, Depends(here.anyone)]) -> dict[str, str]:
        """A small blob in one piece."""
        return {"digest": await run_in_threadpool(blobs.put, await request.body())}

    @app.get("/v1/uploads/{digest}")
    async def received(digest: Digest, who: Annotated[Any, Depends(here.anyone)]) -> dict[str, Any]:
        """How much of a blob is here."""
        done = await run_in_threadpool(here.has, digest)
        return {"done": done, "received": 0 if done else blobs.uploaded(digest)}

    @app.put("/v1/uploads/{digest}")
    async def append(
        request: Request, digest: Digest, offset: int, who: Annotated[Any, Depends(here.anyone)]
    ) -> dict[str, int]:
        """The next piece of a blob."""
        chunk = await request.body()
        return {"received": await run_in_threadpool(blobs.append, digest, offset, chunk)}

    @app.post("/v1/uploads/{digest}")
    async def complete(digest: Digest, who: Annotated[Any, Depends(here.anyone)]) -> dict[str, Any]:
        """The last piece was sent."""
        if not await run_in_threadpool(here.has, digest):
            await run_in_threadpool(blobs.finish, digest)
        return {"done": True}

    @app.get("/v1/blobs/{digest}")
    async def blob(
        request: Request, digest: Digest, who: Annotated[Client | None, Depends(here.anyone)]
    ) -> Response:
        """A piece of a blob; clients see only what is addressed to them."""
        if who is not None:
            mine = await run_in_threadpool(store.pending, who.federation, who.id, 1000)
            if digest not in {d for ask in mine for d in (ask.payload, ask.prepare)}:
                raise await here.refusal(f"client {who.name}", "a blob that is not addressed to it")
        first, last = _range(request.headers.get("Range", ""))

        def piece() -> tuple[int, bytes]:
            with blobs.open(digest) as file:
                file.seek(first)
                return blobs.size(digest), file.read(last - first + 1)

        size, data = await run_in_threadpool(piece)
        headers = {"Solera-Size": str(size)}
        return Response(data, headers=headers, media_type="application/octet-stream")

    # --- jobs and asks, for drivers ---

    @app.post("/v1/federations/{federation}/jobs", dependencies=[driver])
    def add_job(federation: Name, new: NewJob) -> dict[str, Any]:
        """Start a job, or find the one of that name."""
        now = time.time()
        deadline = None if new.seconds is None else now + new.seconds
        try:
            known = store.job(new.id)
            deadline = known.deadline
        except SoleraError:
            known = None
        job = store.add_job(
            new.id, federation, new.kind, new.spec, new.spec, new.seed, new.owner, deadline, now
        )
        if job.state == "created":
            store.set_job_state(job.id, "running", "", now)
        return {"id": job.id, "state": store.job(job.id).state, "resumed": known is not None}

    @app.get("/v1/jobs/{job}", dependencies=[driver])
    def show_job(job: Name) -> dict[str, Any]:
        found = here.expire(job, time.time())
        return {
            "id": found.id,
            "kind": found.kind,
            "hash": found.hash,
            "state": found.state,
            "reason": found.reason,
        }

    @app.post("/v1/jobs/{job}/state", dependencies=[driver])
    def set_state(job: Name, new: NewState) -> dict[str, str]:
        store.set_job_state(job, new.state, new.reason, time.time())
        return {"state": new.state}

    @app.put("/v1/jobs/{job}/asks/{sequence}", dependencies=[driver])
    async def add_ask(job: Name, sequence: int, new: NewAsk) -> dict[str, Any]:
        """Ask clients of a job; the same again changes nothing."""
        now = time.time()

        def add() -> None:
            named = [new.payload] if isinstance(new.payload, str) else list(new.payload.values())
            for digest in (*named, *([new.prepare] if new.prepare else [])):
                if not here.has(digest):
                    raise UsageError(f"blob {digest[:12]}… was not uploaded")
            try:
                deadline = store.ask(job, sequence).deadline
            except SoleraError:
                deadline = None if new.seconds is None else now + new.seconds
            store.add_ask(
                job, sequence, new.task, new.version, new.payload, new.prepare, new.round,
                deadline, new.clients, now,
            )  # fmt: skip

        await run_in_threadpool(add)
        here.bell.ring()
        return {"job": job, "sequence": sequence}

    @app.get("/v1/jobs/{job}/asks/{sequence}/replies", dependencies=[driver])
    async def replies(job: Name, sequence: int, known: int = 0, wait: float = 0) -> dict[str, Any]:
        """Replies so far; waits for more than ``known``."""

        def look() -> dict[str, Any] | None:
            asked = len(store.ask(job, sequence).clients)
            here.close_late(job, sequence, time.time())
            rows = store.replies(job, sequence)
            share = min(INLINE, _MOST_INLINE // max(1, len(rows)))
            complete = len(rows) == asked
            if len(rows) <= known and not complete:
                return None
            return {
                "complete": complete,
                "replies": [
                    {
                        "client": r.client,
                        "status": r.status,
                        "digest": r.digest,
                        "size": r.size,
                        "reason": r.reason,
                        "frame": here.inline(r.digest, share),
                    }
                    for r in rows
                ],
            }

        ask = await run_in_threadpool(store.ask, job, sequence)
        of = await run_in_threadpool(store.job, job)
        ends = [end - time.time() for end in (ask.deadline, of.deadline) if end is not None]
        limit = min([wait, *(max(0.0, left) + 0.01 for left in ends)])
        found = await here.bell.until(look, limit)
        return found or {"complete": False, "replies": []}

    @app.put("/v1/jobs/{job}/checkpoint", dependencies=[driver])
    def save_checkpoint(job: Name, new: NewCheckpoint) -> dict[str, Any]:
        """Remember where a job can go on; replies before it are forgotten."""
        store.save_checkpoint(job, new.sequence, new.digest, time.time())
        return {"sequence": new.sequence}

    @app.get("/v1/jobs/{job}/checkpoint", dependencies=[driver])
    def checkpoint(job: Name) -> dict[str, Any]:
        found = store.checkpoint(job)
        return {"sequence": found[0], "digest": found[1]} if found else {}

    # --- work, for clients ---

    @app.get("/v1/work")
    async def work(who: Annotated[Client, Depends(here.client)], wait: float = 0) -> dict[str, Any]:
        """Asks that wait for this client."""
        await run_in_threadpool(store.seen, who.federation, who.id, time.time())

        def look() -> list[dict[str, Any]]:
            found = []
            for ask in store.pending(who.federation, who.id, 8):
                job = store.job(ask.job)
                found.append(
                    {
                        "job": ask.job,
                        "sequence": ask.seq,
                        "kind": job.kind,
                        "hash": job.hash,
                        "owner": job.owner,
                        "seed": job.seed,
                        "task": ask.task,
                        "version": ask.version,
                        "payload": ask.payload,
                        "frame": here.inline(ask.payload),
                        "prepare": ask.prepare,
                        "round": ask.round,
                        "deadline": ask.deadline,
                    }
                )
            return found

        return {"asks": await here.bell.until(look, wait)}

    @app.post("/v1/jobs/{job}/asks/{sequence}/reply")
    async def reply(
        job: Name, sequence: int, new: NewReply, who: Annotated[Client, Depends(here.client)]
    ) -> dict[str, Any]:
        """A client's answer, signed for this ask; the same again changes nothing."""
        message = reply_message(
            who.federation, job, sequence, str(who.id), new.status, new.digest or "", new.size
        )
        signature = bytes.fromhex(new.signature)
        if not verify(who.sign_key, message, signature):
            raise await here.refusal(f"client {who.name}", "a reply that it did not sign")

        def add() -> bool:
            if new.digest is not None and new.frame is not None:
                here.keep(new.digest, new.frame)
            if new.status == "ok" and (new.digest is None or not here.has(new.digest)):
                raise UsageError("the reply's blob was not uploaded")
            now = time.time()
            stored = store.add_reply(
                job, sequence, who.id, new.status, new.digest, new.size, new.reason, signature, now
            )
            if stored and new.status != "ok":
                store.log(who.federation, job, who.id, new.status, new.reason, now)
            return stored

        stored = await run_in_threadpool(add)
        here.bell.ring()
        return {"stored": stored}

    return app


def _range(header: str) -> tuple[int, int]:
    """First and last byte of ``bytes=a-b``; at most one chunk of a few megabytes."""
    most = 4 << 20
    try:
        first, last = (int(part) for part in header.removeprefix("bytes=").split("-"))
    except ValueError:
        return 0, most - 1
    if not 0 <= first <= last < 2**62:
        raise PayloadError(f"range {header!r} makes no sense")
    return first, min(last, first + most - 1)
