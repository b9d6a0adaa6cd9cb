"""Starting a coordinator: its folder, its token, its certificate, its server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from solera.core.private_files import read_private, write_file
from solera.serve.app import create_app
from solera.serve.blobs import Blobs
from solera.serve.identity import new_token, token_hash
from solera.serve.store import Store


def coordinator_app(folder: str | Path, database: str | None = None) -> Any:
    """The service over a folder (0700): database, blobs and the driver's token live there.

    ``database`` is an SQLAlchemy URL, by default an SQLite file in the folder.
    """
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = Store(database or f"sqlite:///{folder / 'coordinator.sqlite'}")
    blobs = Blobs(folder / "blobs")
    return create_app(store, blobs, token_hash(driver_token(folder)))


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
) -> None:
    """Run until interrupted; without a certificate in plain HTTP, on loopback only."""
    import uvicorn

    from solera.core.errors import UsageError

    if certificate is None and host not in ("127.0.0.1", "::1", "localhost"):
        raise UsageError(
            f"serve(host={host!r}): a coordinator that others can reach needs TLS",
            hint="make a certificate with `solera tls init`, or pass your own",
        )
    uvicorn.run(
        coordinator_app(folder, database),
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        log_level="warning",
        timeout_graceful_shutdown=2,
    )
