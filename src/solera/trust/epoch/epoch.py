"""An epoch: a data freeze that all owners have signed.

A *draft* is a dictionary and who is to sign it. Each owner enters its *part* (its key, and a
commitment to its rows). Draft and parts are what people compare by voice and sign. Then the owners'
agents find the atoms (:mod:`solera.trust.board.atoms`) and sign all of it: that is the epoch in
which jobs run.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from solera.core.config import Problem, errors_located, read_text
from solera.core.errors import PayloadError, SoleraError, UsageError
from solera.core.payload import decode, encode
from solera.trust.epoch.atoms import Atoms
from solera.trust.epoch.dictionary import Dictionary
from solera.trust.epoch.dictionary_file import EPOCH_TABLE, dictionary_text, from_tables, quoted
from solera.trust.epoch.runtime import differences
from solera.trust.epoch.words import words_of
from solera.trust.signatures import KEY, Signer, signed_message, verify

FEWEST_OWNERS = 3
MOST_OWNERS = 64
RECOMMENDED_OWNERS = 4
_EPOCH, _WITHOUT_ATOMS = "solera epoch 2", "solera epoch 1"


class EpochError(SoleraError, ValueError):
    """An epoch, a part of one or a signature that is not what it must be."""


@dataclass(frozen=True)
class Draft:
    """A dictionary, who is to sign it, and which epoch came before.

    ``owners`` are their names, in the order in which every job counts them.
    """

    dictionary: Dictionary
    owners: tuple[str, ...]
    federation: str = ""
    min_count: int = 5
    previous: str = ""

    def __post_init__(self) -> None:
        where = (EPOCH_TABLE, "owners")
        if len(set(self.owners)) < len(self.owners):
            raise Problem(where, "an owner is named twice")
        if not FEWEST_OWNERS <= len(self.owners) <= MOST_OWNERS:
            raise Problem(
                where,
                f"an epoch has {FEWEST_OWNERS} to {MOST_OWNERS} owners, not {len(self.owners)}",
                hint="with three, each reads the sum of two others: four are better",
            )
        if self.min_count < 2:
            raise Problem((EPOCH_TABLE, "min_count"), "min_count must be at least 2")

    @classmethod
    def read(cls, path: Any) -> Self:
        """The draft of a file: a dictionary with a table ``[epoch]``."""
        return cls.parse(read_text(path, hint="solera dictionary draft"), file=str(path))

    @classmethod
    def parse(cls, text: str, *, file: str = "dictionary.toml") -> Self:
        """The draft that TOML text declares."""
        with errors_located(text, file):
            content = tomllib.loads(text)
            about = content.get(EPOCH_TABLE)
            if not isinstance(about, Mapping):
                raise Problem((), "nothing says who is to sign", hint='[epoch] owners = ["…"]')
            kinds = {"owners": list, "federation": str, "min_count": int, "previous": str}
            for name, value in about.items():
                if name not in kinds or type(value) is not kinds[name]:
                    raise Problem((EPOCH_TABLE, name), f"[epoch] takes no {name} = {value!r}")
            names = about.get("owners", [])
            if not all(isinstance(name, str) and name.isprintable() for name in names):
                raise Problem((EPOCH_TABLE, "owners"), "owners are a list of names")
            return cls(from_tables(Dictionary, content), **{**about, "owners": tuple(names)})

    def toml(self) -> str:
        """The draft as its file has it; equal drafts have equal text."""
        lines = ["[epoch]"]
        if self.federation:
            lines.append(f"federation = {quoted(self.federation)}")
        lines.append(f"owners = [{', '.join(map(quoted, self.owners))}]")
        lines.append(f"min_count = {self.min_count}")
        if self.previous:
            lines.append(f"previous = {quoted(self.previous)}")
        return f"{dictionary_text(self.dictionary)}\n" + "\n".join(lines) + "\n"

    @cached_property
    def hash(self) -> bytes:
        """32 bytes that name this draft."""
        return hashlib.sha256(signed_message("epoch draft", self.toml())).digest()


@dataclass(frozen=True, slots=True)
class Owner:
    """What one owner enters: its key, a salted commitment to its rows, and its runtime."""

    name: str
    key: bytes
    commitment: bytes
    persons: int
    runtime: Mapping[str, str] = field(default_factory=dict)

    def to_payload(self) -> list[Any]:
        return [self.name, self.key, self.commitment, self.persons, dict(self.runtime)]

    @classmethod
    def from_payload(cls, fields: Any) -> Self:
        """The part that a payload holds, or a :class:`EpochError`."""
        try:
            name, key, commitment, persons, runtime = fields
        except (TypeError, ValueError):
            raise EpochError("an owner's part is damaged") from None
        kinds = (type(name), type(key), type(commitment), type(persons), type(runtime))
        intact = kinds == (str, bytes, bytes, int, dict) and persons > 0
        if not intact or (len(key), len(commitment)) != (KEY, 32) or not _is_text(runtime):
            raise EpochError("an owner's part is damaged")
        return cls(name, key, commitment, persons, runtime)

    def encode(self) -> bytes:
        """The bytes of the part, as its owner enters it."""
        return encode(["solera epoch part 1", self.to_payload()])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The part of such bytes."""
        return cls.from_payload(_content(data, "solera epoch part 1"))


@dataclass(frozen=True)
class Epoch:
    """A draft and what every owner entered, in the draft's order of owners.

    ``atoms`` are None until the owners' agents have found them.

    Examples
    --------
    >>> import numpy as np, solera as so
    >>> X, y = np.arange(160.0).reshape(80, 2), np.arange(80) % 2
    >>> fed = so.simulate(X, y, clients=4, dictionary=so.epochs.draft(X, y))
    >>> epoch = fed.configuration.epoch
    >>> [owner.persons for owner in epoch.owners]
    [20, 20, 20, 20]
    >>> len(epoch.words().split())
    5
    """

    draft: Draft
    owners: tuple[Owner, ...]
    atoms: Atoms | None = None

    def __post_init__(self) -> None:
        names = tuple(owner.name for owner in self.owners)
        if names != self.draft.owners:
            absent = [name for name in self.draft.owners if name not in names]
            raise EpochError(
                f"still to enter their part: {', '.join(absent)}"
                if absent
                else "the parts are not those of the draft's owners, in its order"
            )
        if len(set(self.keys)) < len(self.owners):
            raise EpochError("two owners of the epoch have the same key")
        first = self.owners[0]
        for owner in self.owners[1:]:
            if differs := differences(owner.runtime, first.runtime):
                raise EpochError(
                    f"{owner.name} does not compute with what {first.name} does: "
                    f"{'; '.join(differs)}",
                    hint="solera doctor",
                )

    @property
    def dictionary(self) -> Dictionary:
        """The columns, target and populations."""
        return self.draft.dictionary

    @property
    def min_count(self) -> int:
        """The fewest persons that anything is told about."""
        return self.draft.min_count

    @cached_property
    def hash(self) -> bytes:
        """32 bytes that name the epoch."""
        return hashlib.sha256(self.encode()).digest()

    @property
    def agreed(self) -> Epoch:
        """What people sign: all but the atoms."""
        return replace(self, atoms=None)

    def words(self) -> str:
        """What people sign, in five words: they compare them by voice before they do."""
        return words_of(self.agreed.hash)

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The owners' public keys, in the epoch's order."""
        return tuple(owner.key for owner in self.owners)

    def number(self, name: str) -> int:
        """The place of an owner in the order in which every job counts them."""
        if name not in self.draft.owners:
            raise UsageError(f"{name!r} is no owner of the epoch")
        return self.draft.owners.index(name)

    def encode(self) -> bytes:
        """The bytes that say all of it, and nothing else does."""
        owners = [owner.to_payload() for owner in self.owners]
        return encode([_EPOCH, [self.draft.toml(), owners, self.atoms]])

    @classmethod
    def decode(cls, data: bytes, *, past: bool = False) -> Self:
        """The epoch of such bytes; those of a version without atoms only as a ``past`` one."""
        try:
            if _kind_of(data) == _WITHOUT_ATOMS:
                if not past:
                    raise EpochError(
                        "this epoch was signed with an earlier version, which had no atoms",
                        hint="solera dictionary draft --next --out next.toml, then at every owner "
                        "solera dictionary sign next.toml",
                    )
                epoch = cls(*cls._parts(*_content(data, _WITHOUT_ATOMS)))
                vars(epoch)["hash"] = hashlib.sha256(data).digest()
                return epoch
            text, owners, atoms = _content(data, _EPOCH)
            draft, parts = cls._parts(text, owners)
            if atoms is not None:
                atoms = Atoms.from_payload(atoms, draft.dictionary)
            return cls(draft, parts, atoms)
        except EpochError:
            raise
        except (TypeError, ValueError) as error:
            reason = error.message if isinstance(error, SoleraError) else str(error)
            raise EpochError(f"this is no epoch: {reason}") from None

    @staticmethod
    def _parts(text: Any, owners: Any) -> tuple[Draft, tuple[Owner, ...]]:
        if not isinstance(text, str):
            raise TypeError("its draft is no text")
        return Draft.parse(text), tuple(map(Owner.from_payload, owners))

    def sign(self, identity: Signer, *, consent: str = "") -> Signature:
        """The signature of an owner, with what it consents to, or of one that has left."""
        message = _message(self.hash, consent)
        return Signature(identity.sign_key, identity.sign(message), consent)

    def verify(self, signatures: Iterable[Signature], earlier: Sequence[Epoch] = ()) -> None:
        """Raise :class:`EpochError` unless all have signed, and consented where they must.

        ``earlier`` are epochs before this one: an owner that came or left alone must consent, since
        the difference of two totals would be its own. Who leaves signs all but atoms.
        """
        valid: dict[bytes, Signature] = {}
        settled: set[bytes] = set()
        for signature in signatures:
            if signature.is_of(self):
                settled.add(signature.key)
            elif not signature.is_of(self.agreed):
                raise EpochError(
                    f"a signature of key {signature.key.hex()[:16]}… is not of this epoch"
                )
            valid[signature.key] = signature
        absent = [owner.name for owner in self.owners if owner.key not in settled]
        if absent:
            raise EpochError(f"not signed yet by {', '.join(absent)}")
        for epoch in earlier:
            if (owner := lone_change(epoch, self)) is None:
                continue
            if owner.key not in valid or not valid[owner.key].consent:
                raise EpochError(
                    f"{owner.name} alone came or left since an earlier epoch, and does not consent",
                    hint=consent_to_lone_change(owner),
                )


@dataclass(frozen=True, slots=True)
class Signature:
    """An owner's signature of an epoch, and in writing what it consents to."""

    key: bytes
    value: bytes
    consent: str = ""

    def to_payload(self) -> list[Any]:
        return [self.key, self.value, self.consent]

    @classmethod
    def from_payload(cls, fields: Any) -> Self:
        """The signature that a payload holds."""
        try:
            key, signature, consent = fields
        except (TypeError, ValueError):
            raise EpochError("a signature is damaged") from None
        if (type(key), type(signature), type(consent)) != (bytes, bytes, str):
            raise EpochError("a signature is damaged")
        return cls(key, signature, consent)

    def encode(self) -> bytes:
        """The bytes of the signature, as its owner gives it."""
        return encode(["solera epoch signature 1", self.to_payload()])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The signature of such bytes."""
        return cls.from_payload(_content(data, "solera epoch signature 1"))

    def is_of(self, epoch: Epoch) -> bool:
        """Whether the owner of its key made it for this epoch and consent."""
        return verify(self.key, _message(epoch.hash, self.consent), self.value)


@dataclass(frozen=True)
class SignedEpoch:
    """An epoch and its signatures, as one file."""

    epoch: Epoch
    signatures: tuple[Signature, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The owners of whom nobody has signed."""
        signed = {signature.key for signature in self.signatures}
        return tuple(owner.name for owner in self.epoch.owners if owner.key not in signed)

    @property
    def unsettled(self) -> tuple[str, ...]:
        """The owners whose agents have yet to sign the atoms."""
        epoch = self.epoch
        settled = {s.key for s in self.signatures if epoch.atoms and s.is_of(epoch)}
        return tuple(owner.name for owner in epoch.owners if owner.key not in settled)

    def encode(self) -> bytes:
        """The bytes of the file."""
        signatures = [signature.to_payload() for signature in self.signatures]
        return encode(["solera signed epoch 1", [self.epoch.encode(), signatures]])

    @classmethod
    def decode(cls, data: bytes, *, past: bool = False) -> Self:
        """The epoch and signatures of a file; they are not verified yet."""
        try:
            epoch, signatures = _content(data, "solera signed epoch 1")
            return cls(
                Epoch.decode(epoch, past=past), tuple(map(Signature.from_payload, signatures))
            )
        except EpochError:
            raise
        except (TypeError, ValueError):
            raise EpochError("this is no signed epoch") from None

    def verify(self, earlier: Sequence[Epoch] = ()) -> Epoch:
        """The epoch, if all owners have signed it and consented where they must."""
        self.epoch.verify(self.signatures, earlier)
        return self.epoch


def lone_change(before: Epoch, after: Epoch) -> Owner | None:
    """The one owner by which two epochs differ; None where none or several do."""
    old = {owner.key: owner for owner in before.owners}
    new = {owner.key: owner for owner in after.owners}
    changed = [*(new[k] for k in new if k not in old), *(old[k] for k in old if k not in new)]
    return changed[0] if len(changed) == 1 else None


def consent_to_lone_change(owner: Owner) -> str:
    """What an owner that comes or leaves alone is told, and consents to."""
    return (
        f"{owner.name} alone comes or leaves: whoever has the totals of one job in both epochs "
        f"can subtract them, and has the totals of {owner.name} alone"
    )


def _is_text(table: Mapping[str, Any]) -> bool:
    return all(isinstance(value, str) for value in table.values())


def _content(data: bytes, kind: str) -> Any:
    """What follows the kind in a file, or an :class:`EpochError`."""
    try:
        named, content = decode(data)
        if named != kind or not isinstance(content, list):
            raise ValueError
    except (TypeError, ValueError, PayloadError):
        raise EpochError(f"this is no {kind.removeprefix('solera ')[:-2]}") from None
    return content


def _kind_of(data: bytes) -> Any:
    """The kind that a file says it is."""
    try:
        return decode(data)[0]
    except (TypeError, ValueError, LookupError, PayloadError):
        return None


def _message(epoch_hash: bytes, consent: str) -> bytes:
    return signed_message("epoch", epoch_hash, consent)
