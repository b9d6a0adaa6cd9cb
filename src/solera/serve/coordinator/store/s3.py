"""Blobs in a bucket of an S3-compatible store: ``s3://bucket/prefix``.

What is on its way is put together in the local folder, as ever; once it is whole and checked it
goes to the bucket in one streamed request, signed over its SHA-256, which the store checks: a
blob's name is that very digest. Requests are signed by AWS Signature Version 4, and addresses are
in path style.

Keys, region and address are read from the environment as other S3 programs do: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

import httpx

from solera.core.errors import SoleraError, UsageError
from solera.serve.coordinator.store.blobs import PIECE, Blobs, no_blob

_EMPTY = hashlib.sha256(b"").hexdigest()
_TRIES = 4
_NOT_FOUND = 404
_PAGE = 1000
"""Names of one answer."""


class StoreAway(SoleraError):
    """The bucket cannot be reached, or refuses."""


class Bucket:
    """Objects of one bucket under a prefix."""

    def __init__(self, url: str, environment: Mapping[str, str] = os.environ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise UsageError(f"{url!r} is no bucket", hint="write it like s3://bucket/prefix")
        try:
            self._key = environment["AWS_ACCESS_KEY_ID"]
            self._secret = environment["AWS_SECRET_ACCESS_KEY"]
        except KeyError as missing:
            raise UsageError(f"{url}: {missing.args[0]} is not set") from None
        self._token = environment.get("AWS_SESSION_TOKEN")
        self._region = environment.get("AWS_REGION", "us-east-1")
        endpoint = environment.get("AWS_ENDPOINT_URL", f"https://s3.{self._region}.amazonaws.com")
        self._bucket = parts.netloc
        self.prefix = f"{parts.path.strip('/')}/".lstrip("/")
        self._http = httpx.Client(base_url=endpoint, timeout=60.0)
        self._host = self._http.base_url.netloc.decode()

    def put(self, name: str, source: Path) -> None:
        """Store a file whose name is its SHA-256."""
        size = source.stat().st_size

        def content() -> Iterator[bytes]:
            with source.open("rb") as file:
                while piece := file.read(PIECE):
                    yield piece

        with self._send("PUT", name, content, {"content-length": str(size)}, name):
            pass

    def renew(self, name: str) -> None:
        """Let an object look new, by copying it onto itself."""
        source = quote(f"/{self._bucket}/{self.prefix}{name}")
        copy = {"x-amz-copy-source": source, "x-amz-metadata-directive": "REPLACE"}
        with self._send("PUT", name, None, copy):
            pass

    def head(self, name: str) -> tuple[int, float] | None:
        """Bytes of an object and when it was stored; None if it is not there."""
        with self._send("HEAD", name, missing=True) as response:
            if response.status_code == _NOT_FOUND:
                return None
            stored = parsedate_to_datetime(response.headers["last-modified"])
            return int(response.headers["content-length"]), stored.timestamp()

    def get(self, name: str, first: int, last: int) -> Iterator[bytes]:
        """The bytes ``first`` … ``last`` of an object, a little at a time."""
        with self._send("GET", name, None, {"range": f"bytes={first}-{last}"}) as response:
            yield from response.iter_bytes(PIECE)

    def delete(self, name: str) -> None:
        with self._send("DELETE", name, missing=True):
            pass

    def names(self) -> Iterator[str]:
        """All objects."""
        query = {"list-type": "2", "max-keys": str(_PAGE), "prefix": self.prefix}
        while True:
            with self._send("GET", None, query=query) as response:
                page = ElementTree.fromstring(response.read())
            for entry in page.iterfind("{*}Contents/{*}Key"):
                yield (entry.text or "").removeprefix(self.prefix)
            token = page.findtext("{*}NextContinuationToken")
            if not token:
                return
            query["continuation-token"] = token

    @contextmanager
    def _send(
        self,
        method: str,
        name: str | None,
        content: Any = None,
        headers: Mapping[str, str] | None = None,
        digest: str = _EMPTY,
        *,
        query: Mapping[str, str] | None = None,
        missing: bool = False,
    ) -> Iterator[httpx.Response]:
        """A response, to be read in the block; a store that is away is tried again."""
        path = f"/{self._bucket}" + ("" if name is None else f"/{self.prefix}{name}")
        asked = urlencode(sorted((query or {}).items()), quote_via=quote)
        problem = ""
        for attempt in range(_TRIES):
            time.sleep(0.2 * (2**attempt - 1))
            now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            signed = self._signed(method, quote(path), asked, dict(headers or {}), digest, now)
            url = quote(path) + (f"?{asked}" if asked else "")
            body = None if content is None else content()
            request = self._http.build_request(method, url, content=body, headers=signed)
            try:
                response = self._http.send(request, stream=True)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            try:
                status = response.status_code
                if status < 400 or (missing and status == _NOT_FOUND):
                    yield response
                    return
                problem = f"status {status}: {response.read()[:300].decode(errors='replace')}"
                if status < 500:
                    break
            finally:
                response.close()
        raise StoreAway(f"{method} of s3://{self._bucket}/{self.prefix}{name or ''}: {problem}")

    def _signed(
        self, method: str, path: str, query: str, headers: dict[str, str], digest: str, now: str
    ) -> dict[str, str]:
        """The headers with a signature: AWS Signature Version 4."""
        headers |= {"host": self._host, "x-amz-date": now, "x-amz-content-sha256": digest}
        if self._token:
            headers["x-amz-security-token"] = self._token
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        canonical = "\n".join([method, path, query, lines, names, digest])
        scope = f"{now[:8]}/{self._region}/s3/aws4_request"
        hashed = hashlib.sha256(canonical.encode()).hexdigest()
        said = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashed])
        key = f"AWS4{self._secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, said.encode(), "sha256").hex()
        given = f"Credential={self._key}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**headers, "authorization": f"AWS4-HMAC-SHA256 {given}"}


class BucketBlobs(Blobs):
    """Blobs in a bucket; ``folder`` holds those that are on their way."""

    def __init__(self, folder: str | os.PathLike[str], bucket: Bucket, **options: Any) -> None:
        super().__init__(folder, **options)
        self.bucket = bucket

    def stored(self, digest: str) -> int | None:
        self.path(digest)  # a name that is none is an error here, too
        found = self.bucket.head(digest)
        return None if found is None else found[0]

    def stream(self, digest: str, first: int, last: int) -> tuple[int, Iterator[bytes]]:
        size = self.stored(digest)
        if size is None:
            raise no_blob(digest)
        last = min(last, size - 1)
        return size, self.bucket.get(digest, first, last) if first <= last else iter(())

    serve = stream  # from a network, which may block: in threads

    def _renew(self, digest: str) -> int:
        self.bucket.renew(digest)
        return self.size(digest)

    def _place(self, source: Path, digest: str) -> int:
        size = source.stat().st_size
        self.bucket.put(digest, source)
        source.unlink()
        return size

    def _digests(self) -> Iterator[str]:
        return self.bucket.names()

    def _delete_older(self, digest: str, before: float) -> int:
        found = self.bucket.head(digest)
        if found is None or found[1] > before:
            return 0
        self.bucket.delete(digest)
        return 1
