"""Asks and the replies to them: stored once, in whatever order and however often they arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import asdict
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Update,
    and_,
    bindparam,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from solera.core.errors import SoleraError, UsageError
from solera.core.replies import FailureKind
from solera.serve.coordinator.store.base import (
    Base,
    Conflict,
    Denied,
    NotFound,
    count_rows,
    find_row,
    first_row,
    note,
    plain,
)
from solera.serve.coordinator.store.jobs import find_job, no_job
from solera.serve.coordinator.store.members import find_client, next_client
from solera.serve.coordinator.store.tables import (
    OPEN,
    REPLY_COLUMNS,
    AskRow,
    ReplyRow,
    asks,
    clients,
    deliveries,
    jobs,
    models,
)
from solera.serve.identity import ask_digest
from solera.serve.wire import Answer, Job, NewAsk, NewReply, PendingAsk, Progress

_PAYLOAD = func.coalesce(deliveries.c.payload, asks.c.payload)
_OF_THE_STORE = ("deadline", "created", "pruned")
"""Of a stored ask; the driver does not say them, or not the same when it is replayed."""


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


class Asks(Base):
    """Asks, their deliveries and replies."""

    def add_ask(self, job: str, seq: int, new: NewAsk, now: float) -> AskRow:
        """Store an ask and one delivery per client; a replayed driver gets the stored one back.

        A client that was revoked or has left counts as failed at once.
        """
        ids = sorted(set(new.clients))
        own = {} if isinstance(new.payload, str) else _own_payloads(new.payload, ids)
        ask = AskRow.of(
            new,
            payload=None if own else new.payload,
            job=job,
            seq=seq,
            deadline=None if new.seconds is None else now + new.seconds,
            clients=ids,
            created=now,
        )
        with self._write() as connection:
            state = find_job(connection, job, lock=True)
            stored = first_row(connection, AskRow, _ask(job, seq))
            if stored is not None:
                _check_same(connection, stored, ask, own)
                return stored
            insert_ask(connection, state, ask, own)
            return ask

    def ask(self, job: str, seq: int) -> AskRow:
        """One ask."""
        with self._read() as connection:
            return find_row(connection, AskRow, _ask(job, seq), f"no ask {seq} in job {job!r}")

    def asked(self, job: str, seq: int, federation: str, client: int) -> Asked:
        """What a client of a federation was asked, with its own payload, answered or not."""
        whose = {"job": job, "seq": seq, "federation": federation, "client": client}
        with self._read() as connection:
            row = connection.execute(_ASKED, whose).first()
            if row is None:
                _check_federation(connection, job, federation)
                raise Denied(f"client {client} was not asked {seq} of job {job!r}")
            return Asked(*row)

    def pending(self, federation: str, client: int, limit: int) -> list[PendingAsk]:
        """What a client has to answer in running jobs, oldest first, with its own payload."""
        return self.pending_of(federation, {client}, limit)[client]

    def pending_of(
        self, federation: str, clients: Set[int], limit: int
    ) -> dict[int, list[PendingAsk]]:
        """The same for several clients, up to ``limit`` asks of each."""
        whose = {"federation": federation, "clients": sorted(clients), "limit": limit}
        pending: dict[int, list[PendingAsk]] = {client: [] for client in clients}
        with self._read() as connection:
            for row in connection.execute(_PENDING, whose).mappings():
                ask = {name: row[name] for name in _OF_PENDING}
                pending[row["client"]].append(PendingAsk(**ask))
        return pending

    def progress(self, job: str) -> Progress:
        """How far a job is."""
        chosen = select(asks).filter_by(job=job).order_by(asks.c.seq.desc()).limit(1)
        with self._read() as connection:
            row = connection.execute(chosen).first()
            if row is None:
                return Progress(0)
            counted = (
                select(deliveries.c.status, func.count())
                .where(_of_ask(job, row.seq))
                .group_by(deliveries.c.status)
            )
            states: dict[str, int] = dict(connection.execute(counted).all())
        return Progress(row.seq + 1, row.task, row.round, states)

    def may_read(self, federation: str, client: int, digest: str) -> bool:
        """Whether a blob is part of what a client is asked, or a model of its federation."""
        named = [column == digest for column in (_PAYLOAD, asks.c.prepare, jobs.c.spec)]
        mine = deliveries.c.client == client
        open_asks = _open_to(federation, mine, asks.c.job).where(or_(*named))
        published = (
            select(models.c.job)
            .join(jobs, jobs.c.id == models.c.job)
            .where(jobs.c.federation == federation, models.c.digest == digest)
        )
        with self._read() as connection:
            return any(connection.execute(c.limit(1)).first() for c in (open_asks, published))

    # --- replies ---

    def add_reply(
        self, job: str, seq: int, federation: str, client: int, new: NewReply, now: float
    ) -> bool:
        """Store a reply of a client of a federation, which must be the job's own.

        True if it is new, False if the same one was stored before.
        """
        (outcome,) = self.add_replies([(job, seq, federation, client, new, now)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def add_replies(self, replies: Sequence[Delivered]) -> list[bool | Exception]:
        """The same for several replies in one transaction; of each what it would return or raise.

        A reply that the database itself refuses takes the others with it: then each goes alone.
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
            .where(_of_ask(job, seq), deliveries.c.status != OPEN)
            .where(deliveries.c.client.between(first, last))
            .order_by(deliveries.c.client)
        )
        return self._rows(ReplyRow, chosen)

    def answered(self, job: str, seq: int, first: int = 0, last: int = 2**62) -> int:
        """How many of these clients have replied or failed."""
        with self._read() as connection:
            closed = (deliveries.c.status != OPEN, deliveries.c.client.between(first, last))
            return count_rows(connection, deliveries, _of_ask(job, seq), *closed)

    def fail_open(
        self, job: str, seq: int, status: FailureKind, reason: str, now: float
    ) -> list[int]:
        """Stop waiting, for instance because the deadline has passed; the clients given up."""
        with self._write() as connection:
            stored_job = find_job(connection, job, lock=True)
            failed = connection.scalars(
                update(deliveries)
                .where(_of_ask(job, seq), deliveries.c.status == OPEN)
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
    this = and_(_of_ask(job, seq), deliveries.c.client == client)
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


def insert_ask(
    connection: Connection, stored_job: Job, ask: AskRow, own: Mapping[int, str]
) -> None:
    """Store a new ask of a running job and its deliveries; ``own`` payloads by client, if any."""
    if stored_job.state != "running":
        raise Conflict(f"job {stored_job.id!r} is {stored_job.state}: it cannot ask")
    connection.execute(insert(asks).values(asdict(ask)))
    rows = _new_deliveries(connection, stored_job.federation, ask, own)
    if rows:
        connection.execute(insert(deliveries), rows)
    facts = {"seq": ask.seq, "task": ask.task, "version": ask.version, "clients": ask.clients}
    carried = {"payload": ask.payload or sorted(own.values()), "prepare": ask.prepare}
    note(connection, "asked", ask.created, of=stored_job, facts=facts | carried)


def _own_payloads(payloads: Mapping[int, str], ids: list[int]) -> dict[int, str]:
    """The payload of each client."""
    missing = [id for id in ids if id not in payloads]
    if missing:
        raise UsageError(f"the ask has no payload for client {missing[0]}")
    return {id: payloads[id] for id in ids}


def _ask(job: str, seq: int) -> Select[Any]:
    return select(asks).filter_by(job=job, seq=seq)


def _check_same(
    connection: Connection, stored: AskRow, asked: AskRow, own: Mapping[int, str]
) -> None:
    """A driver that does not repeat itself bit by bit cannot be replayed."""
    names = [name for name in AskRow.__struct_fields__ if name not in _OF_THE_STORE]
    differs = [name for name in names if getattr(stored, name) != getattr(asked, name)]
    if not differs and own:
        chosen = select(deliveries.c.client, deliveries.c.payload).where(
            _of_ask(stored.job, stored.seq)
        )
        kept = dict(connection.execute(chosen).all())
        if any(digest is not None and own[client] != digest for client, digest in kept.items()):
            differs = ["payload"]
    if differs:
        raise Conflict(
            f"the replayed driver asked something else: ask {stored.seq} of job {stored.job!r} "
            f"differs in {', '.join(differs)}",
            hint="a driver must be deterministic: same code, same seed, same data",
        )


def _new_deliveries(
    connection: Connection, federation: str, ask: AskRow, own: Mapping[int, str]
) -> list[dict[str, Any]]:
    count = next_client(connection, federation)
    if ask.clients and not 0 <= ask.clients[0] <= ask.clients[-1] < count:
        wrong = ask.clients[0] if ask.clients[0] < 0 else ask.clients[-1]
        raise NotFound(f"no client {wrong} in {federation!r}; ids are 0 to {count - 1}")
    # Locked, so that revoking a client and asking it happen one after the other.
    present = select(clients.c.id, clients.c.revoked).filter_by(federation=federation)
    revoked = dict(connection.execute(present.with_for_update(read=True)).all())
    rows = []
    for id in ask.clients:
        why = "left the federation" if id not in revoked else "revoked" if revoked[id] else ""
        row = {"job": ask.job, "seq": ask.seq, "client": id, "payload": own.get(id)}
        row |= {"status": "failed" if why else OPEN, "size": 0, "reason": why, "pruned": False}
        rows.append(row | {"time": ask.created if why else None})
    return rows


def _check_federation(connection: Connection, job: str, federation: str) -> Job:
    """The job, which is one of this federation."""
    stored = find_job(connection, job)
    if stored.federation != federation:
        raise no_job(job)
    return stored


def _of_ask(job: str, seq: int) -> ColumnElement[bool]:
    return and_(deliveries.c.job == job, deliveries.c.seq == seq)


def _open_to(federation: Any, mine: ColumnElement[bool], *columns: Any) -> Select[Any]:
    """Asks of running jobs that have yet to be answered, among the deliveries that are ``mine``."""
    return (
        select(*columns)
        .join(deliveries, and_(deliveries.c.job == asks.c.job, deliveries.c.seq == asks.c.seq))
        .join(jobs, jobs.c.id == asks.c.job)
        .where(mine, deliveries.c.status == OPEN)
        .where(jobs.c.federation == federation, jobs.c.state == "running")
    )


def _pending() -> Select[Any]:
    """Asks as agents see them, in one query, which every agent makes again and again.

    A query that is put together once costs a third of one that is put together each time.
    """
    own = {column.name: column for column in (*jobs.c, *asks.c)}
    own |= {"payload": _PAYLOAD, "sequence": asks.c.seq}
    columns = [own[name].label(name) for name in _OF_PENDING]
    oldest = (asks.c.created, asks.c.job, asks.c.seq)
    place = func.row_number().over(partition_by=deliveries.c.client, order_by=oldest)
    mine = deliveries.c.client.in_(bindparam("clients", expanding=True))
    own_place = (deliveries.c.client.label("client"), place.label("place"))
    chosen = _open_to(bindparam("federation"), mine, *own_place, *columns)
    numbered = chosen.subquery()
    first = select(numbered).where(numbered.c.place <= bindparam("limit"))
    return first.order_by(numbered.c.client, numbered.c.place)


_OF_PENDING = [name for name in PendingAsk.__struct_fields__ if name != "frame"]
_PENDING = _pending()


def _asked() -> Select[Any]:
    """What :meth:`Asks.asked` looks for; put together once, as every reply needs it."""
    columns = {column.name: column for column in (*jobs.c, *asks.c)}
    columns |= {"payload": _PAYLOAD, "status": deliveries.c.status}
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
