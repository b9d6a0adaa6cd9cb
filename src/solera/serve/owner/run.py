"""Serving the owner's page on this machine alone."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from solera.core.errors import UsageError
from solera.serve.owner.site import OwnerSite


def serve(site: OwnerSite, port: int, tell: Callable[[str], None]) -> None:
    """Serve until interrupted; ``tell`` gets the link. Port 0 takes any that is free."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(f"port {port} cannot be used: {error.strerror}") from None
        listener.listen()
        tell(site.access.link(listener.getsockname()[1]))
        config = uvicorn.Config(site.app(), log_level="warning", access_log=False, lifespan="off")
        uvicorn.Server(config).run(sockets=[listener])
