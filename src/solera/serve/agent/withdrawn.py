"""Persons who withdrew: their rows are left out from the next task on.

The list holds no identifiers: each is hashed with the client's secret, so that the file tells
nobody who they are, and the rows of whoever is on it are found by hashing those that are read.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from solera.core.errors import UsageError
from solera.core.private_files import read_private, write_file
from solera.serve.agent import home
from solera.serve.agent.epoch_files import EpochFiles
from solera.serve.audit import AuditLog
from solera.serve.identity import Identity
from solera.trust.epoch.snapshot import person_mark

FILE = "withdrawn.json"


@dataclass(frozen=True)
class Withdrawn:
    """Who is left out."""

    secret: bytes
    marks: frozenset[str]

    def of(self, units: Iterable[str]) -> list[bool]:
        """For each of these identifiers, whether the person withdrew."""
        asked = list(units)
        known = {unit: self._mark(unit) in self.marks for unit in set(asked)}
        return [known[unit] for unit in asked]

    def _mark(self, unit: str) -> str:
        return hmac.new(self.secret, b"withdrawn " + unit.encode(), "sha256").hexdigest()


def read_withdrawn(folder: Path) -> Withdrawn | None:
    """Who withdrew at this client; None where nobody did."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        marks = msgspec.json.decode(read_private(path), type=list[str])
    except msgspec.DecodeError:
        raise UsageError(f"{path} is damaged", hint="restore it from a copy") from None
    return Withdrawn(home.read_secret(folder), frozenset(marks))


def withdraw(folder: Path, unit: str) -> int:
    """Leave a person out from now on; how many have withdrawn. Once is enough.

    An epoch that the person is in ends here, and with it the closed jobs that run in it.
    """
    before = read_withdrawn(folder) or Withdrawn(home.read_secret(folder), frozenset())
    mark = before._mark(unit)
    marks = sorted({*before.marks, mark})
    audit = AuditLog(folder / home.LOG, Identity.load(folder))
    audit.append("person withdrawn", person=mark, persons=len(marks))
    write_file(folder / FILE, msgspec.json.encode(marks), 0o600, overwrite=True)
    if EpochFiles(folder).end_with(person_mark(before.secret, unit)):
        audit.append("epoch ended", person=mark)
    return len(marks)
