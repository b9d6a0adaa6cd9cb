"""Copies of all that left, for the owner's eyes: sealed to a key that the agent does not have.

Who breaks into the agent's machine, or runs it, can so neither read what left before nor change it
unnoticed: the audit log holds the digest of every reply.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from solera.core.errors import UsageError
from solera.core.payload import decode, encode
from solera.core.private_files import read_private, write_file
from solera.serve.identity import signed_message
from solera.trust.sealed import DamagedSeal, open_sealed, seal

_KIND = "solera copies 1"


class Copy(msgspec.Struct, frozen=True):
    """One reply that left: whose it is, and its bytes, sealed."""

    federation: str
    job: str
    sequence: int
    task: str
    digest: str
    sealed: bytes

    def context(self) -> bytes:
        names = (self.federation, self.job, self.sequence, self.task, self.digest)
        return signed_message("copy", *names)


@dataclass(frozen=True)
class Copies:
    """A folder of copies, and the public key they are sealed to."""

    folder: Path
    key: bytes

    @classmethod
    def to(cls, key_file: str, folder: Path) -> Copies:
        """Copies into a folder for whoever has the private half of the key in a file."""
        try:
            key = bytes.fromhex(Path(key_file).read_text().strip())
        except (OSError, ValueError):
            key = b""
        if len(key) != 32:
            raise UsageError(
                f"keep_copies = {key_file!r} is not a file with a public key",
                hint="make one with `solera audit new-key copies`",
            )
        return cls(folder, key)

    def keep(self, federation: str, job: str, sequence: int, task: str, frame: bytes) -> None:
        """Write the copy of a reply; the same reply again is the same copy."""
        digest = hashlib.sha256(frame).hexdigest()
        path = self.folder / f"{job}.{sequence}.{digest[:16]}.copy"
        if path.exists():
            return
        self.folder.mkdir(mode=0o700, exist_ok=True)
        copy = Copy(federation, job, sequence, task, digest, b"")
        sealed = seal(self.key, frame, context=copy.context())
        content = msgspec.structs.asdict(msgspec.structs.replace(copy, sealed=sealed))
        write_file(path, encode(content), 0o600, overwrite=True)


def new_key(name: Path) -> tuple[Path, Path]:
    """A key pair for copies: ``name.key``, which opens them, and ``name.pub``."""
    private = X25519PrivateKey.generate()
    paths = name.with_name(f"{name.name}.key"), name.with_name(f"{name.name}.pub")
    content = {"kind": _KIND, "open": private.private_bytes_raw()}
    write_file(paths[0], encode(content), 0o600, overwrite=False)
    public = private.public_key().public_bytes_raw().hex()
    write_file(paths[1], f"{public}\n".encode(), 0o644, overwrite=False)
    return paths


def open_copy(path: Path, key: Path) -> tuple[Copy, Any]:
    """What a copy is of, and the reply itself, if it is the one that the copy names."""
    try:
        secret = decode(read_private(key))
        if secret["kind"] != _KIND:
            raise ValueError
    except (LookupError, TypeError, ValueError):
        raise UsageError(
            f"{key} is not a key that opens copies",
            hint="it is NAME.key of `solera audit new-key NAME`",
        ) from None
    try:
        copy = msgspec.convert(decode(path.read_bytes()), Copy)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a copy of a reply: {error}") from None
    frame = open_sealed(secret["open"], copy.sealed, context=copy.context())
    if hashlib.sha256(frame).hexdigest() != copy.digest:
        raise DamagedSeal(f"{path} holds another reply than it says")
    return copy, decode(frame)
