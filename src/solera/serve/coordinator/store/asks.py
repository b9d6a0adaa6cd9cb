"""What clients are asked: stored once, however often a driver repeats it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    func,
    insert,
    or_,
    select,
)

from solera.core.errors import UsageError
from solera.serve.coordinator.store.base import (
    Base,
    Conflict,
    NotFound,
    find_row,
    first_row,
    note,
)
from solera.serve.coordinator.store.jobs import find_job
from solera.serve.coordinator.store.members import next_client
from solera.serve.coordinator.store.tables import (
    OPEN,
    AskRow,
    asks,
    clients,
    deliveries,
    jobs,
    models,
)
from solera.serve.wire import Job, NewAsk, PendingAsk, Progress

PAYLOAD = func.coalesce(deliveries.c.payload, asks.c.payload)
"""The payload of a delivery: the client's own, or that of all."""
_OF_THE_STORE = ("deadline", "created", "pruned")
"""Of a stored ask; the driver does not say them, or not the same when it is replayed."""


class Asks(Base):
    """Asks and their deliveries."""

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
                .where(of_ask(job, row.seq))
                .group_by(deliveries.c.status)
            )
            states: dict[str, int] = dict(connection.execute(counted).all())
        return Progress(row.seq + 1, row.task, row.round, states)

    def may_read(self, federation: str, client: int, digest: str) -> bool:
        """Whether a blob is part of what a client is asked, or a model of its federation."""
        named = [column == digest for column in (PAYLOAD, asks.c.prepare, jobs.c.spec)]
        mine = deliveries.c.client == client
        open_asks = _open_to(federation, mine, asks.c.job).where(or_(*named))
        published = (
            select(models.c.job)
            .join(jobs, jobs.c.id == models.c.job)
            .where(jobs.c.federation == federation, models.c.digest == digest)
        )
        with self._read() as connection:
            return any(connection.execute(c.limit(1)).first() for c in (open_asks, published))


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
            of_ask(stored.job, stored.seq)
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


def of_ask(job: str, seq: int) -> ColumnElement[bool]:
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
    own |= {"payload": PAYLOAD, "sequence": asks.c.seq}
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
