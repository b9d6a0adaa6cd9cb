"""What left a client, added up from its audit log: by job, by who asked, and by task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from solera.serve.audit import Entry


@dataclass
class Total:
    """The asks of one task of one job: how they ended, and what left with them."""

    job: str
    recipient: str
    task: str
    answered: int = 0
    refused: int = 0
    failed: int = 0
    numbers: int = 0
    bytes: int = 0
    epsilon: float = 0.0
    first: str = ""
    last: str = ""


def add_up(entries: Iterable[Entry], *, job: str = "", since: str = "") -> list[Total]:
    """The totals, in the order of their first reply; ``since`` is a time as the log writes it."""
    totals: dict[tuple[str, str, str], Total] = {}
    for entry in entries:
        facts = entry.facts
        if entry.event != "reply" or entry.time < since or job not in ("", facts["job"]):
            continue
        key = (facts["job"], facts["owner"], facts["task"])
        total = totals.setdefault(key, Total(*key, first=entry.time))
        total.last = entry.time
        total.answered += facts["status"] == "ok"
        total.refused += facts["status"] == "refused"
        total.failed += facts["status"] == "failed"
        total.bytes += facts["bytes"]
        total.numbers += facts.get("numbers", 0)
        total.epsilon += facts.get("epsilon", 0.0)
    return list(totals.values())
