"""Who may look at the owner's page: the person who started it, in one browser, on this machine.

The link that is printed works once. The browser that opened it gets a cookie that other sites
cannot use, and forms hold a second secret. A request that names another host than this one is
turned away, so that a name that is made to point here (DNS rebinding) opens nothing.
"""

from __future__ import annotations

import hmac
import secrets

from starlette.requests import Request

from solera.serve.web.requests import is_same_origin

COOKIE = "solera_owner"


class Access:
    """The secrets of one run of the page."""

    def __init__(self) -> None:
        self._link: str | None = secrets.token_urlsafe(32)
        self._cookie = secrets.token_urlsafe(32)
        self.csrf = secrets.token_urlsafe(32)
        self.hosts: frozenset[str] = frozenset()

    def link(self, port: int) -> str:
        """The address that opens the page, once; the page answers to its own names only."""
        self.hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        return f"http://127.0.0.1:{port}/open?key={self._link}"

    def open(self, key: str) -> str | None:
        """The cookie for who shows the key of the link first; None for all others."""
        if self._link is None or not _same(self._link, key):
            return None
        self._link = None
        return self._cookie

    def is_here(self, request: Request) -> bool:
        """Whether the request was meant for this machine."""
        return request.headers.get("host", "") in self.hosts

    def is_known(self, request: Request) -> bool:
        """Whether it comes from the browser that opened the link."""
        return _same(self._cookie, request.cookies.get(COOKIE, ""))

    def is_own_form(self, request: Request, shown: str) -> bool:
        """Whether a form was made by this page."""
        return is_same_origin(request) and _same(self.csrf, shown)


def _same(secret: str, shown: str) -> bool:
    return hmac.compare_digest(secret.encode(), shown.encode())
