"""A closed job on one screen, for the coordinator's and the owners' pages."""

from __future__ import annotations

from typing import Any

from solera.core.component import build
from solera.core.errors import SoleraError
from solera.learn.closed import price_of
from solera.serve.closed import ClosedJob, OwnerState
from solera.serve.closed_words import clock, job_words, name_of, parsed, text_lines
from solera.trust.board.text import JobText

OWNERS = ("owner", "says", "now")
STEERED = (
    "Many rounds: an owner that lies can steer the later questions, and then read rows. Only noise "
    "prevents it."
)
NOISED = "Every owner adds noise inside the sums, which its ledger counts as a whole job"
MANY_SUMS = (
    "Many exact sums together can give away a person's target to somebody who knows everybody's "
    "other columns: 20 boosted trees all 297 targets of the Cleveland heart data. Only noise "
    "prevents it."
)


def closed_view(job: ClosedJob) -> dict[str, Any]:
    """What both pages show of a job."""
    text = parsed(job)
    return {
        "jid": job.jid,
        "name": name_of(text),
        "kind": text.kind,
        "words": job_words(job),
        "going_on": job.going_on,
        "begun": job.created,
        "OWNERS": OWNERS,
        "owners": [_owner(job, owner) for owner in job.owners],
        "lines": text_lines(text),
        "notes": notes(text, len(job.owners)),
        "serious": (STEERED, MANY_SUMS),
        "epoch": job.epoch,
    }


def notes(text: JobText, owners: int) -> list[str]:
    """What an owner considers before it approves a text."""
    alone = " With three, each reads the sum of two others." if owners == 3 else ""
    said = [
        f"Owners read sums over all {owners} of them, the researcher the result only. If all "
        f"others put their parts together, yours is bare.{alone}"
    ]
    if text.kind != "training":
        return said
    try:
        learners = [build(learner) for learner in text.learners]
        price, exact = price_of(learners, owners), any(one.needs_exact_training for one in learners)
    except SoleraError:
        price, exact = None, True
    said += [] if price is None else [f"{NOISED}: {price}."]
    return said + ([STEERED, MANY_SUMS] if exact else [])


def _owner(job: ClosedJob, owner: OwnerState) -> tuple[str, str, str]:
    who = f" by {owner.person}" if owner.person else ""
    when = f", {clock(owner.decided)}" if owner.decided else ""
    why = f": {owner.reason}" if owner.reason else ""
    said = f"{owner.verdict}{who}{when}{why}" if owner.verdict else "nothing yet"
    now = ""
    if owner.awaited:
        since = job.since or (job.created if job.state == "waiting" else job.changed)
        now = f"is waited for since {clock(since)}"
        now += f"; last heard of {clock(owner.seen)}" if owner.seen else "; never heard of"
    return owner.name, said, now
