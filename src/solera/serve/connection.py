"""A connection to a coordinator: requests with back-off, and blobs in pieces that resume."""

from __future__ import annotations

import hashlib
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from solera.core.errors import MissingExtra, PayloadError, SoleraError, UsageError
from solera.core.payload import DEFAULT_LIMITS
from solera.serve import wire

T = TypeVar("T")
CHUNK = (1 << 20) + (1 << 16)
"""Bytes of a piece: an update of 1 MB with what is around it goes in one."""
_PATIENCE = 60.0
LONGEST_PAUSE = 2.0
"""Seconds between two tries to reach a coordinator that is away."""
_LARGEST_ANSWER = 64 << 20
"""Bytes: far more than the replies of ten thousand clients with what travels inside them."""
_ANSWER_SECONDS = 300.0
_MOST_STARTS = 3
_LATER = (408, 429)
"""Answers that say: not now."""
HERE = "https://127.0.0.1:8443"
TOKEN, PIN = "SOLERA_DRIVER_TOKEN", "SOLERA_DRIVER_PIN"
"""Environment variables by which a driver that a coordinator starts gets its token and ``pin``."""


class CoordinatorError(SoleraError):
    """The coordinator refused a request with a status, or cannot be reached."""

    status: int | None = None


class Connection:
    """HTTPS to one coordinator; plain HTTP only to this machine itself.

    ``headers(method, path, body, start)`` authenticates every request; ``start`` is the number that
    the coordinator drew when it started, which it tells who does not know it.

    ``ca`` is a file of authorities to trust; ``pin`` is the file of the one certificate that the
    coordinator must show, under whatever name it is reached.

    Requests that fail for want of a connection are repeated with growing pauses for a minute: a
    coordinator that restarts is not an error. All requests may be repeated without harm.
    """

    def __init__(
        self,
        url: str,
        headers: Callable[[str, str, bytes, str], Mapping[str, str]],
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
            base_url=check_url(url), verify=trusting(ca, pin), timeout=httpx.Timeout(60.0)
        )
        self._make = httpx.Response
        self._lost = (httpx.RequestError,)
        self._headers = headers
        self._start = wire.NO_START
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
        headers = {"Content-Type": kind, "Accept-Encoding": "identity", **(headers or {})}
        deadline = time.monotonic() + self.patience
        pause, starts = 0.05, 0
        while True:
            try:
                response = self._exchange(method, path, content, headers)
            except self._lost as error:
                problem: str = f"{type(error).__name__}: {error}"
                if "CERTIFICATE_VERIFY_FAILED" in problem:
                    raise CoordinatorError(
                        f"{self._http.base_url}: its certificate is not to be trusted ({error})",
                        hint="its own authority is ca.pem of the coordinator: SOLERA_CA=ca.pem, "
                        "--ca or so.connect(ca=…); solera doctor --url … says what is wrong",
                    ) from None
            else:
                if starts < _MOST_STARTS and self._started(response):
                    starts += 1
                    continue
                if response.status_code < 500 and response.status_code not in _LATER:
                    return self._checked(response, method, path)
                problem = f"status {response.status_code}"
            if time.monotonic() + pause > deadline:
                raise CoordinatorError(
                    f"{method} {path}: no answer from {self._http.base_url} ({problem})",
                    hint="is the coordinator running, and is the address right?",
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _exchange(self, method: str, path: str, content: bytes, headers: Mapping[str, str]) -> Any:
        """One request and its whole answer, as it came: never unpacked, and not too long.

        A few megabytes of compressed zeros are gigabytes.
        """
        signed = self._headers(method, path, content, self._start)
        asked = self._http.stream(method, path, content=content, headers={**headers, **signed})
        end = time.monotonic() + _ANSWER_SECONDS
        with asked as response:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise CoordinatorError(f"{method} {path}: the answer is packed, as nobody asked")
            pieces, size = [], 0
            for piece in response.iter_raw():
                pieces.append(piece)
                size += len(piece)
                if size > _LARGEST_ANSWER or time.monotonic() > end:
                    raise CoordinatorError(
                        f"{method} {path}: the answer is larger than {_LARGEST_ANSWER:,} bytes, "
                        f"or takes longer than {_ANSWER_SECONDS:g} s"
                    )
            status, headers = response.status_code, response.headers
            return self._make(status, headers=headers, content=b"".join(pieces))

    def _started(self, refusal: Any) -> bool:
        """Whether a refusal says that the coordinator has started anew; the next request knows."""
        if refusal.status_code != 401:
            return False
        try:
            start = refusal.json().get("start")
        except (ValueError, AttributeError):
            return False
        if not isinstance(start, str) or not re.fullmatch("[0-9a-f]{32}", start):
            return False
        known, self._start = self._start, start
        return start != known

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
            detail = str(response.json()["detail"])[:2000]
        except (ValueError, KeyError, TypeError):
            detail = response.text[:200]
        error = CoordinatorError(f"{method} {path}: {detail} (status {response.status_code})")
        error.status = response.status_code
        raise error

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

    def reply(self, path: str, new: wire.NewReply, frame: bytes) -> None:
        """Send the reply to an ask and the bytes that it names, in one request if they are few."""
        if new.digest is None:
            self.request("POST", path, json=new)
        elif len(frame) <= wire.INLINE:
            self.request("POST", path, json=replace(new, frame=b64encode(frame).decode()))
        elif len(frame) <= CHUNK:
            self.request("PUT", f"{path}?signature={new.signature}", body=frame)
        else:
            self.upload(frame)
            self.request("POST", path, json=new)

    def download(
        self, digest: str, inline: str | None = None, *, place: str | None = None
    ) -> bytes:
        """The bytes with that digest, verified: those sent along as ``inline``, or in pieces.

        ``place`` is where they are; among the blobs by default.
        """
        place = place or f"/v1/blobs/{digest}"
        try:
            pieces = [] if inline is None else [b64decode(inline, validate=True)]
        except ValueError:
            raise PayloadError(f"what the coordinator sent as {digest[:12]}… is no text") from None
        received = sum(map(len, pieces))
        total = None if inline is None else received
        while total is None or received < total:
            wanted = {"Range": f"bytes={received}-{received + CHUNK - 1}"}
            response = self.request("GET", place, headers=wanted)
            size = response.headers.get("Solera-Size", "")
            total = int(size) if size.isdecimal() and len(size) < 20 else -1
            if not received + len(response.content) <= total <= DEFAULT_LIMITS.size:
                raise PayloadError(f"the coordinator says that {digest[:12]}… has {size} bytes")
            if not response.content and received < total:
                raise PayloadError(f"the coordinator sends {digest[:12]}… only in part")
            pieces.append(response.content)
            received += len(response.content)
        data = b"".join(pieces)  # of one piece no copy is made
        if hashlib.sha256(data).hexdigest() != digest:
            raise PayloadError(f"what the coordinator sent is not {digest[:12]}…")
        return data

    def close(self) -> None:
        self._http.close()


def check_url(url: str) -> str:
    """An address that what is secret may be sent to: https, or http on this machine itself."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"{url!r} is not an address", hint=f"write it like {HERE}")
    if parts.scheme == "http" and not _is_here(parts.hostname or ""):
        raise UsageError(
            f"{url}: without TLS everyone on the way could read the token", hint="use https://"
        )
    return url.rstrip("/")


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def trusting(ca: str | None, pin: str | None = None) -> Any:
    """Whose certificates are believed: those of these files, or the system's authorities."""
    import ssl

    if ca is None and pin is None:
        return True
    try:
        context = ssl.create_default_context(cafile=pin or ca)
    except OSError as error:
        reason = "not a PEM certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(f"the authority {pin or ca} cannot be used: {reason}") from None
    if pin is not None:
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
