"""The tables of epochs: drafts, what owners enter, and their signatures."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Table, Text

from solera.serve.coordinator.store.tables import columns_of, key, metadata, required
from solera.serve.wire import Message


class DraftRow(Message):
    """A draft; ``complete`` since all owners have signed it with its ``atoms``."""

    hash: str
    federation: str
    text: str
    created: float
    complete: float | None = None
    atoms: bytes | None = None


class PartRow(Message):
    """What an owner has entered."""

    draft: str
    owner: str
    part: bytes
    time: float


class SignatureRow(Message):
    """A signature of the epoch that a draft and the parts of all are."""

    draft: str
    key: str
    signature: bytes
    time: float


drafts = Table(
    "epoch_drafts",
    metadata,
    key("hash", Text),
    required("federation", ForeignKey("federations.name"), index=True),
    *columns_of(DraftRow, "hash", "federation"),
)

parts = Table(
    "epoch_parts",
    metadata,
    key("draft", ForeignKey("epoch_drafts.hash")),
    key("owner", Text),
    *columns_of(PartRow, "draft", "owner"),
)

signatures = Table(
    "epoch_signatures",
    metadata,
    key("draft", ForeignKey("epoch_drafts.hash")),
    key("key", Text),
    *columns_of(SignatureRow, "draft", "key"),
)
