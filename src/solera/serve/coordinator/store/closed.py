"""Closed jobs: texts and what owners say of them, posts of every step, sealed results.

The coordinator is trusted with nothing here: owners check all that they read. It keeps order: one
post of each owner for a step, for good.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict, replace
from sqlalchemy import Connection, func, select, update

from solera.serve.closed import GOING_ON, ClosedJob, Ending, NewVerdict, OwnerState, State
from solera.serve.coordinator.store.base import (
    Base,
    Conflict,
    Denied,
    NotFound,
    find_row,
    first_row,
    note,
    plain,
)
from solera.serve.coordinator.store.closed_tables import (
    PostRow,
    TextRow,
    VerdictRow,
    posts,
    texts,
    verdicts,
)
from solera.serve.coordinator.store.members import next_client
from solera.serve.coordinator.store.tables import ClientRow, clients

KEEP_SECONDS = 30 * 24 * 3600.0
"""How long posts of a job are kept whose result nobody fetches."""
SIGNATURE = 64
"""Bytes at the beginning of a post."""


class Closed(Base):
    """Texts, verdicts, posts."""

    def add_text(self, row: TextRow) -> TextRow:
        """A new text, or the stored one: a text is registered once."""
        with self._write() as connection:
            next_client(connection, row.federation)
            if self._add(connection, texts, **asdict(row)):
                _note(connection, row, "text registered", row.created)
            stored = _text(connection, row.jid)
            if (stored.federation, stored.owners) != (row.federation, row.owners):
                raise Conflict("this text is registered with other owners")
            return stored

    def text(self, jid: str) -> TextRow:
        """One text."""
        with self._read() as connection:
            return _text(connection, jid)

    def owned_text(self, jid: str, client: ClientRow) -> tuple[TextRow, int]:
        """A text, and which of its owners this client is; for others it is not there."""
        row = self.text(jid)
        return row, _index(row, client)

    def decide(self, jid: str, client: ClientRow, said: NewVerdict, now: float) -> TextRow:
        """What an owner says of a text. All have approved: it runs; one refuses: it is over."""
        with self._write() as connection:
            row = _text(connection, jid, lock=True)
            owner = _index(row, client)
            new = VerdictRow(jid, owner, said.verdict, said.person, plain(said.reason), now)
            if row.state not in GOING_ON or not self._said(connection, new):
                return row
            about: dict[str, Any] = {"client": client.id, "reason": said.reason}
            _note(connection, row, f"text {said.verdict}", now, person=said.person, **about)
            if said.verdict == "refused":
                return _move(connection, row, "refused", f"{client.name}: {said.reason}", now)
            approved = select(func.count()).where(
                verdicts.c.jid == jid, verdicts.c.verdict == "approved"
            )
            if row.state == "waiting" and connection.scalar(approved) == len(row.owners):
                return _move(connection, row, "running", "", now)
            return row

    def _said(self, connection: Connection, new: VerdictRow) -> bool:
        """Whether this is news: a verdict stands, but an approval may be taken back."""
        chosen = select(verdicts).filter_by(jid=new.jid, owner=new.owner)
        before = first_row(connection, VerdictRow, chosen)
        if before is None:
            self._add(connection, verdicts, **asdict(new))
            return True
        if before.verdict == new.verdict or new.verdict == "approved":
            return False
        self._put(connection, verdicts, **asdict(new))
        return True

    # --- posts ---

    def add_posts(self, new: Sequence[PostRow]) -> list[bool | Exception]:
        """Write posts down, each once; whether each is stored now or was before.

        Another post for the same step is not stored: its signature is, against who made it.
        """
        with self._write() as connection:
            return [self._add_post(connection, post) for post in new]

    def _add_post(self, connection: Connection, row: PostRow) -> bool | Exception:
        text = _text(connection, row.jid)
        chosen = select(posts).filter_by(jid=row.jid, step=row.step, owner=row.owner)
        stored = first_row(connection, PostRow, chosen)
        if stored is not None and stored.digest == row.digest:
            return False
        if stored is None and text.state != "running" and row.step != "evidence":
            return Conflict(f"the job is {text.state}: nothing is posted any more")
        if stored is None:
            self._add(connection, posts, **asdict(row))
            if row.step == "evidence" and text.state == "running":
                _move(connection, text, "ended", _where(connection, row.jid), row.time)
            return True
        facts = {"step": row.step, "owner": row.owner, "digest": row.digest}
        facts |= {"signature": row.signature.hex(), "first": stored.digest}
        _note(connection, text, "second post", row.time, **facts)
        return Conflict(f"another post for {row.step} is stored")

    def posts(self, jid: str, step: str) -> list[PostRow]:
        """What was posted for a step, in the order of the owners."""
        return self._rows(PostRow, select(posts).filter_by(jid=jid, step=step).order_by("owner"))

    def post(self, jid: str, step: str, owner: int) -> PostRow:
        """One post."""
        chosen = select(posts).filter_by(jid=jid, step=step, owner=owner)
        with self._read() as connection:
            return find_row(connection, PostRow, chosen, f"no post of owner {owner} for {step}")

    def posts_of(self, jid: str, owner: int) -> dict[str, str]:
        """By step: the digest of what an owner posted."""
        chosen = select(posts.c.step, posts.c.digest).filter_by(jid=jid, owner=owner)
        with self._read() as connection:
            return dict(connection.execute(chosen).all())

    # --- the end ---

    def finish(self, jid: str, digest: str, now: float) -> TextRow:
        """The sealed result is here; the first one stays."""
        with self._write() as connection:
            row = _text(connection, jid, lock=True)
            if row.result is not None or row.state != "running":
                return row
            connection.execute(update(texts).filter_by(jid=jid).values(result=digest))
            return _move(connection, row, "finished", "", now)

    def end(self, jid: str, client: ClientRow, ending: Ending, now: float) -> TextRow:
        """The job is over at one owner; without a result it is over for all."""
        with self._write() as connection:
            row = _text(connection, jid, lock=True)
            mine = update(verdicts).filter_by(jid=jid, owner=_index(row, client))
            connection.execute(mine.values(over=now))
            if ending.finished or row.state not in GOING_ON:
                return row
            return _move(connection, row, "ended", _where(connection, jid), now)

    def fetched(self, jid: str, now: float) -> None:
        """The researcher has the result."""
        with self._write() as connection:
            connection.execute(update(texts).filter_by(jid=jid, fetched=None).values(fetched=now))

    def prune_posts(self, now: float) -> int:
        """Let go of posts that no one needs any more; of how many jobs.

        Signatures and digests stay.
        """
        over = select(verdicts.c.jid, func.count(verdicts.c.over)).group_by(verdicts.c.jid)
        kept = select(posts.c.jid).filter_by(pruned=False).distinct()
        ended = select(texts).where(texts.c.jid.in_(kept), texts.c.state.not_in(GOING_ON))
        with self._write() as connection:
            left: dict[str, int] = dict(connection.execute(over).all())
            gone = [
                row["jid"]
                for row in connection.execute(ended).mappings()
                if now - row["changed"] > KEEP_SECONDS
                or (
                    left.get(row["jid"], 0) == len(row["owners"])
                    and (row["state"] == "ended" or row["fetched"] is not None)
                )
            ]
            connection.execute(update(posts).where(posts.c.jid.in_(gone)).values(pruned=True))
        return len(gone)

    # --- looking ---

    def closed_jobs(self, federation: str, *, going_on: bool = False) -> list[ClosedJob]:
        """The closed jobs of a federation, oldest first."""
        chosen = select(texts).filter_by(federation=federation).order_by(texts.c.created)
        if going_on:
            chosen = chosen.where(texts.c.state.in_(GOING_ON))
        with self._read() as connection:
            rows = [TextRow(**row) for row in connection.execute(chosen).mappings()]
            return [_look(connection, row) for row in rows]

    def closed_job(self, jid: str) -> ClosedJob:
        """A closed job and how far it is."""
        with self._read() as connection:
            return _look(connection, _text(connection, jid))

    def has_closed_jobs(self, federation: str) -> bool:
        """Whether a closed job of a federation runs, so that owners have something to post."""
        chosen = select(texts.c.jid).filter_by(federation=federation, state="running").limit(1)
        return bool(self._scalars(chosen))


def _text(connection: Connection, jid: str, *, lock: bool = False) -> TextRow:
    chosen = select(texts).filter_by(jid=jid)
    return find_row(
        connection, TextRow, chosen.with_for_update() if lock else chosen, f"no closed job {jid}"
    )


def _index(row: TextRow, client: ClientRow) -> int:
    """Which owner of a text a client is."""
    key = client.sign_key.hex()
    if row.federation != client.federation or key not in row.owners:
        raise NotFound(f"no closed job {row.jid}")
    if client.revoked is not None:
        raise Denied("this client is revoked")
    return row.owners.index(key)


def _where(connection: Connection, jid: str) -> str:
    """At which step a job ends; why is for nobody but the owner that ended it."""
    newest = func.min(posts.c.time).desc()
    steps = select(posts.c.step).where(posts.c.jid == jid, posts.c.step != "evidence")
    step = connection.scalar(steps.group_by(posts.c.step).order_by(newest).limit(1))
    return f"ended at {step or 'its start'}"


def _move(connection: Connection, row: TextRow, state: State, reason: str, now: float) -> TextRow:
    changes: dict[str, Any] = {"state": state, "reason": plain(reason), "changed": now}
    connection.execute(update(texts).filter_by(jid=row.jid).values(changes))
    _note(connection, row, f"text {state}", now, reason=reason)
    return replace(row, **changes)


def _note(connection: Connection, row: TextRow, event: str, now: float, **about: Any) -> None:
    said = {name: about.pop(name) for name in ("client", "reason") if name in about}
    facts = {"jid": row.jid, "epoch": row.epoch, **about}
    note(connection, event, now, federation=row.federation, job=row.jid, facts=facts, **said)


def _look(connection: Connection, row: TextRow) -> ClosedJob:
    """How far a text is, from what is stored of it."""
    said = {
        one["owner"]: VerdictRow(**one)
        for one in connection.execute(select(verdicts).filter_by(jid=row.jid)).mappings()
    }
    first = func.min(posts.c.time).label("first")
    steps = select(posts.c.step, func.count(), first).filter_by(jid=row.jid).group_by(posts.c.step)
    counted = connection.execute(steps.order_by(first.desc())).all()
    step, since = (counted[0][0], counted[0][2]) if counted else ("", None)
    here = set(connection.scalars(select(posts.c.owner).filter_by(jid=row.jid, step=step)))
    return ClosedJob.of(
        row,
        text=b64encode(row.text).decode(),
        owners=_owner_states(connection, row, said, here if step else None),
        step=step,
        since=since,
        sums=sum(name.startswith("sum") and n == len(row.owners) for name, n, _ in counted),
        fetched=row.fetched is not None,
    )


def _owner_states(
    connection: Connection, row: TextRow, said: Mapping[int, VerdictRow], here: Iterable[int] | None
) -> list[OwnerState]:
    known = {
        client["sign_key"].hex(): client
        for client in connection.execute(
            select(clients).filter_by(federation=row.federation)
        ).mappings()
    }
    states = []
    for owner, key in enumerate(row.owners):
        client, verdict = known.get(key), said.get(owner)
        if row.state == "waiting":
            awaited = verdict is None
        else:
            awaited = row.state == "running" and (here is None or owner not in here)
        state = OwnerState("(has left)" if client is None else client["name"], key, awaited=awaited)
        if client is not None:
            state = replace(state, seen=client["seen"], doing=client["doing"] or "")
        if verdict is not None:
            decided = {"decided": verdict.time, "reason": verdict.reason}
            state = replace(state, verdict=verdict.verdict, person=verdict.person, **decided)
        states.append(state)
    return states
