"""Replies to asks: stored once, in whatever order and however often they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import asdict
from sqlalchemy import Connection, Select, Update, and_, bindparam, exists, select, update

from solera.core.errors import SoleraError, UsageError
from solera.core.replies import FailureKind
from solera.serve.coordinator.store.asks import PAYLOAD, of_ask
from solera.serve.coordinator.store.base import Base, Conflict, Denied, count_rows, note, plain
from solera.serve.coordinator.store.jobs import find_job, no_job
from solera.serve.coordinator.store.members import find_client
from solera.serve.coordinator.store.tables import (
    OPEN,
    REPLY_COLUMNS,
    ReplyRow,
    asks,
    clients,
    deliveries,
    jobs,
)
from solera.serve.identity import ask_digest
from solera.serve.wire import Answer, Job, NewReply

Delivered: TypeAlias = tuple[str, int, str, int, NewReply, float]
"""A reply on its way into the store: job, number of the ask, federation, client, reply, time."""


class Asked(NamedTuple):
    """What a client was asked, as far as its reply names it, and what has become of that."""

    task: str
    version: int
    payload: str
    prepare: str | None
    round: int
    seed: int
    status: str
    state: str

    @property
    def digest(self) -> str:
        """By which a reply names what was asked."""
        return ask_digest(*self[:-2])

    @property
    def is_open(self) -> bool:
        """Whether a reply is waited for."""
        return self.status == OPEN and self.state == "running"


class Replies(Base):
    """Replies and failures."""

    def asked(self, job: str, seq: int, federation: str, client: int) -> Asked:
        """What a client of a federation was asked, with its own payload, answered or not."""
        whose = {"job": job, "seq": seq, "federation": federation, "client": client}
        with self._read() as connection:
            row = connection.execute(_ASKED, whose).first()
            if row is None:
                _check_federation(connection, job, federation)
                raise Denied(f"client {client} was not asked {seq} of job {job!r}")
            return Asked(*row)

    def add_replies(self, replies: Sequence[Delivered]) -> list[bool | Exception]:
        """Store replies of clients of a federation, the job's own, in one transaction.

        Of each: True if it is new, False if the same one was stored before, or the error that it
        is. A reply that the database itself refuses takes the others with it: then each goes alone.
        """
        try:
            with self._write() as connection:
                return [_outcome(connection, reply) for reply in replies]
        except Exception as error:
            if len(replies) == 1:
                return [error]
            return [outcome for reply in replies for outcome in self.add_replies([reply])]

    def replies(self, job: str, seq: int, first: int = 0, last: int = 2**62) -> list[ReplyRow]:
        """Replies and failures so far of clients ``first`` to ``last``, in their order."""
        chosen = (
            select(*REPLY_COLUMNS)
            .where(of_ask(job, seq), deliveries.c.status != OPEN)
            .where(deliveries.c.client.between(first, last))
            .order_by(deliveries.c.client)
        )
        return self._rows(ReplyRow, chosen)

    def answered(self, job: str, seq: int, first: int = 0, last: int = 2**62) -> int:
        """How many of these clients have replied or failed."""
        with self._read() as connection:
            closed = (deliveries.c.status != OPEN, deliveries.c.client.between(first, last))
            return count_rows(connection, deliveries, of_ask(job, seq), *closed)

    def fail_open(
        self, job: str, seq: int, status: FailureKind, reason: str, now: float
    ) -> list[int]:
        """Stop waiting, for instance because the deadline has passed; the clients given up."""
        with self._write() as connection:
            stored_job = find_job(connection, job, lock=True)
            failed = connection.scalars(
                update(deliveries)
                .where(of_ask(job, seq), deliveries.c.status == OPEN)
                .values(status=status, reason=plain(reason), time=now)
                .returning(deliveries.c.client)
            )
            given_up = sorted(failed)
            about: dict[str, Any] = {"of": stored_job, "reason": reason, "facts": {"seq": seq}}
            for client in given_up:
                note(connection, status, now, client=client, **about)
            return given_up


def _outcome(connection: Connection, reply: Delivered) -> bool | Exception:
    """What comes of storing a reply; where it is an error of the sender's, nothing is changed."""
    try:
        return _add_reply(connection, *reply)
    except SoleraError as error:
        return error


def _add_reply(
    connection: Connection,
    job: str,
    seq: int,
    federation: str,
    client: int,
    new: NewReply,
    now: float,
) -> bool:
    if (new.digest is not None) != (new.status == "ok"):
        raise UsageError.of("reply", "digest", new.digest, "must be given exactly with 'ok'")
    answer = asdict(Answer.of(new, reason=plain(new.reason)))
    stored = answer | {"signature": bytes.fromhex(new.signature), "time": now}
    whose = {"its_job": job, "its_seq": seq, "its_federation": federation, "its_client": client}
    if connection.execute(_REPLY, stored | whose).rowcount:
        note(
            connection,
            "replied" if new.status == "ok" else new.status,
            now,
            federation=federation,
            job=job,
            client=client,
            reason=new.reason,
            facts={"seq": seq, "digest": new.digest, "bytes": new.size},
        )
        return True
    stored_job = _check_federation(connection, job, federation)
    sender = find_client(connection, federation, client)
    if sender.revoked is not None:
        raise Denied(f"client {client} was revoked: {sender.reason}")
    this = and_(of_ask(job, seq), deliveries.c.client == client)
    row = connection.execute(select(deliveries).where(this)).first()
    if row is None:
        raise Denied(f"client {client} was not asked {seq} of job {job!r}")
    if row.status == OPEN:
        raise Conflict(f"job {job!r} is {stored_job.state}: it takes no replies")
    if row.signature is None:
        raise Conflict(f"ask {seq} of job {job!r} no longer waits for it: {row.reason}")
    same = [name for name in answer if not (row.pruned and name == "digest")]
    if any(getattr(row, name) != answer[name] for name in same):
        raise Conflict(f"client {client} gave another reply to ask {seq} of job {job!r}")
    return False


def _check_federation(connection: Connection, job: str, federation: str) -> Job:
    """The job, which is one of this federation."""
    stored = find_job(connection, job)
    if stored.federation != federation:
        raise no_job(job)
    return stored


def _asked() -> Select[Any]:
    """What :meth:`Asks.asked` looks for; put together once, as every reply needs it."""
    columns = {column.name: column for column in (*jobs.c, *asks.c)}
    columns |= {"payload": PAYLOAD, "status": deliveries.c.status}
    return (
        select(*(columns[name] for name in Asked._fields))
        .join(deliveries, and_(deliveries.c.job == asks.c.job, deliveries.c.seq == asks.c.seq))
        .join(jobs, jobs.c.id == asks.c.job)
        .where(deliveries.c.job == bindparam("job"), deliveries.c.seq == bindparam("seq"))
        .where(deliveries.c.client == bindparam("client"))
        .where(jobs.c.federation == bindparam("federation"))
    )


def _reply() -> Update:
    """The reply of a client that takes part, to an ask of its own that waits for it."""
    federation: Any = bindparam("its_federation")
    client: Any = bindparam("its_client")
    running = exists().where(
        jobs.c.id == deliveries.c.job, jobs.c.federation == federation, jobs.c.state == "running"
    )
    taking_part = exists().where(
        clients.c.federation == federation, clients.c.id == client, clients.c.revoked.is_(None)
    )
    values = (*Answer.__struct_fields__, "signature", "time")
    return (
        update(deliveries)
        .where(deliveries.c.job == bindparam("its_job"), deliveries.c.seq == bindparam("its_seq"))
        .where(deliveries.c.client == client, deliveries.c.status == OPEN, running, taking_part)
        .values({name: bindparam(name) for name in values})
    )


_ASKED, _REPLY = _asked(), _reply()
