"""How far owners are with a draft: who has entered a part, who has signed, who knows the atoms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from solera.trust.epoch.atoms import Atoms
from solera.trust.epoch.epoch import Draft, Epoch, Owner, Signature, SignedEpoch


@dataclass(frozen=True)
class Agreement:
    """A draft, the parts of owners by their names, signatures, and atoms that an agent has signed.

    ``search`` says how far the agents are with the atoms.
    """

    draft: Draft
    parts: Mapping[str, Owner]
    signatures: Sequence[Signature] = ()
    atoms: Atoms | None = None
    search: str = ""

    @property
    def waiting(self) -> tuple[str, ...]:
        """The owners that have yet to enter their part."""
        return tuple(name for name in self.draft.owners if name not in self.parts)

    def signed(self) -> SignedEpoch | None:
        """The epoch with the signatures so far that are of it; None until all parts are there."""
        if self.waiting:
            return None
        agreed = Epoch(self.draft, tuple(self.parts[name] for name in self.draft.owners))
        epoch = replace(agreed, atoms=self.atoms)
        signatures = [s for s in self.signatures if s.is_of(epoch) or s.is_of(agreed)]
        return SignedEpoch(epoch, tuple(signatures))
