"""Four owners, their keys, secrets and rows, and an epoch that they can sign."""

from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from solera.trust.epoch import Dictionary, Draft, Epoch, Owner, SignedEpoch, Snapshot

DICTIONARY = Dictionary.parse(
    """
identifier = "patient"
target = "died"
[columns]
age = { bounds = [0, 120] }
sex = { kind = "categorical", categories = ["female", "male"] }
died = { kind = "categorical", categories = ["no", "yes"] }
[populations.elderly]
age = { min = 65 }
[populations.women]
sex = { in = ["female"] }
"""
)
NAMES = ("north", "south", "east", "west")


class Key:
    """A key to sign with."""

    def __init__(self, seed: int) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        self.sign_key = self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


@dataclass
class Hospital:
    """An owner as it is at home: key, secret and table."""

    name: str
    key: Key
    secret: bytes
    values: np.ndarray
    persons: list[str]

    def snapshot(self, dictionary: Dictionary = DICTIONARY) -> Snapshot:
        return Snapshot.of(self.secret, dictionary, self.values, self.persons)

    def part(self, dictionary: Dictionary = DICTIONARY) -> Owner:
        taken = self.snapshot(dictionary)
        return Owner(self.name, self.key.sign_key, taken.commitment, taken.person_count, {"n": "1"})


def hospital(i: int, rows: int = 100) -> Hospital:
    draw = np.random.default_rng(i)
    values = np.column_stack(
        [draw.integers(40, 90, rows), draw.integers(0, 2, rows), draw.integers(0, 2, rows)]
    ).astype(float)
    persons = [f"{NAMES[i % 4]}-{row}" for row in range(rows)]
    name = NAMES[i] if i < 4 else f"owner-{i}"
    return Hospital(name, Key(i + 1), bytes([i]) * 32, values, persons)


def epoch_of(hospitals: list[Hospital], dictionary: Dictionary = DICTIONARY) -> Epoch:
    draft = Draft(dictionary, tuple(h.name for h in hospitals), "heart")
    return Epoch(draft, tuple(h.part(dictionary) for h in hospitals))


def four() -> list[Hospital]:
    return [hospital(i) for i in range(4)]


def signed_by(hospitals: list[Hospital], epoch: Epoch) -> SignedEpoch:
    return SignedEpoch(epoch, tuple(epoch.sign(h.key) for h in hospitals))
