"""Jobs: their state machine, approvals and checkpoints."""

from __future__ import annotations

import time
from typing import Any, get_args

from sqlalchemy import Connection, and_, delete, false, insert, select, true, update

from solera.core.errors import UsageError
from solera.serve.coordinator.store.base import (
    Base,
    Conflict,
    Denied,
    NotFound,
    note,
    plain,
    row_of,
)
from solera.serve.coordinator.store.blobs import check_digest
from solera.serve.coordinator.store.members import find_client
from solera.serve.coordinator.store.tables import (
    NEXT,
    OPEN,
    Approval,
    Job,
    Kind,
    State,
    approvals,
    asks,
    checkpoints,
    clients,
    deliveries,
    federations,
    jobs,
)


class Jobs(Base):
    """Jobs, approvals and checkpoints."""

    def add_job(
        self,
        id: str,
        federation: str,
        kind: Kind,
        spec: str,
        hash: str,
        seed: int,
        owner: str,
        deadline: float | None,
        now: float,
    ) -> Job:
        """A new job in state ``created``, or the stored one if it is the same."""
        if kind not in get_args(Kind):
            raise UsageError.of("add_job", "kind", kind, f"must be one of {get_args(Kind)}")
        check_digest(spec)
        fixed: dict[str, Any] = {"federation": federation, "kind": kind, "spec": spec, "hash": hash}
        fixed |= {"seed": seed, "owner": owner, "deadline": deadline}
        with self._write() as connection:
            known = select(federations.c.name).where(federations.c.name == federation)
            if connection.execute(known).first() is None:
                raise NotFound(f"no federation {federation!r}")
            start = {"state": "created", "reason": "", "created": now, "changed": now}
            self._add(connection, jobs, id=id, **fixed, **start)
            stored = find_job(connection, id)
            for name, value in fixed.items():
                if getattr(stored, name) != value:
                    raise Conflict(f"job {id!r} exists with another {name}")
            return stored

    def job(self, id: str) -> Job:
        """One job."""
        with self._read() as connection:
            return find_job(connection, id)

    def jobs(self, federation: str | None = None, *, ended: bool = True) -> list[Job]:
        """Jobs of one federation or of all, oldest first; without ``ended`` those that go on."""
        ours = true() if federation is None else jobs.c.federation == federation
        if not ended:
            ours = and_(ours, jobs.c.state.in_([state for state, next in NEXT.items() if next]))
        chosen = select(jobs).where(ours).order_by(jobs.c.created, jobs.c.id)
        with self._read() as connection:
            return [row_of(Job, row) for row in connection.execute(chosen)]

    def set_job_state(self, id: str, new_state: State, reason: str, now: float) -> Job:
        """Move a job on. Moving it where it is changes nothing; what is final stays."""
        sources = [state for state, targets in NEXT.items() if new_state in targets]
        with self._write() as connection:
            changed = connection.execute(
                update(jobs)
                .where(jobs.c.id == id, jobs.c.state.in_(sources))
                .values(state=new_state, reason=plain(reason), changed=now)
            )
            job = find_job(connection, id)
            if not changed.rowcount:
                if job.state != new_state:
                    raise Conflict(f"job {id!r} is {job.state} and cannot become {new_state}")
                return job
            note(
                connection,
                new_state,
                now,
                federation=job.federation,
                job=id,
                reason=reason,
                facts={"kind": job.kind, "hash": job.hash, "owner": job.owner},
            )
            if new_state == "running":
                present = _present(connection, job.federation)
                connection.execute(update(jobs).where(jobs.c.id == id).values(clients=present))
                return find_job(connection, id)
            return job

    # --- approvals ---

    def approve(self, job: str, client: int, person: str, hash: str) -> Approval:
        """A person at a client approves exactly this job; the first approval stands."""
        with self._write() as connection:
            stored = find_job(connection, job)
            if hash != stored.hash:
                raise Denied(
                    f"job {job!r} is not the one that was approved: its hash is {stored.hash}",
                    hint="look at the job again and approve that hash",
                )
            found = find_client(connection, stored.federation, client)
            if found.revoked is not None:
                raise Denied(f"client {client} was revoked: {found.reason}")
            values = {"person": plain(person), "hash": hash, "time": time.time()}
            self._add(connection, approvals, job=job, client=client, **values)
            this = and_(approvals.c.job == job, approvals.c.client == client)
            return row_of(Approval, connection.execute(select(approvals).where(this)).one())

    def approvals(self, job: str) -> list[Approval]:
        """Who approved a job, by client."""
        chosen = select(approvals).where(approvals.c.job == job).order_by(approvals.c.client)
        with self._read() as connection:
            return [row_of(Approval, row) for row in connection.execute(chosen)]

    # --- checkpoints ---

    def save_checkpoint(self, job: str, first: int, seq: int, digest: str, now: float) -> None:
        """A replay of the loop that began with ask ``first`` goes on at ask ``seq``.

        The blobs of the asks between them are let go.
        """
        check_digest(digest)
        with self._write() as connection:
            find_job(connection, job, lock=True)
            this = and_(checkpoints.c.job == job, checkpoints.c.first == first)
            last = connection.execute(select(checkpoints.c.seq).where(this)).scalar()
            if last is not None and last > seq:
                raise Conflict(f"job {job!r} has a checkpoint at ask {last}, later than {seq}")
            connection.execute(delete(checkpoints).where(this))
            row = {"job": job, "first": first, "seq": seq, "digest": digest, "time": now}
            connection.execute(insert(checkpoints).values(row))
            _prune(connection, job, range(first, seq), now)

    def checkpoint(self, job: str, first: int) -> tuple[int, str] | None:
        """Where a replay of that loop goes on, and the digest of what the driver knew there."""
        this = and_(checkpoints.c.job == job, checkpoints.c.first == first)
        chosen = select(checkpoints.c.seq, checkpoints.c.digest).where(this)
        with self._read() as connection:
            row = connection.execute(chosen).first()
            return None if row is None else (row.seq, row.digest)

    def prune(self, job: str) -> None:
        """Let go of all blobs of an ended job but its description and last checkpoint."""
        with self._write() as connection:
            state = find_job(connection, job, lock=True).state
            if NEXT[state]:
                raise Conflict(f"job {job!r} is {state}: a replay may need its replies")
            _prune(connection, job, range(2**62), time.time())


def _present(connection: Connection, federation: str) -> list[int]:
    ours = select(clients.c.id).where(clients.c.federation == federation)
    here = ours.where(clients.c.revoked.is_(None)).order_by(clients.c.id)
    return list(connection.execute(here).scalars())


def find_job(connection: Connection, id: str, *, lock: bool = False) -> Job:
    """The job of that name; with ``lock`` no other transaction changes it meanwhile."""
    chosen = select(jobs).where(jobs.c.id == id)
    row = connection.execute(chosen.with_for_update() if lock else chosen).first()
    if row is None:
        raise NotFound(f"no job {id!r}")
    return row_of(Job, row)


def _prune(connection: Connection, job: str, sequence: range, now: float) -> None:
    """Forget the digests of some asks; whoever still owes a reply to them is let off."""
    for table in (asks, deliveries):
        these = table.c.seq.between(sequence.start, sequence.stop - 1)
        due = and_(table.c.job == job, these, table.c.pruned == false())
        if table is deliveries:
            given_up = {"status": "dropped", "reason": "no longer needed", "time": now}
            connection.execute(update(table).where(due, table.c.status == OPEN).values(given_up))
            connection.execute(update(table).where(due).values(pruned=True, digest=None))
        else:
            connection.execute(update(table).where(due).values(pruned=True))
