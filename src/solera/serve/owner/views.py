"""What the owner's pages show: reads of the client's folder, made fit for templates."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from solera.core.errors import PayloadError
from solera.serve.agent import home
from solera.serve.agent.approvals import Approvals
from solera.serve.agent.held_jobs import HeldJob, HeldJobs
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.agent.what_left import add_up
from solera.serve.audit import Entry
from solera.serve.description import Description, job_hash
from solera.serve.owner.record import Record
from solera.trust.policy import PROMISE

_MOST_REPLIES = 200
_LAST = 5


def sentences(policy: OwnerPolicy) -> dict[str, Any]:
    """A policy in words: its rules, and what every owner reads."""
    return {"rules": policy.describe(), "sentences": PROMISE}


def activity(record: Record) -> list[str]:
    """The last lines of the log, in words."""
    return [_line(entry) for entry in record.entries[: -_LAST - 1 : -1]]


def _line(entry: Entry) -> str:
    facts = entry.facts
    if entry.event == "reply":
        ended = "answered" if facts["status"] == "ok" else facts["status"]
        return f"{entry.time[:19]} {facts['task']} of {facts['job']}: {ended}"
    about = facts.get("job") or facts.get("now") or ""
    return f"{entry.time[:19]} {entry.event} {str(about)[:16]}".rstrip()


# --- what waits ---


def described(job: HeldJob, federation: str) -> Description | None:
    """What a job is, if the bytes that were kept are those that the hash covers."""
    spec = hashlib.sha256(job.frame).hexdigest()
    if job_hash(federation, job.job, spec) != job.hash:
        return None
    try:
        return Description.from_bytes(job.frame)
    except PayloadError:
        return None


def undecided(folder: Path, policy: OwnerPolicy, federation: str) -> list[HeldJob]:
    """The jobs that wait, but for those that people have decided about since."""
    approvals = Approvals(folder / home.APPROVALS, policy.approval.approvers)
    now = datetime.now(UTC)

    def is_decided(job: HeldJob) -> bool:
        last, known = approvals.last(job.hash), described(job, federation)
        if last is None or last.verdict != "approved":
            return last is not None and last.verdict == "rejected"
        lasts = policy.approval.lasts(None if known is None else known.seconds)
        return now < last.ends(lasts)

    return [job for job in HeldJobs(folder / home.HELD).read() if not is_decided(job)]


def waiting(job: HeldJob, policy: OwnerPolicy, federation: str) -> dict[str, Any]:
    """A job that waits: what it is, and what an approval would mean."""
    shown = {"held": job, "text": job.description, "lasts": ""}
    known = described(job, federation)
    shown["genuine"] = known is not None
    if known is None:
        return shown
    lasts = policy.approval.lasts(known.seconds)
    latest = datetime.now() + lasts
    return {
        **shown,
        "latest": latest.strftime("%Y-%m-%dT%H:%M"),
        "earliest": (datetime.now() + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M"),
        "lasts": f"{latest:%Y-%m-%d %H:%M}",
    }


# --- what left ---


def left(record: Record, copies: Path, job: str) -> dict[str, Any]:
    """What left: totals by job, recipient and task, and every reply."""
    replies = record.replies(job)
    kept = {path.name for path in copies.glob("*.copy")}
    timeline = []
    for entry in replies[:_MOST_REPLIES]:
        facts = entry.facts
        name = f"{facts['job']}.{facts['sequence']}.{facts['digest'][:16]}.copy"
        timeline.append({**facts, "time": entry.time[:19], "kept": name if name in kept else ""})
    return {
        "totals": add_up(record.entries, job=job),
        "timeline": timeline,
        "more": max(0, len(replies) - _MOST_REPLIES),
        "job": job,
        "report": record.report,
    }


def in_short(value: Any, longest: int = 20_000) -> str:
    """What a reply holds, as text."""
    text = str(value)
    return text if len(text) <= longest else f"{text[:longest]}\n… {len(text):,} characters"
