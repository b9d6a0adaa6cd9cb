"""Which jobs people at the client have approved."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from solera.core.errors import UsageError


class Approvals:
    """The jobs that people approved, one line of JSON each; a line nobody can read counts not."""

    def __init__(self, path: str | os.PathLike[str], approvers: Sequence[str]) -> None:
        self.path = Path(path)
        self.approvers = tuple(approvers)

    def approve(self, job_hash: str, person: str, now: datetime) -> None:
        """Write down that this person approves the job of this hash."""
        if person not in self.approvers:
            names = ", ".join(self.approvers) or "no one"
            raise UsageError(f"{person!r} may not approve jobs", hint=f"the policy names {names}")
        if not re.fullmatch(r"[0-9a-f]{64}", job_hash):
            raise UsageError(f"{job_hash!r} is not the hash of a job: 64 hexadecimal digits")
        line = json.dumps({"job": job_hash, "person": person, "at": now.isoformat()})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8", opener=_private) as file:
            file.write(f"\n{line}\n")  # the first end of line closes a line that was cut short
            file.flush()
            os.fsync(file.fileno())

    def approved(self, job_hash: str) -> bool:
        """Whether someone who may has approved exactly this job."""
        return any(
            entry.get("job") == job_hash and entry.get("person") in self.approvers
            for entry in self._entries()
        )

    def _entries(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        entries = []
        for line in self.path.read_bytes().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                entries.append(entry)
        return entries


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
