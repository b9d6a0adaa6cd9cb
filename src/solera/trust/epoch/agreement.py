"""How far owners are with a draft: who has entered a part, and who has signed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solera.trust.epoch.epoch import Draft, Epoch, Owner, Signature, SignedEpoch


@dataclass(frozen=True)
class Agreement:
    """A draft, the parts of owners by their names, and signatures."""

    draft: Draft
    parts: Mapping[str, Owner]
    signatures: Sequence[Signature] = ()

    @property
    def waiting(self) -> tuple[str, ...]:
        """The owners that have yet to enter their part."""
        return tuple(name for name in self.draft.owners if name not in self.parts)

    def signed(self) -> SignedEpoch | None:
        """The epoch with the signatures so far that are of it; None until all parts are there."""
        if self.waiting:
            return None
        epoch = Epoch(self.draft, tuple(self.parts[name] for name in self.draft.owners))
        return SignedEpoch(epoch, tuple(s for s in self.signatures if s.is_of(epoch)))
