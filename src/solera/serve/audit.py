"""The audit log: what was asked, by whom, and what left; nobody can change it unnoticed.

One JSON object per line. ``previous`` is the hash of the line before, ``hash`` covers every byte of
the line up to itself, ``signature`` is the identity's over that hash: a line edited, deleted,
inserted or moved breaks the chain, and only the key's owner can make another. A log cut at the end
is still a chain, so the length is signed apart, in ``<path>.head``; whoever can put back an old log
together with its old head, or holds the key, is caught by a head that someone else remembers.

A crash may tear the line being written. Appending again keeps the torn bytes and signs for them
(event ``audit.torn``), so that the log only ever grows. An append never continues a log whose
acknowledged lines are not all there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from solera.core.errors import SoleraError, UsageError
from solera.core.private_files import sync_folder, write_file
from solera.serve import identity as ids

TORN: Final = "audit.torn"
_TORN_END: Final = b" torn\n"
"""More than a newline: a line that lacked nothing else must not become whole by its repair."""
_LONGEST: Final = 1 << 20
_TAIL: Final = re.compile(rb',"hash":"([0-9a-f]{64})","signature":"([0-9a-f]{128})"}\n')
_TAIL_SIZE: Final = len(',"hash":"","signature":""}\n') + 64 + 128
_HEAD: Final = re.compile(
    rb'{"n":(\d{1,18}),"hash":"([0-9a-f]{64})","signature":"([0-9a-f]{128})"}\n'
)


class AuditDamaged(SoleraError):
    """The log was changed from outside; nothing is appended to it any more."""


class Head(NamedTuple):
    """How many lines a log has and the hash of the last: all that need be remembered of it."""

    n: int
    hash: str


_EMPTY: Final = Head(0, "0" * 64)


@dataclass(frozen=True, slots=True)
class Report:
    """What :func:`verify` found; ``torn`` counts the bytes a crash left after the last line."""

    head: Head
    torn: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


class AuditLog:
    """The log of one identity; several threads and processes may append to the same path."""

    def __init__(
        self, path: str | Path, identity: ids.Identity, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(path)
        self.identity = identity
        self._clock = clock

    def append(self, event: str, /, **facts: Any) -> Head:
        """Write one line; on return it is on the disk. Bytes among the facts become hex."""
        return self.extend([(event, facts)])

    def extend(self, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> Head:
        """Write several lines at once; on return they are on the disk."""
        for event, facts in entries:
            _check_entry(event, facts)
        with self.locked() as log:
            head, end = self._last(log)
            size = os.fstat(log).st_size
            if size > end:
                head = self._sign_for_torn(log, head, os.pread(log, size - end, end))
            for event, facts in entries:
                head = self._write(log, head, event, facts)
            os.fsync(log)
            self._write_head(head)
            return head

    def head(self) -> Head:
        """Where the log ends; an error if it is not what was written."""
        with self.locked() as log:
            return self._last(log)[0]

    def last(self) -> dict[str, Any] | None:
        """The facts of the last line, if there is one."""
        with self.locked() as log:
            last, _ = _last_line(log, self.identity.sign_key)
            return None if last is None else last.facts

    @contextmanager
    def locked(self) -> Iterator[int]:
        """The open file, to which nobody else appends meanwhile."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(self.path, flags, 0o600)
        try:
            fcntl.flock(log, fcntl.LOCK_EX)
            yield log
        finally:
            os.close(log)

    def _last(self, log: int) -> tuple[Head, int]:
        """The last whole line and where it ends, after a look at the signed head."""
        last, end = _last_line(log, self.identity.sign_key)
        signed, key = head_path(self.path), self.identity.sign_key
        if last is None and not os.fstat(log).st_size and not signed.exists():
            self._write_head(_EMPTY)
            sync_folder(self.path.parent)
        try:
            head = _read_head(signed, key)
        except AuditDamaged as error:
            raise _refused(self.path, error.message) from None
        here = Head(last.n, last.hash) if last else _EMPTY
        if here != head:  # a crash came before the new head, or the log was changed
            report = verify(self.path, key, head)
            if not report.ok or report.head != here or here.n < head.n:
                raise _refused(self.path, f"it ends at line {here.n}, its head is at line {head.n}")
        return here, end

    def _sign_for_torn(self, log: int, head: Head, torn: bytes) -> Head:
        if not torn.endswith(b"\n"):
            _write_all(log, _TORN_END)
            torn += _TORN_END
        facts = {"bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()}
        return self._write(log, head, TORN, facts)

    def _write(self, log: int, head: Head, event: str, facts: Mapping[str, Any]) -> Head:
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="microseconds")
        fields = {"n": head.n + 1, "time": moment, "event": event, "facts": facts}
        body = _json(fields | {"previous": head.hash})
        digest = hashlib.sha256(body).hexdigest()
        signature = self.identity.sign(_line_message(digest)).hex()
        tail = f',"hash":"{digest}","signature":"{signature}"}}\n'
        _write_all(log, body[:-1] + tail.encode())
        return Head(head.n + 1, digest)

    def _write_head(self, head: Head) -> None:
        signature = self.identity.sign(_head_message(head)).hex()
        data = _json(head._asdict() | {"signature": signature}) + b"\n"
        write_file(head_path(self.path), data, 0o600, overwrite=True)


def _check_entry(event: str, facts: Mapping[str, Any]) -> None:
    if event == TORN:
        raise UsageError(f"append(event={event!r}): this name is for the log's own use")
    try:
        text = json.dumps([event, facts], default=_hex, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"append(event={event!r}): a fact is not JSON: {error}") from None
    if len(text) > _LONGEST // 2:
        raise UsageError(f"append(event={event!r}): {len(text):,} characters are too many")


# --- verifying -----------------------------------------------------------------------------------


def verify(path: str | Path, sign_key: bytes, head: tuple[int, str] | None = None) -> Report:
    """Check a log with nothing but its files and the public key of who wrote it.

    ``head`` is one remembered elsewhere, from whenever: the log must contain it. It is checked
    beside ``<path>.head``, and may stand in for it when only the log itself was handed over.
    """
    path = Path(path)
    problems: list[str] = []
    anchors: list[tuple[str, Head]] = []
    if head is not None:
        anchors.append(("the remembered head", Head(*head)))
    if head is None or head_path(path).exists():
        try:  # before the log, which may be growing meanwhile
            anchors.append(("its head", _read_head(head_path(path), sign_key)))
        except AuditDamaged as error:
            problems.append(error.message)
    wanted = {anchor.n: _EMPTY.hash if anchor.n == 0 else "" for _, anchor in anchors}
    last, torn = _EMPTY, _Torn()
    try:
        with open(path, "rb") as file:
            while line := file.readline(_LONGEST):
                entry = _parse(line, sign_key)
                if entry is None:
                    torn.add(line)
                    continue
                if not torn.signed_for_by(entry):
                    problems.append(
                        f"after line {last.n}: {torn.size} bytes are no line of this log"
                    )
                if (entry.n, entry.previous) != (last.n + 1, last.hash):
                    problems.append(f"line {entry.n} does not follow line {last.n}")
                torn, last = _Torn(), Head(entry.n, entry.hash)
                if entry.n in wanted:
                    wanted[entry.n] = entry.hash
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
    for name, anchor in anchors:
        if wanted[anchor.n] != anchor.hash:
            problems.append(
                f"the log ends at line {last.n}, {name} is at line {anchor.n}"
                if last.n < anchor.n
                else f"line {anchor.n} is not the one {name} names"
            )
    return Report(last, torn.size, problems)


class Entry(NamedTuple):
    """One line of a log, for people: its number, when, what, and the facts."""

    n: int
    time: str
    event: str
    facts: dict[str, Any]


def entries(path: str | Path, sign_key: bytes) -> Iterator[Entry]:
    """The lines that this key signed, in order; :func:`verify` tells whether they are all."""
    with open(path, "rb") as file:
        while line := file.readline(_LONGEST):
            entry = _parse(line, sign_key)
            if entry is not None:
                yield Entry(entry.n, json.loads(line)["time"], entry.event, entry.facts)


class _Line(NamedTuple):
    n: int
    event: str
    facts: dict[str, Any]
    previous: str
    hash: str


class _Torn:
    """Bytes between two lines, to be signed for by the second."""

    def __init__(self) -> None:
        self.size = 0
        self._hash = hashlib.sha256()

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self._hash.update(data)

    def signed_for_by(self, line: _Line) -> bool:
        facts = {"bytes": self.size, "sha256": self._hash.hexdigest()}
        return line.facts == facts if line.event == TORN else not self.size


def _parse(line: bytes, sign_key: bytes) -> _Line | None:
    """A line that this key signed, byte for byte; None for anything else."""
    tail = _TAIL.fullmatch(line, max(len(line) - _TAIL_SIZE, 0))
    if tail is None:
        return None
    body, digest = line[:-_TAIL_SIZE] + b"}", tail[1].decode()
    signature = bytes.fromhex(tail[2].decode())
    if hashlib.sha256(body).hexdigest() != digest:
        return None
    if not ids.verify(sign_key, _line_message(digest), signature):
        return None
    try:
        fields = json.loads(body)
        return _Line(fields["n"], fields["event"], fields["facts"], fields["previous"], digest)
    except (ValueError, LookupError, TypeError, RecursionError):  # a signer may be hostile too
        return None


def _last_line(log: int, sign_key: bytes) -> tuple[_Line | None, int]:
    """The last whole line and the position after it, found from the end."""
    size, reach = os.fstat(log).st_size, 1 << 14
    while True:
        start = max(0, size - reach)
        end = size
        lines = re.findall(rb"[^\n]*\n|[^\n]+", os.pread(log, size - start, start))
        for line in reversed(lines):
            if entry := _parse(line, sign_key):
                return entry, end
            end -= len(line)
        if start == 0:
            return None, 0
        reach *= 8


def _read_head(path: Path, sign_key: bytes) -> Head:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AuditDamaged(f"{path.name}: {error.strerror}; the log may have been cut") from None
    written = _HEAD.fullmatch(data)
    head = Head(int(written[1]), written[2].decode()) if written else _EMPTY
    signature = bytes.fromhex(written[3].decode()) if written else b""
    if not ids.verify(sign_key, _head_message(head), signature):
        raise AuditDamaged(f"{path.name} was not written with this key, or was changed")
    return head


def _refused(path: Path, why: str) -> AuditDamaged:
    return AuditDamaged(
        f"{path}: {why}", hint="keep both files as evidence and begin a log at another path"
    )


def _line_message(digest: str) -> bytes:
    return ids.signed_message("audit line", digest)


def _head_message(head: Head) -> bytes:
    return ids.signed_message("audit head", head.n, head.hash)


def head_path(path: Path) -> Path:
    """The file that says, signed, where the log at ``path`` ends."""
    return path.with_name(path.name + ".head")


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, default=_hex, allow_nan=False, separators=(",", ":")).encode()


def _hex(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} is not text, a number, bytes, a list or a dict")


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
