"""Starting a coordinator: its folder, its token, its certificate, its server."""

from __future__ import annotations

import asyncio
import asyncio.selector_events
import asyncio.sslproto
import gc
import logging
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from solera.core.private_files import read_private, write_file
from solera.serve.audit import AuditLog
from solera.serve.coordinator import logs
from solera.serve.coordinator.app import create_app
from solera.serve.coordinator.certificate import Certificate
from solera.serve.coordinator.connections import Connection, allow_many
from solera.serve.coordinator.service import UPLOADS, Coordinator
from solera.serve.coordinator.sole import Sole
from solera.serve.coordinator.store.blobs import Blobs
from solera.serve.coordinator.store.s3 import Bucket, BucketBlobs
from solera.serve.coordinator.store.store import Store
from solera.serve.coordinator.supervisor import Supervisor
from solera.serve.coordinator.workers import listening_socket, serve_with
from solera.serve.identity import Identity, new_token, token_hash

log = logging.getLogger("solera.coordinator")

_KEEP_ALIVE = 75
"""Seconds: agents come back after their tasks, and a new TLS connection is dear."""
_TURN_SECONDS = 0.0005
"""How long one thread computes while another waits to: with Python's 5 ms, a request that needs
the interpreter four times waits 20 ms for somebody else's query."""
_WRITE_SECONDS = 0.5
_READ_AT_ONCE = 1 << 16
"""Bytes per connection: with asyncio's 256 kB a thousand of them need 600 MB."""


def coordinator_app(
    folder: str | Path,
    database: str | None = None,
    url: str | None = None,
    certificate: Certificate | None = None,
    *,
    uploads: int = UPLOADS,
    bucket: str | None = None,
    managed_token: str | None = None,
    worker: int | None = None,
) -> Any:
    """The service over a folder (0700): database, blobs, signed log and the driver's token.

    ``database`` is an SQLAlchemy URL, by default an SQLite file in the folder. With ``url``, the
    address at which the service reaches itself, it also runs the learners of jobs. ``bucket`` is
    where blobs lie, ``s3://bucket/prefix``, if not in the folder. Of several
    processes, each with a number as ``worker``, the first does that, for all.
    """
    folder = Path(folder)
    make_private(folder)
    store = Store(database_of(folder, database))
    blobs = open_blobs(folder, bucket)
    token = driver_token(folder)
    identity = _identity(folder / "identity")

    async def supervise(coordinator: Coordinator) -> None:
        assert url is not None
        audit = AuditLog(folder / "audit.log", identity)
        await Supervisor(coordinator, url, folder / "jobs", audit, certificate).run()

    async def beside(coordinator: Coordinator) -> None:
        await write_down(coordinator, certificate)

    background = None if url is None else supervise if not worker else beside
    app = create_app(
        store,
        blobs,
        token_hash(token),
        background,
        uploads=uploads,
        identity=identity,
        managed_token=managed_token,
        one_of_many=worker is not None,
    )
    app.state.coordinator.studies = folder / "studies"
    if certificate is not None:
        app.state.coordinator.certificate = certificate.certificate
    return app


async def write_down(coordinator: Coordinator, certificate: Certificate | None) -> None:
    """What a worker does beside answering, of several of which another looks after jobs."""
    while True:
        await asyncio.sleep(_WRITE_SECONDS)
        try:
            await run_in_threadpool(coordinator.write_heard)
            await run_in_threadpool(coordinator.write_refusals, time.time())
            if certificate is not None:
                await run_in_threadpool(certificate.reload)
        except Exception:
            log.exception("a worker could not write down who was heard of")


def database_of(folder: Path, database: str | None) -> str:
    """The database of a coordinator: an SQLite file in its folder, unless it is told."""
    return database or f"sqlite:///{folder / 'coordinator.sqlite'}"


def open_blobs(folder: Path, bucket: str | None) -> Blobs:
    """The blobs of a coordinator: in its folder, unless it is told."""
    place = folder / "blobs"
    return Blobs(place) if bucket is None else BucketBlobs(place, Bucket(bucket))


def make_private(folder: Path) -> None:
    """The folder and all in it for its owner alone: replies, tokens and keys lie there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (folder, *folder.iterdir()):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & 0o077:
            path.chmod(stat.S_IMODE(mode) & 0o700)


def _identity(folder: Path) -> Identity:
    """The coordinator's own keys, with which it signs its log; made at the first start."""
    return Identity.load(folder) if folder.exists() else Identity.create(folder)


def driver_token(folder: str | Path) -> str:
    """The token of drivers and administrators, made at the first start and kept in a 0600 file."""
    path = Path(folder) / "driver.token"
    if not path.exists():
        write_file(path, new_token().encode(), 0o600, overwrite=False)
    return read_private(path).decode()


def serve(
    folder: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8443,
    database: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    log_format: logs.Format = "text",
    uploads: int = UPLOADS,
    workers: int = 1,
    bucket: str | None = None,
) -> None:
    """Run until interrupted; without a certificate in plain HTTP, on loopback only.

    ``uploads`` are the bytes that a client, or drivers, may have uploaded and not used yet. Several
    ``workers``, processes behind one address, need PostgreSQL. Blobs lie in the folder or in a
    ``bucket``, see :mod:`solera.serve.coordinator.store.s3`.
    """
    from solera.core.errors import UsageError

    if certificate is None and host not in ("127.0.0.1", "::1", "localhost"):
        raise UsageError(
            f"serve(host={host!r}): a coordinator that others can reach needs TLS",
            hint="make a certificate with `solera tls init`, or pass your own",
        )
    reached = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(
        host, f"[{host}]" if ":" in host else host
    )
    url = f"{'http' if certificate is None else 'https'}://{reached}:{port}"
    os.umask(0o077)
    make_private(Path(folder))
    place = database_of(Path(folder), database)
    if workers > 1 and not place.startswith("postgresql"):
        raise UsageError(
            f"serve(workers={workers}): several workers need PostgreSQL",
            hint="--database postgresql://user@host/name",
        )
    if bucket is not None:
        Bucket(bucket)  # a wrong one is found out now
    sole = Sole(Path(folder), place)
    allow_many()
    sys.setswitchinterval(_TURN_SECONDS)
    logs.set_up(log_format)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    asyncio.sslproto.SSLProtocol.max_size = _READ_AT_ONCE
    plain: Any = asyncio.selector_events._SelectorTransport  # type: ignore[attr-defined]
    plain.max_size = _READ_AT_ONCE
    options: Any = {"uploads": uploads, "bucket": bucket, "managed_token": new_token()}
    pair = None
    if certificate is not None and key is not None:
        pair = Certificate(certificate, key)

    def work(worker: int | None) -> None:
        app = coordinator_app(folder, database, url, pair, worker=worker, **options)
        gc.freeze()  # what lives as long as the process is not looked through again and again
        _listen(app, host, port, pair, shared=worker is not None)

    if workers == 1:
        work(None)
    else:
        driver_token(folder)
        _identity(Path(folder) / "identity")
        serve_with(workers, work)
    sole.close()


def _listen(app: Any, host: str, port: int, pair: Certificate | None, *, shared: bool) -> None:
    """Answer requests until told to end."""
    import uvicorn

    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        ssl_certfile=None if pair is None else pair.certificate,
        ssl_keyfile=None if pair is None else pair.key,
        log_config=None,
        access_log=False,
        loop="asyncio",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=_KEEP_ALIVE,
        http=Connection,
        proxy_headers=False,  # whoever says to speak for another address is not believed
    )
    config.load()
    if pair is not None:
        pair.context = config.ssl
    uvicorn.Server(config).run([listening_socket(host, port)] if shared else None)
