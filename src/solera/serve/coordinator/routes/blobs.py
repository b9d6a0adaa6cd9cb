"""What asks and replies carry, in pieces that resume."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from solera.core.errors import PayloadError
from solera.serve.coordinator.body import received_body
from solera.serve.coordinator.routes.messages import Digest, MessageRoute
from solera.serve.coordinator.service import Coordinator, Refused, uploader
from solera.serve.coordinator.store.blobs import Blobs, Received
from solera.serve.coordinator.store.tables import ClientRow
from solera.serve.wire import Upload


def blobs_of(coordinator: Coordinator) -> APIRouter:
    """The routes of uploads and downloads."""
    routes = APIRouter(tags=["blobs"], route_class=MessageRoute)
    store, blobs = coordinator.store, coordinator.blobs
    Anyone = Annotated[ClientRow | None, Depends(coordinator.anyone)]

    @routes.post("/v1/blobs")
    async def put(request: Request, who: Anyone) -> dict[str, str]:
        """A small blob in one piece."""

        def store_it(received: Received) -> str:
            owner = uploader(who, request)
            coordinator.upload(owner, who, received.digest, received.size, received.size)
            digest = blobs.take(received)
            coordinator.uploads.finish(owner, digest)
            return digest

        async with received_body(request, blobs) as received:
            return {"digest": await run_in_threadpool(store_it, received)}

    @routes.get("/v1/uploads/{digest}")
    def received(digest: Digest, who: Anyone) -> Upload:
        """How much of a blob was uploaded. Whether it is here is told to drivers alone."""
        done = who is None and digest in blobs
        return Upload(done, 0 if done else blobs.uploaded(digest, _part_of(who)))

    @routes.put("/v1/uploads/{digest}")
    async def append(request: Request, digest: Digest, offset: int, who: Anyone) -> dict[str, int]:
        """The next piece of a blob."""
        chunk = await request.body()

        def store_it() -> int:
            size, owner = max(0, offset) + len(chunk), uploader(who, request)
            coordinator.upload(owner, who, digest, size, len(chunk))
            return blobs.append(digest, offset, chunk, _part_of(who))

        return {"received": await run_in_threadpool(store_it)}

    @routes.post("/v1/uploads/{digest}")
    def complete(digest: Digest, who: Anyone) -> dict[str, bool]:
        """The last piece was sent."""
        blobs.finish(digest, _part_of(who))
        coordinator.uploads.finish(uploader(who), digest)
        return {"done": True}

    @routes.get("/v1/blobs/{digest}")
    def blob(request: Request, digest: Digest, who: Anyone) -> Response:
        """A piece of a blob; clients see only what is addressed to them."""
        if who is not None and not store.may_read(who.federation, who.id, digest):
            raise Refused(f"client {who.name}", "a blob that is not addressed to it")
        return piece_of(blobs, digest, request)

    return routes


def piece_of(blobs: Blobs, digest: str, request: Request) -> Response:
    """The piece of a blob that a request wants."""
    first, last = _range(request.headers.get("Range", ""))
    size, pieces = blobs.serve(digest, first, last)
    length = max(0, min(last, size - 1) - first + 1)
    headers = {"Solera-Size": str(size), "Content-Length": str(length)}
    return StreamingResponse(pieces, headers=headers, media_type="application/octet-stream")


def _part_of(who: ClientRow | None) -> str:
    """Whose a half upload is; drivers, who may read everything, share theirs."""
    return "" if who is None else uploader(who)


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
