"""A person decides about a job: logged, written down, and told to whom the policy wants told."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from solera.serve.agent import home
from solera.serve.agent.approvals import Approvals, Approver, Decision, Verdict
from solera.serve.agent.notify import notify
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.audit import AuditLog
from solera.serve.identity import Identity


def decide(
    folder: Path,
    policy: OwnerPolicy,
    person: Approver,
    job: str,
    verdict: Verdict,
    *,
    until: datetime | None = None,
    reason: str = "",
) -> Decision:
    """What this person decides about the job of this hash, at the client of a folder."""
    approvals = Approvals(folder / home.APPROVALS, policy.approval.approvers)
    approvals.check(job, person, until=until, reason=reason)
    facts = {"job": job, "person": person.name, "key": person.public}
    if until is not None:
        facts["until"] = until.astimezone().isoformat(timespec="minutes")
    if reason:
        facts["reason"] = reason
    AuditLog(folder / home.LOG, Identity.load(folder)).append(verdict, **facts)
    now = datetime.now().astimezone()
    decision = approvals.decide(job, verdict, person, now, until=until, reason=reason)
    at = decision.at.isoformat(timespec="seconds")
    place = home.find_place(folder)
    here = {} if place is None else {"federation": place.federation, "client": place.name}
    facts = {"hash": job, "person": person.name, "at": at, "reason": reason}
    told = notify(policy.notify, verdict, **here, **facts)
    if told is not None:
        told.join()
    return decision
