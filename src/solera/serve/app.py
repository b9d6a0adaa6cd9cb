"""The coordinator's web service: what clients and drivers may ask of it.

Clients sign every request with their Ed25519 key; drivers and administrators show a token. Nothing
is acknowledged before it is stored. Waiting requests hold no thread and no database connection.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from solera.core.errors import SoleraError
from solera.serve.blobs import Blobs
from solera.serve.coordinator import Bell, Coordinator
from solera.serve.routes_asks import asks_of
from solera.serve.routes_blobs import blobs_of
from solera.serve.routes_jobs import jobs_of
from solera.serve.routes_members import members
from solera.serve.routes_work import work_of
from solera.serve.store import Store
from solera.serve.store_base import Conflict, Denied, NotFound

LARGEST_BODY = 8 << 20
_NO_BODY = ("GET", "HEAD", "OPTIONS", "DELETE")
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

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        """Alive."""
        return {"status": "ok"}

    @app.get("/readyz")
    def ready() -> dict[str, Any]:
        """Alive, and the database answers."""
        return {"status": "ok", "federations": len(store.federations())}

    for routes in (members(here), blobs_of(here), jobs_of(here), asks_of(here), work_of(here)):
        app.include_router(routes)
    return app
