"""Key pairs for homomorphic encryption: made, written and kept at the clients.

The clients of a federation share one pair. One of them creates it, the others get the secret file
by a way of their own, never through the coordinator; the public file may go to anyone.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.errors import PayloadError, UsageError
from solera.core.payload import decode, encode
from solera.core.private_files import read_private, refuse_open, write_file
from solera.privacy.he.packing import Slots
from solera.privacy.he.ring import (
    CLIENT,
    COMPAT,
    COORDINATOR,
    SMALL,
    SMALL_CLIENT,
    Parameters,
    context,
    dump,
    ring,
    seal,
)

__all__ = [
    "CLIENT", "COMPAT", "COORDINATOR", "SMALL", "SMALL_CLIENT", "PublicKey", "Rotations",
    "SecretKey", "WrongKey", "create", "default_folder", "find", "galois", "generate", "load",
    "load_public", "store",
]  # fmt: skip


class WrongKey(PayloadError):
    """A ciphertext, or a key, that belongs to another key pair."""


def _frame(kind: str, parameters: Parameters, **fields: Any) -> bytes:
    """One payload frame behind its SHA-256."""
    frame = encode({"kind": kind, "parameters": parameters.to_list(), **fields})
    return hashlib.sha256(frame).digest() + frame


def _unframe(kind: str, data: bytes, **types: type) -> tuple[Parameters, dict[str, Any]]:
    """The parameters and the fields of these types that :func:`_frame` wrote."""
    digest, frame = bytes(data[:32]), bytes(data[32:])
    if hashlib.sha256(frame).digest() != digest:
        raise PayloadError(f"damaged {kind}: its checksum is wrong")
    fields = decode(frame)
    if not isinstance(fields, dict) or fields.pop("kind", None) != kind:
        raise PayloadError(f"these bytes are not a {kind}")
    if {name: type(value) for name, value in fields.items()} != {"parameters": list, **types}:
        raise PayloadError(f"damaged {kind}: its fields are not those of this version")
    return Parameters.from_list(fields.pop("parameters")), fields


class PublicKey:
    """Encrypts and identifies; what the coordinator may hold. ``fingerprint`` names the pair."""

    _KIND = "public key"

    def __init__(self, parameters: Parameters, data: bytes) -> None:
        self.parameters = parameters
        self._data = data
        self._key = ring(parameters).load("PublicKey", data)
        self.fingerprint = hashlib.sha256(encode([parameters.to_list(), data])).digest()

    def to_bytes(self) -> bytes:
        return _frame(self._KIND, self.parameters, key=self._data)

    @classmethod
    def from_bytes(cls, data: bytes) -> PublicKey:
        parameters, fields = _unframe(cls._KIND, data, key=bytes)
        return cls(parameters, fields["key"])

    def encrypt(self, plaintext: Any) -> Any:
        """SEAL's ciphertext of SEAL's plaintext."""
        api = seal()
        ciphertext = api.Ciphertext()
        encryptor = api.Encryptor(ring(self.parameters).context, self._key)
        encryptor.encrypt(plaintext, ciphertext)
        return ciphertext

    def encrypt_block(self, plaintext: Any) -> bytes:
        """A ciphertext's bytes."""
        return dump(self.encrypt(plaintext))


class Rotations:
    """Public keys to rotate slots by ``steps``; only the coordinator needs them, for products."""

    _KIND = "set of rotation keys"

    def __init__(
        self, parameters: Parameters, fingerprint: bytes, steps: Sequence[int], data: bytes
    ) -> None:
        self.parameters = parameters
        self.fingerprint = fingerprint
        self.steps = frozenset(steps)
        self._data = data

    @cached_property
    def galois_keys(self) -> Any:
        return ring(self.parameters).load("GaloisKeys", self._data)

    def to_bytes(self) -> bytes:
        fields = {"pair": self.fingerprint, "steps": sorted(self.steps), "keys": self._data}
        return _frame(self._KIND, self.parameters, **fields)

    @classmethod
    def from_bytes(cls, data: bytes) -> Rotations:
        parameters, fields = _unframe(cls._KIND, data, pair=bytes, steps=list, keys=bytes)
        if any(type(step) is not int for step in fields["steps"]):
            raise PayloadError(f"damaged {cls._KIND}: a step is not a whole number")
        rotations = cls(parameters, fields["pair"], fields["steps"], fields["keys"])
        if not all(rotations.galois_keys.has_key(galois(s, parameters)) for s in rotations.steps):
            raise PayloadError(f"damaged {cls._KIND}: a step has no key")
        return rotations


def galois(step: int, parameters: Parameters) -> int:
    """The automorphism X ↦ X^g that moves every slot ``step`` places to the front."""
    return pow(3, step % parameters.slots, 2 * parameters.degree)


class SecretKey:
    """The whole pair. It stays with the clients; a payload cannot carry it."""

    _KIND = "secret key"

    def __init__(self, parameters: Parameters, data: bytes, public: PublicKey) -> None:
        self.parameters = parameters
        self.public = public
        self._data = data
        self._key = ring(parameters).load("SecretKey", data)

    @property
    def fingerprint(self) -> bytes:
        return self.public.fingerprint

    def rotations(self, steps: Sequence[int]) -> Rotations:
        """Rotation keys for exactly these steps, to be given to the coordinator."""
        generator = seal().KeyGenerator(ring(self.parameters).context, self._key)
        keys = generator.create_galois_keys([galois(step, self.parameters) for step in steps])
        return Rotations(self.parameters, self.fingerprint, steps, dump(keys))

    def to_bytes(self) -> bytes:
        return _frame(self._KIND, self.parameters, key=self._data, public=self.public.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> SecretKey:
        parameters, fields = _unframe(cls._KIND, data, key=bytes, public=bytes)
        public = PublicKey.from_bytes(fields["public"])
        if public.parameters != parameters:
            raise PayloadError(f"damaged {cls._KIND}: its public part has other parameters")
        return cls(parameters, fields["key"], public)

    def encrypt_block(self, plaintext: Any) -> bytes:
        """A ciphertext's bytes: half as many as by the public key, since one of the two
        polynomials is uniformly random and its seed can stand for it."""
        encryptor = seal().Encryptor(ring(self.parameters).context, self._key)
        return dump(encryptor.encrypt_symmetric(plaintext))

    def decrypt_block(self, ciphertext: Any) -> Slots:
        api, here = seal(), ring(self.parameters)
        plaintext = api.Plaintext()
        api.Decryptor(here.context, self._key).decrypt(ciphertext, plaintext)
        return np.array(here.encoder.decode_complex(plaintext))


def generate(
    parameters: Parameters = CLIENT, *, allow_weak: bool = False, seed: bytes | None = None
) -> SecretKey:
    """A new key pair; the same from the same ``seed`` of secret random bytes."""
    parameters.check(allow_weak=allow_weak)
    contexts = [ring(parameters).context] * 2
    if seed is not None:  # two sequences: errors of the public key must not follow the secret
        draws = (hashlib.blake2b(seed, person=person).digest() for person in (b"secret", b"public"))
        contexts = [context(parameters, draw) for draw in draws]
    secret = seal().KeyGenerator(contexts[0]).secret_key()
    public = seal().PublicKey()
    seal().KeyGenerator(contexts[1], secret).create_public_key(public)
    pair = PublicKey(parameters, dump(public))
    return SecretKey(parameters, dump(secret), pair)


# --- files ---------------------------------------------------------------------------------------


def create(
    folder: str | Path, name: str, parameters: Parameters = CLIENT, *, overwrite: bool = False
) -> SecretKey:
    """A new pair, stored as ``name.secret`` and ``name.public``."""
    pair = generate(parameters)
    store(folder, name, pair, overwrite=overwrite)
    return pair


def store(folder: str | Path, name: str, pair: SecretKey, *, overwrite: bool = False) -> None:
    """Keep a pair: the folder open to its owner alone (0700), the secret file as well (0600).

    An existing secret is what past ciphertexts can be read with; it is only replaced on request.
    """
    secret, public = _paths(folder, name)
    secret.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_open(secret.parent, secret.parent.stat(), "700")
    if secret.exists() and not overwrite:
        raise UsageError(
            f"store(name={name!r}): {secret} exists", hint="overwrite=True replaces it for good"
        )
    write_file(secret, pair.to_bytes(), 0o600, overwrite=overwrite)
    write_file(public, pair.public.to_bytes(), 0o644, overwrite=True)


def load(folder: str | Path, name: str) -> SecretKey:
    """A stored pair. A secret file that others can read is refused: it may be secret no more."""
    path, _ = _paths(folder, name)
    return SecretKey.from_bytes(read_private(path))


def default_folder() -> Path:
    """Where this machine keeps its keys: ``$SOLERA_KEYS``, or ``~/.solera/keys``."""
    return Path(os.environ.get("SOLERA_KEYS") or Path.home() / ".solera" / "keys")


def find(name: str) -> SecretKey:
    """The pair of that name in :func:`default_folder`, read once."""
    path, _ = _paths(default_folder(), name)
    return _find(name, path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=8)
def _find(name: str, path: Path, modified: int) -> SecretKey:
    return load(path.parent, name)


def load_public(folder: str | Path, name: str) -> PublicKey:
    """The public part of a stored pair, for the coordinator."""
    _, path = _paths(folder, name)
    try:
        return PublicKey.from_bytes(path.read_bytes())
    except OSError as error:
        raise UsageError(f"load_public(name={name!r}): {path}: {error.strerror}") from None


def _paths(folder: str | Path, name: str) -> tuple[Path, Path]:
    if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise UsageError(f"key name {name!r}: only letters, digits, '_', '.' and '-' are allowed")
    return Path(folder) / f"{name}.secret", Path(folder) / f"{name}.public"
