"""Jobs: their state machine and checkpoints."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import asdict, replace
from sqlalchemy import Connection, bindparam, select, update

from solera.serve.coordinator.store.base import Base, Conflict, NotFound, first_row, note, plain
from solera.serve.coordinator.store.members import next_client
from solera.serve.coordinator.store.tables import (
    NEXT,
    OPEN,
    asks,
    checkpoints,
    clients,
    deliveries,
    jobs,
)
from solera.serve.description import job_hash
from solera.serve.wire import (
    DEFAULT_SECONDS,
    Checkpoint,
    Job,
    NewCheckpoint,
    NewJob,
    StartedJob,
    State,
)

_FIXED = ("federation", "kind", "spec", "seed", "owner")
"""What a job that is started again must have in common with the stored one."""


class Jobs(Base):
    """Jobs and checkpoints."""

    def add_job(self, federation: str, new: NewJob, now: float) -> StartedJob:
        """A new job in state ``created``, or the stored one if it is the same."""
        seconds = DEFAULT_SECONDS if new.seconds is None else new.seconds
        endless = new.kind == "standing" and new.seconds is None
        deadline = None if endless else now + seconds
        job = Job.of(
            new,
            federation=federation,
            hash=job_hash(federation, new.id, new.spec),
            deadline=deadline,
            state="created",
            reason="",
            created=now,
            changed=now,
            clients=None,
        )
        with self._write() as connection:
            next_client(connection, federation)
            is_new = self._add(connection, jobs, **asdict(job))
            stored = find_job(connection, new.id)
            for name in _FIXED:
                if getattr(stored, name) != getattr(job, name):
                    raise Conflict(f"job {new.id!r} exists with another {name}")
            return StartedJob.of(stored, resumed=not is_new)

    def job(self, id: str) -> Job:
        """One job."""
        with self._read() as connection:
            return find_job(connection, id)

    def jobs(self, federation: str | None = None, *, ended: bool = True) -> list[Job]:
        """Jobs of one federation or of all, oldest first; without ``ended`` those that go on."""
        chosen = select(jobs).order_by(jobs.c.created, jobs.c.id)
        if federation is not None:
            chosen = chosen.filter_by(federation=federation)
        if not ended:
            chosen = chosen.where(jobs.c.state.in_([state for state, next in NEXT.items() if next]))
        return self._rows(Job, chosen)

    def set_job_state(self, id: str, new_state: State, reason: str, now: float) -> Job:
        """Move a job on. Moving it where it is changes nothing; what is final stays."""
        with self._write() as connection:
            job = find_job(connection, id, lock=True)
            if job.state == new_state:
                return job
            if new_state not in NEXT[job.state]:
                raise Conflict(f"job {id!r} is {job.state} and cannot become {new_state}")
            changes: dict[str, Any] = {"state": new_state, "reason": plain(reason), "changed": now}
            if new_state == "running":
                changes["clients"] = _present(connection, job.federation)
            connection.execute(update(jobs).filter_by(id=id).values(changes))
            facts = {"kind": job.kind, "hash": job.hash, "owner": job.owner}
            note(connection, new_state, now, of=job, reason=reason, facts=facts)
            return replace(job, **changes)

    # --- checkpoints ---

    def save_checkpoint(self, job: str, new: NewCheckpoint, now: float) -> None:
        """A replay of the loop that began with ask ``first`` goes on at ask ``sequence``.

        The blobs of the asks between them are let go.
        """
        with self._write() as connection:
            find_job(connection, job, lock=True)
            kept = select(checkpoints.c.seq).filter_by(job=job, first=new.first)
            last = connection.scalar(kept)
            if last is not None and last > new.sequence:
                raise Conflict(
                    f"job {job!r} has a checkpoint at ask {last}, later than {new.sequence}"
                )
            row = {"job": job, "first": new.first, "seq": new.sequence, "digest": new.digest}
            self._put(connection, checkpoints, **row, time=now)
            _prune(connection, job, range(new.first, new.sequence), now)

    def checkpoint(self, job: str, first: int) -> Checkpoint:
        """Where a replay of that loop goes on, and the digest of what the driver knew there."""
        chosen = select(checkpoints.c.seq, checkpoints.c.digest).filter_by(job=job, first=first)
        with self._read() as connection:
            row = connection.execute(chosen).first()
            return Checkpoint() if row is None else Checkpoint(*row)

    def prune(self, job: str) -> None:
        """Let go of all blobs of an ended job but its description and last checkpoint."""
        with self._write() as connection:
            state = find_job(connection, job, lock=True).state
            if NEXT[state]:
                raise Conflict(f"job {job!r} is {state}: a replay may need its replies")
            _prune(connection, job, range(2**62), time.time())


def _present(connection: Connection, federation: str) -> list[int]:
    present = select(clients.c.id).filter_by(federation=federation, revoked=None)
    return list(connection.scalars(present.order_by(clients.c.id)))


_JOB = select(jobs).where(jobs.c.id == bindparam("job"))
_LOCKED_JOB = _JOB.with_for_update()
"""Put together once: almost every request looks for its job."""


def find_job(connection: Connection, id: str, *, lock: bool = False) -> Job:
    """The job of that name; with ``lock`` no other transaction changes it meanwhile."""
    job = first_row(connection, Job, _LOCKED_JOB if lock else _JOB, {"job": id})
    if job is None:
        raise no_job(id)
    return job


def no_job(id: str) -> NotFound:
    """Also for a job of another federation: whether there is one is nobody's business."""
    return NotFound(f"no job {id!r}")


def _prune(connection: Connection, job: str, sequence: range, now: float) -> None:
    """Forget the digests of some asks; whoever still owes a reply to them is let off."""
    first, last = sequence.start, sequence.stop - 1
    owed = update(deliveries).filter_by(job=job, status=OPEN)
    given_up = owed.values(status="dropped", reason="no longer needed", time=now)
    connection.execute(given_up.where(deliveries.c.seq.between(first, last)))
    for table, digests in ((asks, {}), (deliveries, {"digest": None})):
        kept = update(table).filter_by(job=job, pruned=False).values(pruned=True, **digests)
        connection.execute(kept.where(table.c.seq.between(first, last)))
