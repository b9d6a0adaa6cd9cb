"""Every message about epochs between owners, drivers and the coordinator, each defined once.

Anybody of a federation proposes a draft. Every owner that it names enters its part, and once all
have, signs. Then their agents find the atoms and sign these, too. The coordinator keeps all of it
and is trusted with nothing: owners check what they read, and compare the words by voice.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Annotated

from msgspec import Meta

from solera.core.payload import decode, encode
from solera.serve.wire import Digest, Frame, Message
from solera.trust.epoch.agreement import Agreement
from solera.trust.epoch.atoms import Atoms
from solera.trust.epoch.dictionary import Dictionary
from solera.trust.epoch.epoch import Draft, EpochError, Owner, Signature

LONGEST_DRAFT = 1_000_000
AtomsFrame = Annotated[str, Meta(max_length=6_000_000, examples=["U09MAQ=="])]


class NewDraft(Message):
    """A dictionary and who is to sign it, as TOML."""

    text: Annotated[str, Meta(max_length=LONGEST_DRAFT, examples=['target = "died"'])]


class NewPart(Message):
    """What an owner enters: its key, a commitment to its rows, and its runtime."""

    part: Frame


class NewSignature(Message):
    """An owner's signature of the epoch, and what it consents to.

    That of its agent is of the ``atoms`` as well.
    """

    signature: Frame
    atoms: AtomsFrame | None = None


class DraftState(Message):
    """A draft, and how far its owners are; ``complete`` since all have signed it with its atoms.

    ``search`` says how far their agents are with these.
    """

    draft: Digest
    federation: str
    text: str
    created: float
    parts: list[Frame]
    signatures: list[Frame]
    complete: float | None = None
    atoms: AtomsFrame | None = None
    search: str = ""

    def agreement(self) -> Agreement:
        """What it says, read again: what is not what it must be is an error."""
        parts = [Owner.decode(unframed(part)) for part in self.parts]
        signatures = [Signature.decode(unframed(each)) for each in self.signatures]
        draft = Draft.parse(self.text, file="the draft")
        return Agreement(
            draft,
            {part.name: part for part in parts},
            signatures,
            None if self.atoms is None else atoms_of(unframed(self.atoms), draft.dictionary),
            self.search,
        )


def atoms_of(data: bytes, dictionary: Dictionary) -> Atoms:
    """The atoms that :func:`atoms_bytes` wrote, if they are of this dictionary."""
    return Atoms.from_payload(decode(data), dictionary)


def atoms_bytes(atoms: Atoms) -> bytes:
    """Atoms as they travel and are stored."""
    return encode(atoms)


def framed(data: bytes) -> str:
    """Bytes as they travel inside a message."""
    return b64encode(data).decode()


def unframed(text: str) -> bytes:
    """The bytes inside a message."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise EpochError("what a message holds is not base64") from None
