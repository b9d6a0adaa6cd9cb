"""Who takes part: federations, invites, clients, and leaving."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

from msgspec.structs import asdict
from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    or_,
    select,
    union,
    update,
)

from solera.serve.coordinator.news import CLIENTS
from solera.serve.coordinator.store.base import (
    Base,
    Conflict,
    Denied,
    NotFound,
    changed,
    count_rows,
    find_row,
    first_row,
    note,
    plain,
)
from solera.serve.coordinator.store.closed_leaving import forget_owner, posts_held
from solera.serve.coordinator.store.epoch_tables import drafts, parts
from solera.serve.coordinator.store.events import TOLD
from solera.serve.coordinator.store.tables import (
    OPEN,
    ClientRow,
    InviteRow,
    approvals,
    clients,
    deliveries,
    events,
    federations,
    invites,
    jobs,
)

_DAY = 24 * 3600.0
_MOST_CUTS = 10
LOG_CUT = "log cut"
"""The event of a client whose audit log has lost lines that it had."""


class Members(Base):
    """Federations, invites and clients."""

    # --- federations and invites ---

    def add_federation(self, name: str) -> None:
        """Open a federation; opening it again changes nothing."""
        with self._write() as connection:
            self._add(connection, federations, name=name, next_client=0, created=time.time())

    def federations(self) -> list[str]:
        """The names of all federations, in order."""
        return self._scalars(select(federations.c.name).order_by(federations.c.name))

    def add_invite(self, federation: str, name: str, token_hash: bytes, expires: float) -> None:
        """Let one client join under this name, once, until ``expires``."""
        invite = InviteRow(token_hash, federation, name, expires, None)
        with self._write() as connection:
            next_client(connection, federation)
            if not self._add(connection, invites, **asdict(invite)):
                raise Conflict("this token was given out already", hint="draw a new one")

    # --- clients ---

    def enrol(
        self,
        federation: str,
        name: str,
        sign_key: bytes,
        seal_key: bytes,
        tasks: Mapping[str, int],
        *,
        seal_signature: bytes = b"",
        token_hash: bytes | None = None,
    ) -> ClientRow:
        """Take in a client under the next free number; the same client again gets its number back.

        ``seal_signature`` is what other clients will check before they seal to it.

        With ``token_hash`` the invite is used up in the same transaction, so that neither a crash
        nor a lost answer costs the client its invite.
        """
        now = time.time()
        with self._write() as connection:
            number = next_client(connection, federation, lock=True)
            taken = or_(
                clients.c.sign_key == sign_key,
                and_(clients.c.federation == federation, clients.c.name == name),
            )
            own_key_first = select(clients).where(taken).order_by(clients.c.sign_key != sign_key)
            known = first_row(connection, ClientRow, own_key_first)
            if token_hash is not None and (known is None or known.sign_key != sign_key):
                invite = _use_invite(connection, token_hash, now)  # nobody else learns who is here
                if (invite.federation, invite.name) != (federation, name):
                    raise Denied(
                        f"the invite is for {invite.name!r} of {invite.federation!r}, "
                        f"not for {name!r} of {federation!r}"
                    )
            if known is not None:
                return _same_client(known, federation, name, sign_key, seal_key)
            client = ClientRow(
                federation, number, name, sign_key, seal_key, seal_signature, dict(tasks), now
            )
            if not self._add(connection, clients, **asdict(client)):
                raise Conflict(f"the key of client {name!r} is enrolled in another federation")
            changed(connection, CLIENTS)
            connection.execute(
                update(federations).filter_by(name=federation).values(next_client=number + 1)
            )
            note(
                connection,
                "joined",
                now,
                federation=federation,
                client=number,
                facts={"name": name, "key": sign_key.hex()},
            )
            return client

    def is_invited(self, token_hash: bytes, sign_key: bytes) -> bool:
        """Whether there was such an invite, or such a client: who else asks need not be written."""
        with self._read() as connection:
            queries = (
                select(invites.c.name).filter_by(token_hash=token_hash),
                select(clients.c.id).filter_by(sign_key=sign_key),
            )
            return any(connection.execute(query).first() for query in queries)

    def clients(self, federation: str) -> list[ClientRow]:
        """All clients of a federation in the order of their numbers."""
        chosen = select(clients).filter_by(federation=federation).order_by(clients.c.id)
        return self._rows(ClientRow, chosen)

    def client_by_key(self, sign_key: bytes) -> ClientRow | None:
        """Whose key this is; look at ``revoked`` before trusting it."""
        with self._read() as connection:
            owned = select(clients).filter_by(sign_key=sign_key)
            return first_row(connection, ClientRow, owned)

    def client_keys(self) -> set[bytes]:
        """The keys of all clients of all federations."""
        return set(self._scalars(select(clients.c.sign_key)))

    def heartbeat(
        self,
        federation: str,
        id: int,
        now: float,
        doing: str,
        head: tuple[int, str],
        version: str = "",
        policy: str = "",
    ) -> None:
        """The client says what it does, where its log ends, and, at times, version and policy.

        A log only grows: one that goes back, or ends otherwise at the same line, is noted,
        some times a day, and the head that it had stays, to convict it.
        """
        values: dict[str, object] = {"seen": now, "doing": plain(doing), "head": list(head)}
        said = {"version": version, "policy": policy}
        values |= {name: plain(value) for name, value in said.items() if value}
        with self._write() as connection:
            known = find_client(connection, federation, id).head
            if known is not None and head[0] <= known[0] and list(head) != known:
                del values["head"]
                facts = {"head": known, "said": list(head)}
                noted = select(events.c.facts).filter_by(
                    federation=federation, client=id, event=LOG_CUT
                )
                lately = connection.scalars(noted.where(events.c.time > now - _DAY)).all()
                if facts not in lately and len(lately) < _MOST_CUTS:
                    reason = f"its audit log ended at line {known[0]}, now at line {head[0]}"
                    note(connection, LOG_CUT, now, federation=federation, client=id,
                         reason=reason, facts=facts)  # fmt: skip
            connection.execute(update(clients).where(_is(federation, id)).values(values))

    def seen_all(self, heard: Mapping[tuple[str, int], float]) -> None:
        """These clients were heard of, at these times; those that have left are no error."""
        rows = [
            {"its_federation": federation, "its_id": id, "now": now}
            for (federation, id), now in sorted(heard.items())  # in one order at all workers
        ]
        with self._write() as connection:
            connection.execute(_SEEN, rows)

    def revoke(self, federation: str, id: int, reason: str) -> ClientRow:
        """Shut a client out at once; what it still owes counts as failed."""
        now = time.time()
        with self._write() as connection:
            _lock_jobs(connection, federation)
            connection.execute(
                update(clients)
                .where(_is(federation, id), clients.c.revoked.is_(None))
                .values(revoked=now, reason=plain(reason))
            )
            connection.execute(
                update(deliveries)
                .where(_delivered_to(federation, id), deliveries.c.status == OPEN)
                .values(status="failed", reason=plain(f"revoked: {reason}"), time=now)
            )
            note(connection, "revoked", now, federation=federation, client=id, reason=reason)
            changed(connection, CLIENTS)
            return find_client(connection, federation, id)

    # --- leaving ---

    def held(self, federation: str, client: int) -> dict[str, int]:
        """How many rows of each table are held for a client."""
        with self._read() as connection:
            key = connection.scalar(select(clients.c.sign_key).where(_is(federation, client)))
            held = {
                table.name: count_rows(connection, table, where)
                for table, where in _holdings(federation, client)
            }
            posted = 0 if key is None else posts_held(connection, federation, key.hex())
            return {**held, "closed_posts": posted} if posted else held

    def client_digests(self, federation: str, id: int) -> set[str]:
        """The blobs that hold what this client sent and what was meant for it alone."""
        delivered = _delivered_to(federation, id)
        columns = (deliveries.c.payload, deliveries.c.digest)
        chosen = union(*(select(column).where(delivered) for column in columns))
        return set(self._scalars(chosen)) - {None}

    def forget_client(self, federation: str, id: int) -> dict[str, int]:
        """Delete everything held for a client; rows per table.

        Of its deliveries the bare numbers stay, without reply and signature, so that a running job
        sees a client that failed. Its number is never given out again, and the log says why.
        """
        now = time.time()
        gone: dict[str, int] = {}
        with self._write() as connection:
            key = find_client(connection, federation, id).sign_key.hex()
            _lock_jobs(connection, federation)
            if self._sqlite:
                connection.exec_driver_sql("PRAGMA secure_delete=ON")
            for table, where in _holdings(federation, id):
                change = (
                    update(table)
                    .where(where)
                    .values(status="failed", payload=None, digest=None, size=0, signature=None,
                            reason="left the federation", time=now)
                    if table is deliveries
                    else delete(table).where(where)
                )  # fmt: skip
                gone[table.name] = connection.execute(change).rowcount
            if posted := forget_owner(connection, federation, key, now):
                gone["closed_posts"] = posted
            _forget_told(connection, federation, id)
            note(connection, "left", now, federation=federation, reason=f"client {id}")
            changed(connection, CLIENTS)
        self._empty_journal()
        return gone

    def _empty_journal(self) -> None:
        """SQLite keeps what was deleted in its journal until that is copied into the database."""
        if self._sqlite:
            with self._turn, closing(self._engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")


_SEEN = (
    update(clients)
    .where(clients.c.federation == bindparam("its_federation"), clients.c.id == bindparam("its_id"))
    .values(seen=bindparam("now"))
)


def find_client(connection: Connection, federation: str, id: int) -> ClientRow:
    """The client of that number."""
    chosen = select(clients).where(_is(federation, id))
    return find_row(connection, ClientRow, chosen, f"no client {id} in {federation!r}")


def _holdings(federation: str, client: int) -> list[tuple[Table, ColumnElement[bool]]]:
    """What belongs to a client: tables, those that refer to others first."""
    ours = select(jobs.c.id).filter_by(federation=federation)
    content = or_(
        deliveries.c.status == OPEN,
        deliveries.c.payload.is_not(None),
        deliveries.c.signature.is_not(None),
    )
    invited = exists().where(_is(federation, client), clients.c.name == invites.c.name)
    unsettled = select(drafts.c.hash).filter_by(federation=federation, complete=None)
    entered = exists().where(_is(federation, client), clients.c.name == parts.c.owner)
    return [
        (deliveries, and_(_delivered_to(federation, client), content)),
        (approvals, and_(approvals.c.job.in_(ours), approvals.c.client == client)),
        (events, and_(events.c.federation == federation, events.c.client == client)),
        (parts, and_(parts.c.draft.in_(unsettled), entered)),
        (invites, and_(invites.c.federation == federation, invited)),
        (clients, _is(federation, client)),
    ]


def _forget_told(connection: Connection, federation: str, client: int) -> None:
    """Delete what a client told of itself in rounds of jobs; what others told stays."""
    rounds = select(events.c.id, events.c.facts).filter_by(federation=federation, event=TOLD)
    for number, facts in connection.execute(rounds.where(events.c.client.is_(None))).all():
        if facts["loss"].pop(str(client), None) is not None:
            connection.execute(update(events).filter_by(id=number).values(facts=facts))


def _lock_jobs(connection: Connection, federation: str) -> None:
    """Whoever changes deliveries of many asks holds their jobs, so that nobody waits in a ring."""
    ours = select(jobs.c.id).filter_by(federation=federation).order_by(jobs.c.id)
    connection.execute(ours.with_for_update()).all()


def _delivered_to(federation: str, id: int) -> ColumnElement[bool]:
    ours = select(jobs.c.id).filter_by(federation=federation)
    return and_(deliveries.c.client == id, deliveries.c.job.in_(ours))


def _is(federation: str, id: int) -> ColumnElement[bool]:
    return and_(clients.c.federation == federation, clients.c.id == id)


def next_client(connection: Connection, federation: str, *, lock: bool = False) -> int:
    """The number of the client that joins next; an error if there is no such federation."""
    chosen = select(federations.c.next_client).filter_by(name=federation)
    number = connection.scalar(chosen.with_for_update() if lock else chosen)
    if number is None:
        raise NotFound(f"no federation {federation!r}")
    return int(number)


def _use_invite(connection: Connection, token_hash: bytes, now: float) -> InviteRow:
    unused = update(invites).filter_by(token_hash=token_hash, used=None)
    using = unused.where(invites.c.expires > now).values(used=now).returning(invites)
    used = first_row(connection, InviteRow, using)
    if used is not None:
        return used
    invite = first_row(connection, InviteRow, select(invites).filter_by(token_hash=token_hash))
    if invite is None:
        raise Denied("no such invite", hint="ask the coordinator for a token")
    why = "was used already" if invite.used is not None else "has expired"
    raise Denied(f"the invite of {invite.name!r} {why}", hint="ask the coordinator for a new token")


def _same_client(
    known: ClientRow, federation: str, name: str, sign_key: bytes, seal_key: bytes
) -> ClientRow:
    """The enrolled client, if it is the one that enrols again."""
    if (known.federation, known.name) != (federation, name):
        raise Conflict(f"the key of client {name!r} belongs to another client")
    if (known.sign_key, known.seal_key) != (sign_key, seal_key):
        raise Conflict(f"a client {name!r} of {federation!r} exists", hint="choose another name")
    if known.revoked is not None:
        raise Denied(f"client {name!r} of {federation!r} was revoked: {known.reason}")
    return known
