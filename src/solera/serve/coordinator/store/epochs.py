"""Epochs: drafts, what owners enter, and their signatures. Owners check all that they read here."""

from __future__ import annotations

import time
from dataclasses import replace

from msgspec import structs
from msgspec.structs import asdict
from sqlalchemy import Connection, delete, select, update

from solera.core.errors import SoleraError, UsageError
from solera.serve.closed import GOING_ON
from solera.serve.coordinator.store.base import (
    Base,
    Conflict,
    Denied,
    NotFound,
    find_row,
    first_row,
    note,
)
from solera.serve.coordinator.store.closed_tables import TextRow, texts
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
from solera.serve.epochs import DraftState, atoms_of, framed
from solera.trust.board.atoms import atoms_text
from solera.trust.board.text import REPEATS, jid
from solera.trust.epoch.epoch import Draft, Epoch, Owner, Signature, SignedEpoch


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
                connection.execute(update(drafts).filter_by(hash=name).values(atoms=None))
                _note(connection, row, "epoch part", client)
        return self.draft(name)

    def add_signature(self, name: str, client: ClientRow, signature: Signature) -> DraftState:
        """An owner signs, or one that leaves consents; once all have, their agents find the atoms.

        The same again has them look again, where they have failed.
        """
        if signature.key != client.sign_key:
            raise Denied("a signature is given by the owner of its key")
        with self._write() as connection:
            row = _own_row(connection, name, client)
            signed = _signed(connection, row)
            agreed = signed.epoch.agreed
            if not signature.is_of(agreed):
                raise Conflict("the signature is of another epoch: somebody's part has changed")
            if client.name in signed.missing or signature.key not in agreed.keys:
                self._put_signature(connection, row, client, signature)
                signed = _signed(connection, row)
            if row.atoms is None and not signed.missing:
                self._seek_atoms(connection, row, agreed)
        return self.draft(name)

    def add_atoms(
        self, name: str, client: ClientRow, signature: Signature, atoms: bytes
    ) -> DraftState:
        """An agent signs the atoms that all have found; with the last signature all is settled."""
        if signature.key != client.sign_key:
            raise Denied("a signature is given by the owner of its key")
        with self._write() as connection:
            row = _own_row(connection, name, client)
            signed = _signed(connection, row)
            if signed.missing:
                raise Conflict(f"not signed yet by {', '.join(signed.missing)}")
            if row.atoms not in (None, atoms):
                raise Conflict("another owner has signed other atoms")
            found = atoms_of(atoms, signed.epoch.dictionary)
            epoch = replace(signed.epoch, atoms=found)
            if not signature.is_of(epoch):
                raise Conflict("the signature is of another epoch, or of other atoms")
            if client.name in SignedEpoch(epoch, signed.signatures).unsettled:
                connection.execute(update(drafts).filter_by(hash=name).values(atoms=atoms))
                self._put_signature(connection, row, client, signature, " atoms")
            row = _own_row(connection, name, client)
            if row.complete is None and not _signed(connection, row).unsettled:
                now = time.time()
                connection.execute(update(drafts).filter_by(hash=name).values(complete=now))
        return self.draft(name)

    def _put_signature(
        self,
        connection: Connection,
        row: DraftRow,
        client: ClientRow,
        signature: Signature,
        what: str = "",
    ) -> None:
        """Beside what a person has signed stands what the agent has."""
        key = client.sign_key.hex() + what
        new = SignatureRow(row.hash, key, signature.encode(), time.time())
        self._put(connection, signatures, **asdict(new))
        _note(connection, row, f"epoch{what} signed", client)

    def _seek_atoms(self, connection: Connection, row: DraftRow, agreed: Epoch) -> None:
        """Show the agents the text of the job that finds the atoms, unless one goes on."""
        owners, now = [key.hex() for key in agreed.keys], time.time()
        for repeat in range(REPEATS):
            text = atoms_text(repeat)
            name = jid(agreed.hash, text).hex()
            new = TextRow(
                name, row.federation, agreed.hash.hex(), text, owners, "waiting", "", now, now
            )
            before = first_row(connection, TextRow, select(texts).filter_by(jid=name))
            if before is None:
                self._add(connection, texts, **asdict(new))
            if before is None or before.state in (*GOING_ON, "finished"):
                return
        raise Conflict("the atoms were looked for ten times: draft anew")


def _row(connection: Connection, name: str) -> DraftRow:
    return find_row(connection, DraftRow, select(drafts).filter_by(hash=name), "no such draft")


def _own_row(connection: Connection, name: str, client: ClientRow) -> DraftRow:
    """A draft of the client's federation, for this transaction alone."""
    chosen = select(drafts).filter_by(hash=name, federation=client.federation)
    return find_row(connection, DraftRow, chosen.with_for_update(), "no such draft")


def _state(connection: Connection, row: DraftRow) -> DraftState:
    entered = select(parts).filter_by(draft=row.hash).order_by(parts.c.owner)
    given = select(signatures).filter_by(draft=row.hash).order_by(signatures.c.key)
    state = DraftState(
        row.hash,
        row.federation,
        row.text,
        row.created,
        [framed(each["part"]) for each in connection.execute(entered).mappings()],
        [framed(each["signature"]) for each in connection.execute(given).mappings()],
        row.complete,
        None if row.atoms is None else framed(row.atoms),
    )
    return structs.replace(state, search=_search(connection, row, state))


def _search(connection: Connection, row: DraftRow, state: DraftState) -> str:
    """How far the agents are with the atoms, in words; nothing before they begin."""
    try:
        signed = state.agreement().signed()
    except SoleraError:
        return ""
    if signed is None:
        return ""
    chosen = select(texts).filter_by(
        federation=row.federation, epoch=signed.epoch.agreed.hash.hex()
    )
    text = first_row(connection, TextRow, chosen.order_by(texts.c.created.desc()).limit(1))
    return "" if text is None else text.reason or text.state


def _signed(connection: Connection, row: DraftRow) -> SignedEpoch:
    signed = _state(connection, row).agreement().signed()
    if signed is None:
        raise NotFound("some owners have yet to enter their part")
    return signed


def _note(connection: Connection, row: DraftRow, event: str, client: ClientRow) -> None:
    note(connection, event, time.time(), federation=row.federation, client=client.id,
         facts={"draft": row.hash})  # fmt: skip
