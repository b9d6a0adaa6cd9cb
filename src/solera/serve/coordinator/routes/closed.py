"""Closed jobs: researchers register texts and fetch results, owners approve, post and read."""

import time
from base64 import b64decode
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi import Path as InPath
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from solera.core.errors import UsageError
from solera.serve.closed import (
    LARGEST_POST,
    LONGEST_TEXT,
    STEP,
    ClosedJob,
    ClosedJobs,
    Ending,
    NewPost,
    NewText,
    NewVerdict,
    OwnPosts,
    Post,
    Posts,
    version_of,
)
from solera.serve.coordinator.batches import Batches
from solera.serve.coordinator.body import received_body
from solera.serve.coordinator.routes.blobs import piece_of
from solera.serve.coordinator.routes.messages import Digest, MessageRoute, Name
from solera.serve.coordinator.service import Coordinator, uploader
from solera.serve.coordinator.store.base import Conflict, NotFound
from solera.serve.coordinator.store.blobs import Received
from solera.serve.coordinator.store.closed import SIGNATURE
from solera.serve.coordinator.store.closed_tables import PostRow, TextRow
from solera.serve.coordinator.store.tables import ClientRow
from solera.trust.board.text import jid as jid_of

_MOST_INLINE = 1 << 20

StepName = Annotated[str, InPath(pattern=STEP)]


def closed_jobs_of(coordinator: Coordinator) -> APIRouter:
    """The routes of closed jobs."""
    routes = APIRouter(tags=["closed jobs"], route_class=MessageRoute)
    store, blobs = coordinator.store, coordinator.blobs
    driver = [Depends(coordinator.driver)]
    Client = Annotated[ClientRow, Depends(coordinator.client)]
    Anyone = Annotated[ClientRow | None, Depends(coordinator.anyone)]
    posting = Batches(store.add_posts)

    def tell(row: TextRow) -> None:
        coordinator.notifier.notify(row.jid, ("texts", row.federation))

    # --- for researchers ---

    @routes.put("/v1/federations/{federation}/closed/{jid}", dependencies=driver)
    def register(federation: Name, jid: Digest, new: NewText) -> ClosedJob:
        """Show a text to the owners of its epoch; the same again tells how far it is."""
        text = _decoded(new.text)
        if jid_of(bytes.fromhex(new.epoch), text).hex() != jid:
            raise UsageError("the text is not the one that is named")
        now = time.time()
        row = TextRow(jid, federation, new.epoch, text, new.owners, "waiting", "", now, now)
        tell(store.add_text(row))
        return store.closed_job(jid)

    @routes.get("/v1/federations/{federation}/closed", dependencies=driver)
    def listed(federation: Name) -> list[ClosedJob]:
        """The closed jobs of a federation, oldest first."""
        coordinator.write_heard()
        return store.closed_jobs(federation)

    @routes.get("/v1/closed/{jid}")
    async def progress(jid: Digest, who: Anyone, known: str = "", wait: float = 0) -> ClosedJob:
        """How far a job is; waits for more than what ``known`` is the version of."""
        if who is not None:
            await run_in_threadpool(store.owned_text, jid, who)

        def look() -> ClosedJob | None:
            coordinator.write_heard()
            job = store.closed_job(jid)
            return None if known and version_of([job]) == known else job

        job: ClosedJob | None = await coordinator.notifier.until(
            jid, lambda: run_in_threadpool(look), wait
        )
        return job if job is not None else await run_in_threadpool(store.closed_job, jid)

    @routes.get("/v1/closed/{jid}/result", dependencies=driver)
    def result(jid: Digest) -> Response:
        """The result, sealed to the researcher's key; posts are let go afterwards."""
        row = store.text(jid)
        if row.result is None:
            raise NotFound(f"the job is {row.state}: it has no result")
        size, pieces = blobs.serve(row.result, 0, blobs.size(row.result) - 1)
        store.fetched(jid, time.time())
        headers = {"Content-Length": str(size)}
        return StreamingResponse(pieces, headers=headers, media_type="application/octet-stream")

    # --- for owners ---

    @routes.get("/v1/closed")
    async def going_on(who: Client, known: str = "", wait: float = 0) -> ClosedJobs:
        """The jobs of this client that wait or run; waits until they are others than known."""
        coordinator.heard[who.federation, who.id] = time.time()
        key = who.sign_key.hex()

        def look() -> ClosedJobs:
            jobs = store.closed_jobs(who.federation, going_on=True)
            jobs = [job for job in jobs if any(owner.key == key for owner in job.owners)]
            return ClosedJobs(jobs, version_of(jobs, steps=False))

        async def news() -> ClosedJobs | None:
            found = await run_in_threadpool(look)
            return found if found.version != known else None

        topic = ("texts", who.federation)
        found: ClosedJobs | None = await coordinator.notifier.until(topic, news, wait)
        return found if found is not None else await run_in_threadpool(look)

    @routes.post("/v1/closed/{jid}/verdict")
    def decide(jid: Digest, who: Client, said: NewVerdict) -> dict[str, str]:
        """An owner approves or refuses a text."""
        row = store.decide(jid, who, said, time.time())
        tell(row)
        return {"state": row.state}

    async def add(jid: str, step: str, who: ClientRow, digest: str) -> dict[str, bool]:
        """Store a post whose blob is here."""

        def described() -> PostRow:
            _, owner = store.owned_text(jid, who)
            size, pieces = blobs.stream(digest, 0, SIGNATURE - 1)
            return PostRow(jid, step, owner, digest, size, b"".join(pieces), time.time())

        stored = await posting(await run_in_threadpool(described))
        coordinator.uploads.settle(uploader(who), digest)
        topics = [("texts", who.federation)] if step == "evidence" else []
        coordinator.notifier.notify(jid, *topics)
        return {"stored": stored}

    @routes.put("/v1/closed/{jid}/posts/{step}")
    async def post(request: Request, jid: Digest, step: StepName, who: Client) -> dict[str, bool]:
        """What an owner posts for a step, once: the body of this request."""

        def take(received: Received) -> str:
            if not 0 < received.size <= LARGEST_POST:
                raise UsageError(f"a post of {received.size:,} bytes is uploaded as a blob")
            store.owned_text(jid, who)
            coordinator.make_room(uploader(who), received.digest, received.size, received.size)
            return blobs.take(received)

        async with received_body(request, blobs) as received:
            digest = await run_in_threadpool(take, received)
        return await add(jid, step, who, digest)

    @routes.post("/v1/closed/{jid}/posts/{step}")
    async def post_blob(jid: Digest, step: StepName, who: Client, new: NewPost) -> dict[str, bool]:
        """The same for a post that was uploaded in pieces."""
        _check_uploaded(coordinator, who, new.digest)
        return await add(jid, step, who, new.digest)

    @routes.get("/v1/closed/{jid}/mine")
    def mine(jid: Digest, who: Client) -> OwnPosts:
        """What this owner has posted: an agent that was set back must not post another."""
        _, owner = store.owned_text(jid, who)
        return OwnPosts(store.posts_of(jid, owner))

    @routes.get("/v1/closed/{jid}/posts/{step}")
    async def posts(
        jid: Digest, step: StepName, who: Client, owners: str = "", wait: float = 0
    ) -> Posts:
        """The posts of a step by these owners, waited for, or those there are when it is over."""
        coordinator.heard[who.federation, who.id] = time.time()
        row, _ = await run_in_threadpool(store.owned_text, jid, who)
        wanted = {int(o) for o in owners.split(",") if o.isdecimal()} or set(range(len(row.owners)))
        missing = 1

        def look(*, last: bool = False) -> Posts | None:
            nonlocal missing
            rows = [post for post in store.posts(jid, step) if post.owner in wanted]
            over = len(rows) < len(wanted) and store.text(jid).state != "running"
            missing = len(wanted) - len(rows)
            if missing and not over and not last:
                return None
            share = _MOST_INLINE // max(1, len(rows))
            return Posts([_post(coordinator, post, share) for post in rows], over)

        found: Posts | None = await coordinator.notifier.until(
            jid, lambda: run_in_threadpool(look), wait, missing=lambda: missing
        )
        return found or await run_in_threadpool(look, last=True) or Posts([], False)

    @routes.get("/v1/closed/{jid}/posts/{step}/{owner}")
    def content(request: Request, jid: Digest, step: StepName, owner: int, who: Client) -> Response:
        """The bytes of a large post, in pieces."""
        store.owned_text(jid, who)
        stored = store.post(jid, step, owner)
        if stored.pruned:
            raise NotFound("the post is no longer kept")
        return piece_of(blobs, stored.digest, request)

    @routes.put("/v1/closed/{jid}/result")
    async def finish(request: Request, jid: Digest, who: Client) -> dict[str, str]:
        """The sealed result, left by the first owner that comes."""

        def take(received: Received) -> str:
            store.owned_text(jid, who)
            if not 0 < received.size <= LARGEST_POST:
                raise UsageError(f"a result of {received.size:,} bytes is uploaded as a blob")
            coordinator.make_room(uploader(who), received.digest, received.size, received.size)
            return blobs.take(received)

        async with received_body(request, blobs) as received:
            digest = await run_in_threadpool(take, received)
        return await run_in_threadpool(done, jid, who, digest)

    @routes.post("/v1/closed/{jid}/result")
    def finish_with_blob(jid: Digest, who: Client, new: NewPost) -> dict[str, str]:
        """The same for a result that was uploaded in pieces."""
        store.owned_text(jid, who)
        _check_uploaded(coordinator, who, new.digest)
        return done(jid, who, new.digest)

    def done(jid: str, who: ClientRow, digest: str) -> dict[str, str]:
        row = store.finish(jid, digest, time.time())
        coordinator.uploads.settle(uploader(who), digest)
        tell(row)
        return {"state": row.state}

    @routes.post("/v1/closed/{jid}/over")
    def over(jid: Digest, who: Client, ending: Ending) -> dict[str, str]:
        """The job is over at this owner."""
        row = store.end(jid, who, ending, time.time())
        tell(row)
        return {"state": row.state}

    return routes


def _decoded(text: str) -> bytes:
    try:
        decoded = b64decode(text, validate=True)
    except ValueError:
        raise UsageError("the text is not base64") from None
    if len(decoded) > LONGEST_TEXT:
        raise UsageError(f"a text has at most {LONGEST_TEXT:,} bytes")
    return decoded


def _check_uploaded(coordinator: Coordinator, who: ClientRow, digest: str) -> None:
    if (uploader(who), digest) not in coordinator.uploads and digest not in coordinator.blobs:
        raise Conflict("the blob was not uploaded")


def _post(coordinator: Coordinator, row: PostRow, share: int) -> Post:
    return Post(row.owner, row.digest, row.size, coordinator.inline(row.digest, share))
