"""What a client has written down: its audit log, read once while it does not change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solera.core.errors import UsageError
from solera.serve.agent import home
from solera.serve.agent.ledger import Ledger, Statement, ledger_of
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.agent.what_left import reply_facts
from solera.serve.audit import Entry, Head, Report, entries, verify

DECISIONS = ("approved", "rejected", "withdrawn")


@dataclass(frozen=True)
class Record:
    """The lines of a log, and whether they are all that was written."""

    entries: list[Entry]
    report: Report

    def replies(self, job: str = "") -> list[Entry]:
        """What was answered or posted, the newest first."""
        replies = ((entry, reply_facts(entry)) for entry in reversed(self.entries))
        return [
            entry._replace(facts=facts)
            for entry, facts in replies
            if facts and facts["status"] and job in ("", facts["job"])
        ]

    def decisions(self) -> list[dict[str, Any]]:
        """What people decided last about each job, the newest first; names where they are known."""
        names = {e.facts["hash"]: e.facts["job"] for e in self.entries if e.event == "reply"}
        last: dict[str, dict[str, Any]] = {}
        for entry in self.entries:
            if entry.event in DECISIONS:
                hash = entry.facts["job"]
                last.pop(hash, None)
                told = {"verdict": entry.event, "time": entry.time, "name": names.get(hash, "")}
                last[hash] = {"reason": "", "until": "", **entry.facts, **told, "hash": hash}
        return list(last.values())[::-1]


class Records:
    """Reads the log of a folder; as long as the file is the same, once."""

    def __init__(self, folder: Path, key: bytes) -> None:
        self.path, self._key = folder / home.LOG, key
        self._seen: tuple[int, int] | None = None
        self._record = Record([], Report(Head(0, "")))

    def read(self) -> Record:
        """What the log says now."""
        if not self.path.exists():
            return self._record
        status = self.path.stat()
        stamp = (status.st_size, status.st_mtime_ns)
        if stamp != self._seen:
            lines = list(entries(self.path, self._key))
            self._record, self._seen = Record(lines, verify(self.path, self._key)), stamp
        return self._record


def spent(folder: Path, policy: OwnerPolicy | None) -> Statement | None:
    """What the rows have spent of their privacy budget; None if nothing."""
    path = ledger_of(folder, policy)
    if not path.exists():
        return None
    ledger = Ledger(path)
    try:
        return ledger.statement()
    finally:
        ledger.close()


def read_policy(path: Path | None) -> OwnerPolicy:
    """The policy of a file; an error that says so where none is known."""
    if path is None:
        raise UsageError(
            "which policy holds here is not known",
            hint="start the agent once with `solera join`, or this page with --policy FILE",
        )
    return OwnerPolicy.read(path)
