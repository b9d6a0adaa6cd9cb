"""An owner signs an epoch: it enters its part, sees what signing tells, compares words, signs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from solera.serve.agent import home
from solera.serve.agent.epoch_boards import EpochBoard
from solera.serve.agent.epoch_files import EpochFiles
from solera.serve.audit import AuditLog
from solera.serve.identity import Identity
from solera.trust.epoch import (
    Changes,
    Epoch,
    EpochError,
    Owner,
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
        columns = [column.name for column in seen.draft.dictionary.columns]
        if faults := own_faults(self.snapshot, columns, seen.draft.min_count):
            Changes(faults).check()
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
        if signed is None or signed.epoch.hash != epoch.hash:
            raise EpochError("somebody's part has changed: look again, and compare the words again")
        files.complete(signed)
        return signed

    def _log(self, event: str, **facts: object) -> None:
        AuditLog(self.folder / home.LOG, self.identity).append(event, **facts)


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
    board.sign(epoch.sign(identity, consent=consent), name)
    return consent
