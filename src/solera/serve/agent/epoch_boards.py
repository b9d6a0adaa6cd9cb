"""Where owners put drafts, parts and signatures: a folder of files, or the coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from solera.core.errors import UsageError
from solera.core.private_files import write_file
from solera.serve.connection import Connection
from solera.serve.epochs import (
    DraftState,
    NewDraft,
    NewPart,
    NewSignature,
    atoms_bytes,
    framed,
)
from solera.trust.epoch import Atoms, Draft, EpochError, Owner, Signature
from solera.trust.epoch.agreement import Agreement


class EpochBoard(Protocol):
    """Where owners see how far they are with a draft. Nobody trusts what is there."""

    def look(self) -> Agreement:
        """The draft, and what owners have put there."""

    def enter(self, part: Owner) -> Agreement:
        """Put an owner's part there."""

    def sign(self, signature: Signature, name: str) -> Agreement:
        """Put an owner's signature there."""


@dataclass(frozen=True)
class FileBoard:
    """A draft in a file; parts and signatures lie beside it, as owners send them to each other.

    Atoms are sums over all owners, and need a coordinator: here nobody finds any.
    """

    draft: Path

    def look(self) -> Agreement:
        """The draft, and what owners have put there."""
        draft = Draft.read(self.draft)
        parts = [Owner.decode(path.read_bytes()) for path in self._files("part")]
        signatures = [Signature.decode(path.read_bytes()) for path in self._files("signature")]
        return Agreement(draft, {p.name: p for p in parts if p.name in draft.owners}, signatures)

    def enter(self, part: Owner) -> Agreement:
        """Write ``NAME.part`` beside the draft."""
        return self._write(part.name, "part", part.encode())

    def sign(self, signature: Signature, name: str) -> Agreement:
        """Write ``NAME.signature`` beside the draft."""
        return self._write(name, "signature", signature.encode())

    def _write(self, name: str, kind: str, data: bytes) -> Agreement:
        write_file(self.draft.parent / f"{name}.{kind}", data, 0o644, overwrite=True)
        return self.look()

    def _files(self, kind: str) -> list[Path]:
        return sorted(self.draft.parent.glob(f"*.{kind}"))


@dataclass(frozen=True)
class CoordinatorBoard:
    """The coordinator's; without a ``draft`` of one's own, its newest."""

    connection: Connection
    federation: str
    draft: Draft | None = None

    def look(self) -> Agreement:
        """The draft, and what owners have put there."""
        path = f"/v1/federations/{self.federation}/dictionary"
        if self.draft is None:
            return self.connection.call("GET", path, DraftState).agreement()
        return self._said("PUT", path, NewDraft(self.draft.toml()))

    def enter(self, part: Owner) -> Agreement:
        """Enter an owner's part."""
        return self._said("PUT", f"{self._named()}/part", NewPart(framed(part.encode())))

    def sign(self, signature: Signature, name: str) -> Agreement:
        """Give an owner's signature."""
        said = NewSignature(framed(signature.encode()))
        return self._said("PUT", f"{self._named()}/signature", said)

    def sign_atoms(self, signature: Signature, atoms: Atoms) -> Agreement:
        """Give the signature of an owner's agent, and the atoms that it has found."""
        said = NewSignature(framed(signature.encode()), framed(atoms_bytes(atoms)))
        return self._said("PUT", f"{self._named()}/signature", said)

    def _named(self) -> str:
        if self.draft is None:
            raise UsageError("what is signed is one draft, not the newest there is")
        return f"/v1/dictionary/{self.draft.hash.hex()}"

    def _said(self, method: str, path: str, message: object) -> Agreement:
        seen = self.connection.call(method, path, DraftState, json=message).agreement()
        if seen.draft != self.draft:
            raise EpochError("the coordinator shows another draft than the one that was meant")
        return seen
