"""The coordinator's web service: what clients and drivers may ask of it.

Clients sign every request with their Ed25519 key; drivers and administrators show a token. Nothing
is acknowledged before it is stored. Waiting requests hold no thread and no database connection.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse

from solera.core.errors import SoleraError
from solera.serve.coordinator.metrics import CONTENT_TYPE, Cached, Metrics
from solera.serve.coordinator.middleware import RequestMiddleware
from solera.serve.coordinator.notifier import Notifier
from solera.serve.coordinator.openapi import describe
from solera.serve.coordinator.quotas import DiskFull, TooMany, TooMuch
from solera.serve.coordinator.routes.asks import asks_of
from solera.serve.coordinator.routes.blobs import blobs_of
from solera.serve.coordinator.routes.closed import closed_jobs_of
from solera.serve.coordinator.routes.epochs import epochs_of
from solera.serve.coordinator.routes.jobs import jobs_of
from solera.serve.coordinator.routes.members import members
from solera.serve.coordinator.routes.work import work_of
from solera.serve.coordinator.service import UPLOADS, Coordinator, Refused
from solera.serve.coordinator.store.base import Conflict, Denied, NotFound
from solera.serve.coordinator.store.blobs import Blobs
from solera.serve.coordinator.store.store import Store
from solera.serve.coordinator.web.pages import pages_of
from solera.serve.coordinator.web.visible import no_such_page
from solera.serve.identity import Identity, Unauthorised

_CACHED_SECONDS = 0.5
"""How long an answer that anybody may ask for is given again."""
_STATUS = {Conflict: 409, Denied: 403, NotFound: 404, TooMuch: 413, DiskFull: 507}


def create_app(
    store: Store,
    blobs: Blobs,
    admin: bytes,
    background: Callable[[Coordinator], Coroutine[Any, Any, None]] | None = None,
    *,
    uploads: int = UPLOADS,
    identity: Identity | None = None,
    managed_token: str | None = None,
    one_of_many: bool = False,
) -> FastAPI:
    """The service over a store; ``admin`` is the hash of the driver's token.

    ``background`` is what the coordinator does beside answering, ``uploads`` the bytes that a
    client, or drivers, may have uploaded and not used yet, ``identity`` what it signs with. A
    worker that is ``one_of_many`` on a database shares ``managed_token`` and news with the others.
    """
    coordinator = Coordinator(
        store, blobs, admin, uploads=uploads, identity=identity, managed_token=managed_token
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        coordinator.notifier = Notifier()
        if one_of_many:
            coordinator.listen()
        beside = asyncio.create_task(background(coordinator)) if background is not None else None
        yield
        if coordinator.news is not None:
            coordinator.news.close()
        if beside is not None:
            beside.cancel()
            await asyncio.wait([beside])

    app = FastAPI(
        title="Solera coordinator",
        version="1",
        description="Stores and carries asks and replies between a learner and data owners.",
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.coordinator = coordinator
    metrics = Metrics(coordinator)
    app.add_middleware(RequestMiddleware, coordinator=coordinator, metrics=metrics)

    @app.exception_handler(SoleraError)
    async def named(request: Request, error: SoleraError) -> Response:
        status = _STATUS.get(type(error), 400)
        return JSONResponse({"detail": str(error)}, status_code=status)

    @app.exception_handler(Refused)
    @app.exception_handler(Unauthorised)
    @app.exception_handler(TooMany)
    async def refused(request: Request, error: Refused | Unauthorised | TooMany) -> Response:
        return coordinator.refusal(error)

    @app.exception_handler(404)
    async def nowhere(request: Request, error: Exception) -> Response:
        """A page for a browser, and for programs what they can read."""
        if "text/html" in request.headers.get("accept", ""):
            return no_such_page()
        return JSONResponse({"detail": "Not Found"}, status_code=404)

    @app.exception_handler(RequestValidationError)
    async def unclear(request: Request, error: RequestValidationError) -> Response:
        """What is wrong and where; what was sent is not repeated, it may be anything."""
        wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        detail = "; ".join(wrong)[:1000].encode("ascii", "replace").decode()
        return JSONResponse({"detail": detail}, status_code=422)

    @app.get("/healthz", tags=["health"])
    async def health() -> dict[str, str]:
        """Alive."""
        return {"status": "ok"}

    federations = Cached(lambda: len(store.federations()), _CACHED_SECONDS)
    text = Cached(metrics.text, _CACHED_SECONDS)

    @app.get("/readyz", tags=["health"])
    async def ready() -> dict[str, Any]:
        """Alive, and the database answers."""
        return {"status": "ok", "federations": await federations.get()}

    @app.get("/metrics", tags=["health"], response_class=PlainTextResponse)
    async def numbers() -> Response:
        """Numbers for Prometheus. They name no client, no job and no federation."""
        return Response(await text.get(), media_type=CONTENT_TYPE)

    routers = [
        work_of(coordinator),  # asked for most often, and found first
        blobs_of(coordinator),
        members(coordinator),
        jobs_of(coordinator),
        asks_of(coordinator),
        closed_jobs_of(coordinator),
        epochs_of(coordinator),
    ]
    for router in routers:
        app.router.routes.extend(router.routes)  # included, each request would be matched twice
    app.include_router(pages_of(coordinator, metrics, lambda: app.openapi()))
    described = cache(lambda: describe(app, coordinator, routers))
    app.openapi = described  # type: ignore[method-assign]
    document = cache(lambda: json.dumps(described()).encode())

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(document(), media_type="application/json")

    return app
