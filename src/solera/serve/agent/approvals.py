"""Which jobs people at the client have approved, each signed with the approver's own key.

An approver makes a key once (``solera approver new ana``) and keeps it; the policy names the public
half. A decision, to approve, to reject or to withdraw, is one line of JSON with the approver's
signature. Who can write to the file can so delete decisions, which holds jobs back, but make none.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from solera.core.errors import UsageError
from solera.core.payload import decode, encode
from solera.core.private_files import read_private, write_file
from solera.serve.identity import signed_message, verify

_KIND = "solera approver 1"
Verdict = Literal["approved", "rejected", "withdrawn"]
LONGEST_REASON = 300


class Approver:
    """A person who may decide: a name and a key to sign with, which stays with the person."""

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        self.name = name
        self._key = key
        self.public = key.public_key().public_bytes_raw().hex()

    @classmethod
    def create(cls, path: Path, name: str) -> Approver:
        """A new key in a file for its owner alone; one that exists is never replaced."""
        approver = cls(name, Ed25519PrivateKey.generate())
        fields = {"kind": _KIND, "name": name, "sign": approver._key.private_bytes_raw()}
        write_file(path, encode(fields), 0o600, overwrite=False)
        return approver

    @classmethod
    def load(cls, path: Path) -> Approver:
        """The approver whose key is in a file; refused when others can read it."""
        data = read_private(path)
        try:
            fields = decode(data)
            if fields["kind"] == _KIND:
                return cls(fields["name"], Ed25519PrivateKey.from_private_bytes(fields["sign"]))
        except (LookupError, TypeError, ValueError):
            pass
        raise UsageError(f"{path} is not an approver's key", hint="solera approver new NAME")

    def sign(self, message: bytes) -> bytes:
        """64 bytes that only this person can make for this message."""
        return self._key.sign(message)


class Decision(NamedTuple):
    """What a person decided about a job, when and why; an approval holds ``until`` then at most."""

    verdict: Verdict
    person: str
    at: datetime
    until: datetime | None = None
    reason: str = ""

    def ends(self, lasts: timedelta) -> datetime:
        """When an approval ends that the policy lets last so long."""
        end = self.at + lasts
        return end if self.until is None else min(end, self.until)


class Approvals:
    """The decisions in a file; ``approvers`` are the public keys, in hex, of those who count."""

    def __init__(self, path: str | os.PathLike[str], approvers: Mapping[str, str]) -> None:
        self.path = Path(path)
        self.approvers = dict(approvers)

    def check(
        self, job: str, approver: Approver, *, until: datetime | None = None, reason: str = ""
    ) -> None:
        """An error unless this person may decide so about the job of this hash."""
        if self.approvers.get(approver.name) != approver.public:
            names = ", ".join(self.approvers) or "no one"
            why = "with this key" if approver.name in self.approvers else "jobs"
            raise UsageError(
                f"{approver.name!r} may not approve {why}", hint=f"the policy names {names}"
            )
        if not re.fullmatch(r"[0-9a-f]{64}", job):
            raise UsageError(f"{job!r} is not the hash of a job: 64 hexadecimal digits")
        if len(reason) > LONGEST_REASON:
            raise UsageError(f"a reason has at most {LONGEST_REASON} characters")
        if until is not None and until <= datetime.now(UTC):
            raise UsageError(f"{until:%Y-%m-%d %H:%M} is over already", hint="name a later time")

    def decide(
        self,
        job: str,
        verdict: Verdict,
        approver: Approver,
        now: datetime,
        *,
        until: datetime | None = None,
        reason: str = "",
    ) -> Decision:
        """Write down what this person decides about the job of this hash."""
        self.check(job, approver, until=until, reason=reason)
        tick = timedelta(microseconds=1)  # a clock that was set back reverses no decision
        at = max([now.astimezone(UTC), *(d.at + tick for d in self.decisions(job))])
        end = "" if until is None else until.astimezone(UTC).isoformat()
        signed = (verdict, job, approver.name, at.isoformat(), end, reason)
        entry = {
            **dict(zip(("verdict", "job", "person", "at", "until", "reason"), signed, strict=True)),
            "signature": approver.sign(_message(*signed)).hex(),
        }
        with open(self.path, "a", encoding="utf-8", opener=_private) as file:
            file.write(f"\n{json.dumps(entry)}\n")  # the first end closes a line cut short
            file.flush()
            os.fsync(file.fileno())
        return Decision(verdict, approver.name, at, until, reason)

    def last(self, job: str) -> Decision | None:
        """What was decided last about exactly this job."""
        return max(self.decisions(job), key=lambda decision: decision.at, default=None)

    def approval(self, job: str) -> Decision | None:
        """The approval of exactly this job, unless one who may has decided otherwise since."""
        last = self.last(job)
        return last if last is not None and last.verdict == "approved" else None

    def decisions(self, job: str) -> Iterator[Decision]:
        """What people whom the policy names have signed about a job; other lines count not."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            if job.encode() in line and (decision := self._read(job, line)):
                yield decision

    def _read(self, job: str, line: bytes) -> Decision | None:
        try:
            entry = json.loads(line)
            end, reason = entry.get("until", ""), entry.get("reason", "")
            signed = (entry["verdict"], job, entry["person"], entry["at"], end, reason)
            key = bytes.fromhex(self.approvers[entry["person"]])
            signature = bytes.fromhex(entry["signature"])
            if entry["job"] == job and verify(key, _message(*signed), signature):
                at = datetime.fromisoformat(entry["at"])
                until = datetime.fromisoformat(end) if end else None
                return Decision(entry["verdict"], entry["person"], at, until, reason)
        except (ValueError, LookupError, TypeError, AttributeError):
            pass
        return None


def _message(verdict: str, job: str, person: str, at: str, until: str, reason: str) -> bytes:
    more = (until, reason) if until or reason else ()  # as decisions without them always were
    return signed_message("approval", verdict, job, person, at, *more)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
