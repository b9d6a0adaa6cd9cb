"""The rows of one owner in one epoch: what they are bound to, whose they are, and where they count.

Everything follows from the rows and the owner's secret, so that the agent, a worker that starts
again and a simulation find the same: row order, folds and commitment. Nobody without the secret
can tell from a commitment which rows it is of, nor from a fold who is in it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray, IntArray
from solera.core.errors import DataError
from solera.core.payload import decode, encode
from solera.trust.epoch.dictionary import Dictionary
from solera.trust.epoch.populations import EVERYONE

FOLDS = 10
_MARK = 16


@dataclass(frozen=True)
class Snapshot:
    """Rows in the order that every job sees them.

    ``order`` are their places in the owner's table. ``persons`` and ``rows`` are keyed hashes of
    whose row each is and of what it holds; ``marks`` say in which populations it is, the first
    being all rows.
    """

    order: IntArray
    persons: Array
    rows: Array
    folds: IntArray
    marks: BoolArray
    populations: tuple[str, ...]
    known: IntArray
    """For every column, how many persons have a value."""
    commitment: bytes

    @classmethod
    def of(
        cls,
        secret: bytes,
        dictionary: Dictionary,
        values: FloatArray,
        persons: Sequence[str] | None = None,
    ) -> Self:
        """The snapshot of a table of all columns of a dictionary.

        Without ``persons`` equal rows are taken for one person's.
        """
        if not len(values):
            raise DataError("the data source has no rows")
        plain = np.ascontiguousarray(values + 0.0, dtype="<f8")  # −0 is 0
        plain[np.isnan(plain)] = np.nan
        rows = _marks(secret, "row", [row.tobytes() for row in plain])
        whose = rows
        if persons is not None:
            whose = _marks(secret, "person", [name.encode() for name in persons])
        order = np.lexsort((rows, whose))
        whose, rows = whose[order], rows[order]
        place = np.cumsum(np.concatenate([[False], whose[1:] != whose[:-1]]))
        known = ~np.isnan(plain[order])
        counts = [np.count_nonzero(np.bincount(place[column])) for column in known.T]
        return cls(
            order=order,
            persons=whose,
            rows=rows,
            folds=_folds(whose),
            marks=dictionary.marks(plain[order]),
            populations=dictionary.population_names,
            known=np.array(counts, dtype=np.int64),
            commitment=_commitment(secret, dictionary, whose, rows),
        )

    @property
    def person_count(self) -> int:
        """How many persons there are."""
        return len(np.unique(self.persons))

    def persons_in(self, population: str = EVERYONE) -> int:
        """How many persons have a row in a population."""
        return len(np.unique(self.persons[self.marks[:, self.populations.index(population)]]))

    def chosen(self, folds: Sequence[int], population: str = EVERYONE) -> IntArray:
        """The rows of these folds and this population, as places in the owner's table."""
        inside = self.marks[:, self.populations.index(population)]
        return np.asarray(self.order[inside & np.isin(self.folds, folds)])

    def encode(self) -> bytes:
        """What an owner keeps of an epoch, to see what the next one changes."""
        fields = ("persons", "rows", "marks", "populations", "commitment")
        return encode({"kind": "solera snapshot 1", **{f: getattr(self, f) for f in fields}})


@dataclass(frozen=True)
class PastSnapshot:
    """What an owner keeps of a snapshot: who was in it, with what, in which populations."""

    persons: Array
    rows: Array
    marks: BoolArray
    populations: tuple[str, ...]
    commitment: bytes

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """What :meth:`Snapshot.encode` wrote."""
        fields: dict[str, Any] = decode(data)
        if fields.pop("kind", None) != "solera snapshot 1":
            raise DataError("this is no snapshot of an epoch")
        return cls(**{**fields, "populations": tuple(fields["populations"])})


def person_mark(secret: bytes, person: str) -> bytes:
    """How a snapshot of this owner names a person."""
    return bytes(_marks(secret, "person", [person.encode()])[0])


def _commitment(secret: bytes, dictionary: Dictionary, persons: Array, rows: Array) -> bytes:
    columns = hashlib.sha256(dictionary.toml().encode()).digest()
    total = hmac.new(_key(secret, "commitment"), columns, "sha256")
    total.update(persons.tobytes())
    total.update(rows.tobytes())
    return total.digest()


def _key(secret: bytes, purpose: str) -> bytes:
    return hmac.digest(secret, f"solera epoch 1 {purpose}".encode(), "sha256")


def _marks(secret: bytes, purpose: str, contents: Sequence[bytes]) -> Array:
    """A keyed hash of each."""
    key = _key(secret, purpose)
    marks = b"".join(hmac.digest(key, content, "sha256")[:_MARK] for content in contents)
    return np.frombuffer(marks, dtype=f"S{_MARK}")


def _folds(marks: Array) -> IntArray:
    """The fold of each: what its keyed hash leaves when it is divided by ten."""
    halves = np.ascontiguousarray(marks).view(">u8").reshape(-1, 2)
    return (halves[:, 1] % FOLDS).astype(np.int64)
