"""Epochs: drafts, what owners enter, and their signatures. Owners check all that they read here."""

from __future__ import annotations

import time

from msgspec.structs import asdict
from sqlalchemy import Connection, delete, select, update

from solera.core.errors import UsageError
from solera.serve.coordinator.store.base import (
    Base,
    Conflict,
    Denied,
    NotFound,
    find_row,
    first_row,
    note,
)
from solera.serve.coordinator.store.epoch_tables import (
    DraftRow,
    PartRow,
    SignatureRow,
    drafts,
    parts,
    signatures,
)
from solera.serve.coordinator.store.members import next_client
from solera.serve.coordinator.store.tables import ClientRow, clients
from solera.serve.epochs import DraftState, framed
from solera.trust.epoch.epoch import Draft, Owner, Signature, SignedEpoch


class Epochs(Base):
    """Drafts, parts, signatures."""

    def add_draft(self, federation: str, draft: Draft) -> DraftState:
        """Show a draft to the owners that it names; the same again tells how far they are."""
        if draft.federation != federation:
            raise UsageError(
                f"the draft is for the federation {draft.federation!r}",
                hint=f'[epoch] federation = "{federation}"',
            )
        now, name = time.time(), draft.hash.hex()
        with self._write() as connection:
            next_client(connection, federation)
            active = select(clients.c.name).filter_by(federation=federation, revoked=None)
            unknown = set(draft.owners) - set(connection.scalars(active))
            if unknown:
                raise UsageError(f"the draft names {sorted(unknown)[0]!r}, who has not joined")
            row = DraftRow(name, federation, draft.toml(), now)
            if self._add(connection, drafts, **asdict(row)):
                note(connection, "dictionary drafted", now, federation=federation,
                     facts={"draft": name})  # fmt: skip
        return self.draft(name)

    def draft(self, name: str) -> DraftState:
        """A draft, and how far its owners are."""
        with self._read() as connection:
            return _state(connection, _row(connection, name))

    def newest_draft(self, federation: str) -> DraftState:
        """The newest draft of a federation."""
        chosen = select(drafts).filter_by(federation=federation).order_by(drafts.c.created.desc())
        with self._read() as connection:
            row = find_row(connection, DraftRow, chosen.limit(1), "no dictionary was drafted yet")
            return _state(connection, row)

    def signed_epochs(self, federation: str) -> list[DraftState]:
        """The epochs that all their owners have signed, the newest first."""
        chosen = select(drafts).filter_by(federation=federation).order_by(drafts.c.complete.desc())
        with self._read() as connection:
            rows = connection.execute(chosen.where(drafts.c.complete.is_not(None))).mappings()
            return [_state(connection, DraftRow(**row)) for row in rows.all()]

    def enter_part(self, name: str, client: ClientRow, part: Owner) -> DraftState:
        """What an owner enters. Another part in place of one makes another epoch of the draft."""
        if (part.name, part.key) != (client.name, client.sign_key):
            raise Denied("a part is of the owner that enters it, and of its key")
        with self._write() as connection:
            row = _own_row(connection, name, client)
            if client.name not in Draft.parse(row.text).owners:
                raise Denied(f"the draft does not name {client.name!r}")
            new = PartRow(name, client.name, part.encode(), time.time())
            chosen = select(parts).filter_by(draft=name, owner=client.name)
            before = first_row(connection, PartRow, chosen)
            if before is None or before.part != new.part:
                if row.complete is not None:
                    raise Conflict("all owners have signed: this epoch stays as it is")
                self._put(connection, parts, **asdict(new))
                connection.execute(delete(signatures).filter_by(draft=name))
                _note(connection, row, "epoch part", client)
        return self.draft(name)

    def add_signature(self, name: str, client: ClientRow, signature: Signature) -> DraftState:
        """An owner signs, or one that leaves consents; with the last signature all is settled."""
        if signature.key != client.sign_key:
            raise Denied("a signature is given by the owner of its key")
        with self._write() as connection:
            row = _own_row(connection, name, client)
            signed = _signed(connection, row)
            if not signature.is_of(signed.epoch):
                raise Conflict("the signature is of another epoch: somebody's part has changed")
            if row.complete is not None and signature.key in signed.epoch.keys:
                return _state(connection, row)
            new = SignatureRow(name, client.sign_key.hex(), signature.encode(), time.time())
            self._put(connection, signatures, **asdict(new))
            _note(connection, row, "epoch signed", client)
            if row.complete is None and not _signed(connection, row).missing:
                now = time.time()
                connection.execute(update(drafts).filter_by(hash=name).values(complete=now))
        return self.draft(name)


def _row(connection: Connection, name: str) -> DraftRow:
    return find_row(connection, DraftRow, select(drafts).filter_by(hash=name), "no such draft")


def _own_row(connection: Connection, name: str, client: ClientRow) -> DraftRow:
    """A draft of the client's federation, for this transaction alone."""
    chosen = select(drafts).filter_by(hash=name, federation=client.federation)
    return find_row(connection, DraftRow, chosen.with_for_update(), "no such draft")


def _state(connection: Connection, row: DraftRow) -> DraftState:
    entered = select(parts).filter_by(draft=row.hash).order_by(parts.c.owner)
    given = select(signatures).filter_by(draft=row.hash).order_by(signatures.c.key)
    return DraftState(
        row.hash,
        row.federation,
        row.text,
        row.created,
        [framed(each["part"]) for each in connection.execute(entered).mappings()],
        [framed(each["signature"]) for each in connection.execute(given).mappings()],
        row.complete,
    )


def _signed(connection: Connection, row: DraftRow) -> SignedEpoch:
    signed = _state(connection, row).agreement().signed()
    if signed is None:
        raise NotFound("some owners have yet to enter their part")
    return signed


def _note(connection: Connection, row: DraftRow, event: str, client: ClientRow) -> None:
    note(connection, event, time.time(), federation=row.federation, client=client.id,
         facts={"draft": row.hash})  # fmt: skip
