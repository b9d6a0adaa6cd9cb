"""A connection to a coordinator: requests with back-off, and blobs in pieces that resume."""

from __future__ import annotations

import hashlib
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from solera.core.errors import MissingExtra, PayloadError, SoleraError
from solera.core.payload import DEFAULT_LIMITS
from solera.serve import wire

T = TypeVar("T")
CHUNK = 1 << 20
_PATIENCE = 60.0
TOKEN, PIN = "SOLERA_DRIVER_TOKEN", "SOLERA_DRIVER_PIN"
"""Environment variables by which a driver that a coordinator starts gets its token and ``pin``."""


class CoordinatorError(SoleraError):
    """The coordinator refused a request, or cannot be reached."""


class Connection:
    """HTTPS to one coordinator. ``headers(method, path, body)`` authenticates every request.

    ``ca`` is a file of authorities to trust; ``pin`` is the file of the one certificate that the
    coordinator must show, under whatever name it is reached.

    Requests that fail for want of a connection are repeated with growing pauses for a minute: a
    coordinator that restarts is not an error. All requests may be repeated without harm.
    """

    def __init__(
        self,
        url: str,
        headers: Callable[[str, str, bytes], Mapping[str, str]],
        *,
        ca: str | None = None,
        pin: str | None = None,
        patience: float = _PATIENCE,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra.of("a network connection", "serve") from error
        self._http = httpx.Client(
            base_url=url, verify=_verify(ca, pin), timeout=httpx.Timeout(60.0)
        )
        self._lost = (httpx.RequestError,)
        self._headers = headers
        self.patience = patience

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The response, or a :class:`CoordinatorError` that says what the coordinator said.

        ``json`` is a message to send, or something else that JSON can hold.
        """
        content = body if json is None else msgspec.json.encode(json)
        kind = "application/octet-stream" if json is None else "application/json"
        headers = {"Content-Type": kind, **(headers or {})}
        deadline = time.monotonic() + self.patience
        pause = 0.05
        while True:
            try:
                signed = self._headers(method, path, content)
                response = self._http.request(
                    method, path, content=content, headers={**headers, **signed}
                )
            except self._lost as error:
                problem: str = f"{type(error).__name__}: {error}"
            else:
                if response.status_code < 500:
                    return self._checked(response, method, path)
                problem = f"status {response.status_code}"
            if time.monotonic() + pause > deadline:
                raise CoordinatorError(
                    f"{method} {path}: no answer from {self._http.base_url} ({problem})",
                    hint="is the coordinator running, and is the address right?",
                )
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    def call(self, method: str, path: str, answer: type[T], json: Any = None) -> T:
        """Send a message and read the answer, which is one too."""
        content = self.request(method, path, json=json).content
        try:
            return wire.read(content, answer)
        except PayloadError as error:
            raise CoordinatorError(
                f"what the coordinator says makes no sense: {error.message}",
                hint="is the address right, and are both sides of the same version?",
            ) from None

    def _checked(self, response: Any, method: str, path: str) -> Any:
        if response.status_code < 400:
            return response
        try:
            detail = response.json()["detail"]
        except (ValueError, KeyError, TypeError):
            detail = response.text[:200]
        raise CoordinatorError(f"{method} {path}: {detail} (status {response.status_code})")

    def upload(self, frame: bytes) -> str:
        """Store bytes under their digest; large ones go on where they stopped."""
        digest = hashlib.sha256(frame).hexdigest()
        if len(frame) <= CHUNK:
            self.request("POST", "/v1/blobs", body=frame)
            return digest
        upload = self.call("GET", f"/v1/uploads/{digest}", wire.Upload)
        if upload.done:
            return digest
        sent = upload.received
        while sent < len(frame):
            piece = frame[sent : sent + CHUNK]
            path = f"/v1/uploads/{digest}?offset={sent}"
            sent = int(self.request("PUT", path, body=piece).json()["received"])
        self.request("POST", f"/v1/uploads/{digest}")
        return digest

    def download(self, digest: str, inline: str | None = None) -> bytes:
        """The bytes with that digest, verified: those sent along as ``inline``, or in pieces."""
        try:
            data = bytearray(b"" if inline is None else b64decode(inline, validate=True))
        except ValueError:
            raise PayloadError(f"what the coordinator sent as {digest[:12]}… is no text") from None
        total = None if inline is None else len(data)
        while total is None or len(data) < total:
            wanted = {"Range": f"bytes={len(data)}-{len(data) + CHUNK - 1}"}
            response = self.request("GET", f"/v1/blobs/{digest}", headers=wanted)
            size = response.headers.get("Solera-Size", "")
            total = int(size) if size.isdecimal() and len(size) < 20 else -1
            if not len(data) + len(response.content) <= total <= DEFAULT_LIMITS.size:
                raise PayloadError(f"the coordinator says that {digest[:12]}… has {size} bytes")
            if not response.content and len(data) < total:
                raise PayloadError(f"the coordinator sends {digest[:12]}… only in part")
            data += response.content
        if hashlib.sha256(data).hexdigest() != digest:
            raise PayloadError(f"what the coordinator sent is not {digest[:12]}…")
        return bytes(data)

    def close(self) -> None:
        self._http.close()


def _verify(ca: str | None, pin: str | None) -> Any:
    import ssl

    if ca is None and pin is None:
        return True
    context = ssl.create_default_context(cafile=pin or ca)
    if pin is not None:
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
