"""What left a client, added up from its audit log: by job, by who asked, and by task.

The posts of a closed job count as replies to all owners; how many numbers their sums have told is
known when it is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from solera.serve.audit import Entry

_CLOSED = ("closed job finished", "closed job ended")


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
        facts = reply_facts(entry)
        if facts is None or entry.time < since or job not in ("", facts["job"]):
            continue
        task = "closed job" if "jid" in facts else facts["task"]
        key = (facts["job"], facts["owner"], task)
        total = totals.setdefault(key, Total(*key, first=entry.time))
        total.last = entry.time
        total.answered += facts["status"] == "ok"
        total.refused += facts["status"] == "refused"
        total.failed += facts["status"] == "failed"
        total.bytes += facts["bytes"]
        total.numbers += facts.get("numbers", 0)
        total.epsilon += facts.get("epsilon", 0.0)
    return list(totals.values())


def reply_facts(entry: Entry) -> dict[str, Any] | None:
    """What a line says of a reply, a post of a closed job, or the numbers that its sums told."""
    facts = entry.facts
    post = str(facts.get("name", "")) if entry.event == "closed record" else ""
    if entry.event == "reply":
        return facts
    if not post.startswith("sum") and not (entry.event in _CLOSED and "numbers" in facts):
        return None
    return {
        "digest": "",
        "bytes": 0,
        "reason": "",
        **facts,
        "job": facts["jid"][:16],
        "owner": "all owners",
        "task": f"closed {post or 'job'}",
        "status": "ok" if post else "",
        "sequence": post,
    }
