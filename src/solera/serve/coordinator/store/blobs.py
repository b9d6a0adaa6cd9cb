"""Blobs: what asks and replies carry, on disk, named by their SHA-256.

A blob appears under its name only when it is complete, checked and on stable storage: it is written
beside, synced, renamed, and its folder synced. Uploads come in chunks and can be resumed; no method
but :meth:`Blobs.put` and :meth:`Blobs.read` holds more than one chunk in memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from solera.core.errors import PayloadError, PayloadTooLarge, UsageError
from solera.core.private_files import sync_folder

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
PIECE = 1 << 17
"""Bytes of a blob that are in memory at a time while it is read."""


class NoBlob(PayloadError):
    """No blob of that digest is stored."""


class Received:
    """Bytes on their way to become a blob, with their SHA-256 so far."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file = path, file
        self.size = 0
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self._hash.update(data)
        self.size += len(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class Blobs:
    """A folder of blobs, ``ab/cdef…``, and ``parts/`` of those still on their way.

    Safe for many threads, and for the processes of one coordinator.
    """

    def __init__(self, folder: str | os.PathLike[str], *, max_size: int = 1 << 30) -> None:
        if max_size <= 0:
            raise UsageError.of(self, "max_size", max_size, "must be > 0 bytes")
        self.folder = Path(folder)
        self.max_size = max_size
        self._parts = self.folder / "parts"
        self._parts.mkdir(parents=True, exist_ok=True)
        self._locks = [threading.Lock() for _ in range(256)]
        self._lock_file = open(self.folder / "lock", "w")  # noqa: SIM115

    # --- whole blobs ---

    def put(self, data: bytes) -> str:
        """Store the bytes; their digest. Storing them again keeps them from being collected."""
        with self.receive() as received:
            received.write(data)
            return self.take(received)

    @contextmanager
    def receive(self) -> Iterator[Received]:
        """A file for bytes that come a little at a time; it is gone afterwards unless taken."""
        handle, name = tempfile.mkstemp(dir=self._parts)
        try:
            with open(handle, "w+b") as file:
                yield Received(Path(name), file)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)

    def take(self, received: Received) -> str:
        """Make what was received a blob; its digest."""
        self._check_size(received.size)
        received.file.flush()
        digest = received.digest
        with self._lock(digest):
            if self.stored(digest) == received.size:
                self._renew(digest)
            else:
                self._place(received.path, digest)
        return digest

    def path(self, digest: str) -> Path:
        """Where the blob lies, or would lie."""
        if not _DIGEST.fullmatch(str(digest)):
            raise UsageError.of("blob", "digest", str(digest)[:80], "must be 64 hexadecimal digits")
        return self.folder / digest[:2] / digest[2:]

    def __contains__(self, digest: str) -> bool:
        return self.stored(digest) is not None

    def stored(self, digest: str) -> int | None:
        """Bytes of a blob; None if it is not here."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def size(self, digest: str) -> int:
        """Bytes of a stored blob."""
        size = self.stored(digest)
        if size is None:
            raise no_blob(digest)
        return size

    def stream(self, digest: str, first: int, last: int) -> tuple[int, Iterator[bytes]]:
        """Bytes of a blob in all, and those from ``first`` to ``last``, a little at a time.

        The reader checks the digest.
        """
        try:
            file = self.path(digest).open("rb")
        except FileNotFoundError:
            raise no_blob(digest) from None
        file.seek(first)
        if hasattr(os, "posix_fadvise"):  # the disk begins now, not when a piece is wanted
            os.posix_fadvise(file.fileno(), first, last - first + 1, os.POSIX_FADV_WILLNEED)

        def pieces(left: int) -> Iterator[bytes]:
            with file:
                while piece := file.read(min(left, PIECE)):
                    left -= len(piece)
                    yield piece

        return os.fstat(file.fileno()).st_size, pieces(last - first + 1)

    def serve(
        self, digest: str, first: int, last: int
    ) -> tuple[int, Iterator[bytes] | AsyncIterator[bytes]]:
        """The same for a response; what is read from the disk needs no thread for each piece."""
        size, pieces = self.stream(digest, first, last)
        return size, _without_threads(pieces)

    def read(self, digest: str) -> bytes:
        """The checked bytes of a blob."""
        data = self.read_small(digest, self.max_size)
        assert data is not None
        return data

    def read_small(self, digest: str, most: int) -> bytes | None:
        """The checked bytes of a blob, None if there are more than ``most``."""
        size, pieces = self.stream(digest, 0, most)
        if size > most:
            return None
        data = b"".join(pieces)
        if hashlib.sha256(data).hexdigest() != digest:
            raise PayloadError(
                f"blob {digest} is damaged on disk", hint="restore it from a backup of the folder"
            )
        return data

    # --- uploads ---

    # An upload with an ``owner`` is that owner's alone: nobody else adds to it, and it goes the
    # same way whether the blob is here already or not, so that its owner does not learn which.

    def uploaded(self, digest: str, owner: str = "") -> int:
        """Bytes received so far: where an upload resumes."""
        part = self._part(digest, owner)
        with self._lock(digest):
            if not owner and digest in self:
                return self._renew(digest)
            return _size(part)

    def append(self, digest: str, offset: int, chunk: bytes, owner: str = "") -> int:
        """Add a chunk that begins where the upload stands; bytes received so far.

        Of a chunk that begins earlier the rest is added: it was sent again because nobody
        acknowledged it. :meth:`finish` checks the whole.
        """
        part = self._part(digest, owner)
        with self._lock(digest):
            if not owner and digest in self:
                return self._renew(digest)
            have = _size(part)
            if not 0 <= offset <= have:
                raise UsageError(
                    f"upload of {digest}: a chunk for byte {offset} came, {have} is next",
                    hint="ask where the upload stands and continue there",
                )
            rest = memoryview(chunk)[have - offset :]
            self._check_size(have + len(rest))
            with part.open("ab") as file:
                file.write(rest)
            return have + len(rest)

    def finish(self, digest: str, owner: str = "") -> int:
        """Check an upload and make it a blob; its size. A wrong upload is thrown away."""
        part = self._part(digest, owner)
        with self._lock(digest):
            if not owner and digest in self:
                part.unlink(missing_ok=True)
                return self._renew(digest)
            if not part.exists():
                raise NoBlob(f"upload of {digest}: nothing was received")
            with part.open("rb") as file:
                received = hashlib.file_digest(file, "sha256").hexdigest()
            if received != digest:
                part.unlink()
                raise PayloadError(
                    f"upload of {digest}: the bytes received have digest {received}",
                    hint="send it again from the start",
                )
            return self._place(part, digest)

    # --- housekeeping ---

    def collect(
        self, keep: Set[str], grace: float = 3600.0, *, among: Set[str] | None = None
    ) -> int:
        """Delete blobs not in ``keep`` and parts, unless used in the last ``grace`` seconds.

        The grace period covers the time between storing a blob and storing the row that names it.
        With ``among`` no others are looked at.
        """
        before = time.time() - grace
        gone = 0
        if among is not None:
            for digest in among - keep:
                with self._lock(digest):
                    gone += self._delete_older(digest, before)
                    for part in self._parts.glob(f"*{digest}"):
                        gone += _delete_older(part, before)
            return gone
        for digest in self._digests():
            if digest not in keep and _DIGEST.fullmatch(digest):
                with self._lock(digest):
                    gone += self._delete_older(digest, before)
        for part in self._parts.iterdir():
            named = part.name[-64:] if _DIGEST.fullmatch(part.name[-64:]) else "00"
            with self._lock(named):
                gone += _delete_older(part, before)
        return gone

    def _digests(self) -> Iterator[str]:
        """The names of all blobs."""
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            yield path.parent.name + path.name

    def _delete_older(self, digest: str, before: float) -> int:
        return _delete_older(self.path(digest), before)

    def disk_bytes(self) -> int:
        """Bytes of all blobs, whole and half."""
        return sum(_size(path) for path in self.folder.rglob("*") if path.is_file())

    def _part(self, digest: str, owner: str) -> Path:
        self.path(digest)
        return self._parts / (f"{owner}-{digest}" if owner else digest)

    @contextmanager
    def _lock(self, digest: str) -> Iterator[None]:
        """One at a time for blobs of these first letters, of all threads and processes."""
        place = int(digest[:2], 16)
        with self._locks[place]:
            fcntl.lockf(self._lock_file, fcntl.LOCK_EX, 1, place)
            try:
                yield
            finally:
                fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, place)

    def _check_size(self, size: int) -> None:
        if size > self.max_size:
            raise PayloadTooLarge(f"blob of {size:,} bytes exceeds the limit of {self.max_size:,}")

    def _place(self, source: Path, digest: str) -> int:
        """Make a complete file durable under its name; its bytes."""
        path = self.path(digest)
        with source.open("rb") as file:
            os.fsync(file.fileno())
        if not path.parent.exists():
            path.parent.mkdir(exist_ok=True)
            sync_folder(self.folder)
        os.replace(source, path)
        return self._renew(digest)

    def _renew(self, digest: str) -> int:
        """Restart the grace period of a blob; its bytes.

        The name is durable even if the process that made it was killed.
        """
        path = self.path(digest)
        os.utime(path)
        sync_folder(path.parent)
        return path.stat().st_size


async def _without_threads(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def no_blob(digest: str) -> NoBlob:
    """The error that says that a blob is not here."""
    hint = "it was never uploaded, or is no longer needed"
    return NoBlob(f"no blob {digest}", hint=hint)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _delete_older(path: Path, before: float) -> int:
    try:
        if path.stat().st_mtime > before:
            return 0
        path.unlink()
    except FileNotFoundError:
        return 0
    return 1
