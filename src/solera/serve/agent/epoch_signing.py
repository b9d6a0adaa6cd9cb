"""An owner signs an epoch: it enters its part, sees what signing tells, compares words, signs.

Once all have, their agents find the atoms and sign these by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from solera.learn.averaging.lora import base_faults
from solera.serve.agent import home
from solera.serve.agent.epoch_boards import CoordinatorBoard, EpochBoard
from solera.serve.agent.epoch_files import EpochFiles
from solera.serve.audit import AuditLog
from solera.serve.identity import Identity
from solera.trust.epoch import (
    Atoms,
    Changes,
    Epoch,
    EpochError,
    Owner,
    Signature,
    SignedEpoch,
    Snapshot,
    changes,
    own_faults,
)
from solera.trust.epoch.agreement import Agreement
from solera.trust.epoch.epoch import consent_to_lone_change
from solera.trust.epoch.runtime import runtime


@dataclass(frozen=True)
class Signing:
    """One owner and one draft."""

    folder: Path
    name: str
    identity: Identity
    snapshot: Snapshot
    board: EpochBoard
    refresh: int | None = None

    def enter(self) -> Agreement:
        """Put this owner's part on the board, unless its rows allow no such epoch."""
        seen = self.board.look()
        dictionary = seen.draft.dictionary
        columns = [column.name for column in dictionary.columns]
        faults = own_faults(self.snapshot, columns, seen.draft.min_count)
        Changes((*faults, *base_faults(dictionary.bases).values())).check()
        if self.name not in seen.draft.owners:
            raise EpochError(f"the draft does not name {self.name!r}")
        part = self.part()
        if seen.parts.get(self.name) != part:
            self._log("epoch part", draft=seen.draft.hash.hex(), persons=part.persons)
            seen = self.board.enter(part)
        return seen

    def part(self) -> Owner:
        """What this owner enters."""
        taken = self.snapshot
        key = self.identity.sign_key
        return Owner(self.name, key, taken.commitment, taken.person_count, runtime())

    def changes(self, epoch: Epoch) -> Changes:
        """What signing tells, beside all epochs that this owner has signed."""
        earlier = EpochFiles(self.folder).earlier(epoch)
        return changes(epoch, self.part(), self.snapshot, earlier, refresh=self.refresh)

    def sign(self, epoch: Epoch, *, consent: str = "") -> SignedEpoch:
        """Sign an epoch whose words were compared; it is written down before it leaves."""
        if epoch.owners[epoch.number(self.name)] != self.part():
            raise EpochError("the epoch holds another part of this owner than it has entered")
        self.changes(epoch).check(consent)
        signature = epoch.sign(self.identity, consent=consent)
        files = EpochFiles(self.folder)
        files.keep(SignedEpoch(epoch, (signature,)), self.snapshot)
        self._log("epoch signed", epoch=epoch.hash.hex(), consent=consent)
        signed = self.board.sign(signature, self.name).signed()
        if signed is None or signed.epoch.agreed.hash != epoch.hash:
            raise EpochError("somebody's part has changed: look again, and compare the words again")
        files.complete(signed)
        return signed

    def remind(self, signed: SignedEpoch) -> Agreement:
        """Sign once more: agents that have failed at the atoms look for them again."""
        return self.board.sign(_own_signature(signed, self.identity), self.name)

    def _log(self, event: str, **facts: object) -> None:
        AuditLog(self.folder / home.LOG, self.identity).append(event, **facts)


def settle_epoch(folder: Path, identity: Identity, board: CoordinatorBoard, atoms: Atoms) -> None:
    """Sign the atoms that this owner's own run has found, in the name of who signed the rest.

    Kept is what all have signed: it holds these atoms or it is not signed here.
    """
    agreed = EpochFiles(folder).agreed()
    seen = board.look().signed()
    if agreed is None or seen is None or seen.epoch.agreed != agreed.epoch:
        return
    mine = _own_signature(agreed, identity)
    epoch = replace(agreed.epoch, atoms=atoms)
    signature = epoch.sign(identity, consent=mine.consent)
    if signature not in seen.signatures:
        facts = {"epoch": epoch.hash.hex(), "agreed": agreed.epoch.hash.hex()}
        AuditLog(folder / home.LOG, identity).append("epoch atoms", **facts)
        seen = board.sign_atoms(signature, atoms).signed()
    if seen is not None:
        EpochFiles(folder).complete(seen)


def _own_signature(signed: SignedEpoch, identity: Identity) -> Signature:
    agreed, key = signed.epoch.agreed, identity.sign_key
    return next(s for s in signed.signatures if s.key == key and s.is_of(agreed))


def leave_epoch(
    folder: Path, name: str, identity: Identity, epoch: Epoch, board: EpochBoard
) -> str:
    """The written consent of an owner that alone is no longer in an epoch; what it says."""
    before = [signed.epoch for signed in EpochFiles(folder).all()]
    mine = [o for e in before for o in e.owners if o.key == identity.sign_key]
    if not mine or identity.sign_key in epoch.keys:
        raise EpochError(f"{name} does not leave by this epoch")
    consent = consent_to_lone_change(mine[-1])
    AuditLog(folder / home.LOG, identity).append(
        "epoch left", epoch=epoch.hash.hex(), consent=consent
    )
    board.sign(epoch.agreed.sign(identity, consent=consent), name)
    return consent
