"""What is kept of a client in closed jobs, and what of it goes when the client leaves."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, and_, false, or_, select, update

from solera.serve.closed import GOING_ON
from solera.serve.coordinator.store.base import count_rows
from solera.serve.coordinator.store.closed_tables import posts, texts, verdicts


def posts_held(connection: Connection, federation: str, key: str) -> int:
    """How many posts of a client are kept with their content."""
    return count_rows(connection, posts, _is_owner(connection, federation, key), ~posts.c.pruned)


def forget_owner(connection: Connection, federation: str, key: str, now: float) -> int:
    """Let go of what a client posted, and of who decided there; its running jobs end.

    Signatures and digests stay: they prove what others have built on. How many posts went.
    """
    mine = _is_owner(connection, federation, key)
    gone = connection.execute(update(posts).where(mine, ~posts.c.pruned).values(pruned=True))
    said = _is_owner(connection, federation, key, table=verdicts)
    connection.execute(update(verdicts).where(said).values(person="", reason=""))
    for jid, owners in _texts(connection, federation):
        if key in owners:
            ended = {"state": "ended", "reason": "an owner has left", "changed": now}
            going_on = update(texts).where(texts.c.jid == jid, texts.c.state.in_(GOING_ON))
            connection.execute(going_on.values(ended))
    return gone.rowcount


def _texts(connection: Connection, federation: str) -> list[tuple[str, list[str]]]:
    chosen = select(texts.c.jid, texts.c.owners).filter_by(federation=federation)
    return [(jid, owners) for jid, owners in connection.execute(chosen)]


def _is_owner(
    connection: Connection, federation: str, key: str, *, table: object = posts
) -> ColumnElement[bool]:
    """Which rows of a table are of the client, who is another number in every epoch."""
    columns = posts.c if table is posts else verdicts.c
    places = [
        and_(columns.jid == jid, columns.owner == owners.index(key))
        for jid, owners in _texts(connection, federation)
        if key in owners
    ]
    return or_(false(), *places)
