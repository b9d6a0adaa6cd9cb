"""The tables of closed jobs: texts, what owners say of them, and what they post."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, Table, Text

from solera.serve.closed import State, Verdict
from solera.serve.coordinator.store.tables import columns_of, key, metadata, required
from solera.serve.wire import Message


class TextRow(Message):
    """A text; ``owners`` are the public keys of its epoch, in order. ``result`` names a blob."""

    jid: str
    federation: str
    epoch: str
    text: bytes
    owners: list[str]
    state: State
    reason: str
    created: float
    changed: float
    result: str | None = None
    fetched: float | None = None


class VerdictRow(Message):
    """What an owner says of a text; ``over`` is when the job ended there."""

    jid: str
    owner: int
    verdict: Verdict
    person: str
    reason: str
    time: float
    over: float | None = None


class PostRow(Message):
    """What an owner posted for a step. Once ``pruned`` the blob is gone, the signature stays."""

    jid: str
    step: str
    owner: int
    digest: str
    size: int
    signature: bytes
    time: float
    pruned: bool = False


texts = Table(
    "closed_jobs",
    metadata,
    key("jid", Text),
    required("federation", ForeignKey("federations.name"), index=True),
    *columns_of(TextRow, "jid", "federation"),
)

verdicts = Table(
    "closed_verdicts",
    metadata,
    key("jid", ForeignKey("closed_jobs.jid")),
    key("owner"),
    *columns_of(VerdictRow, "jid", "owner"),
)

posts = Table(
    "closed_posts",
    metadata,
    key("jid", ForeignKey("closed_jobs.jid")),
    key("step", Text),
    key("owner"),
    *columns_of(PostRow, "jid", "step", "owner"),
    Index(None, "digest"),
)
