"""What every additive cipher can do: vectors of whole numbers, encrypted, times plain matrices."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from solera.core.clients import FloatArray, IntArray
from solera.core.errors import PayloadError, UsageError

Scheme = Literal["ckks", "paillier", "plain"]
Blocks = list[bytes]
"""Ciphertexts as they travel."""


class WeakCipher(UserWarning):
    """Encryption below 128 bits of security was asked for explicitly."""


@dataclass(frozen=True, slots=True)
class Form:
    """Which numbers are encrypted, and for what.

    ``vectors`` V of ``rows`` R whole numbers each meet matrices of R × C whole numbers; every sum
    Σ_i v_i M_ij, and every Σ_i |v_i|, stays below 2^``sum_bits``. ``block`` rows share a ciphertext
    where the cipher has room for several.
    """

    vectors: int
    rows: int
    sum_bits: int
    block: int

    def check(self) -> None:
        """Refuse what no honest sender makes."""
        numbers = (self.vectors, self.rows, self.sum_bits, self.block)
        if any(type(number) is not int or number < 1 for number in numbers):
            raise PayloadError(f"{self}: whole numbers >= 1 are needed")
        if self.rows > 1 << 30 or self.vectors > 1 << 16 or self.sum_bits > 1000:
            raise PayloadError(f"{self}: too large")

    def to_list(self) -> list[int]:
        return [self.vectors, self.rows, self.sum_bits, self.block]

    @classmethod
    def from_list(cls, numbers: Any) -> Form:
        """Inverse of :meth:`to_list` for numbers of unknown origin, checked."""
        if not isinstance(numbers, list) or len(numbers) != 4:
            raise PayloadError("damaged form of encrypted vectors")
        form = cls(*numbers)
        form.check()
        return form

    @property
    def blocks(self) -> int:
        return math.ceil(self.rows / self.block)

    def checked_values(self, values: Any) -> IntArray:
        """The values to encrypt: V × R, within their bound."""
        found = np.asarray(values)
        if found.shape != (self.vectors, self.rows) or found.dtype.kind not in "iu":
            raise UsageError(
                f"encrypt: {found.dtype} of shape {found.shape} are not {self.vectors} vectors of "
                f"{self.rows} whole numbers"
            )
        if np.abs(found).max(initial=0) >= 2.0**self.sum_bits:
            raise UsageError(f"encrypt: numbers reach 2^{self.sum_bits}, the bound of their sums")
        return found.astype(np.int64)

    def checked_matrix(self, matrix: Any) -> Any:
        found = np.asarray(matrix)
        if found.ndim != 2 or len(found) != self.rows or found.dtype.kind not in "biu":
            raise UsageError(
                f"multiply: {found.dtype} of shape {found.shape} is no matrix of whole numbers "
                f"with {self.rows} rows"
            )
        return found


@dataclass(frozen=True, slots=True)
class Products:
    """Encrypted sums, vectors × columns, on their way to the holder of the secret key.

    ``masks`` stay with whoever made them; without masks the key holder reads the sums.
    """

    blocks: Blocks
    masks: Any


class PublicKey(ABC):
    """Encrypts, adds and multiplies; reads nothing."""

    scheme: ClassVar[Scheme]

    @property
    @abstractmethod
    def security(self) -> int:
        """Bits of security."""

    @abstractmethod
    def to_bytes(self) -> bytes: ...

    @abstractmethod
    def form(self, *, vectors: int, rows: int, columns: int, sum_bits: int) -> Form:
        """The form that costs least for matrices of so many columns."""

    @abstractmethod
    def encrypt(self, values: Any, form: Form) -> Blocks:
        """V × R whole numbers, each time as other bytes."""

    @abstractmethod
    def add(self, parts: Sequence[Blocks], form: Form) -> Blocks:
        """The encrypted sum of encrypted vectors."""

    @abstractmethod
    def prepare(self, matrix: Any, form: Form) -> Any:
        """A matrix R × C, made ready for many products."""

    @abstractmethod
    def multiply(self, encrypted: Blocks, prepared: Any, form: Form, *, masked: bool) -> Products:
        """Encrypted sums V × C that say nothing else about the matrix.

        They are made as random as new ciphertexts, so that their bytes do not tell the matrix to
        whoever knows ``encrypted``. ``masked``: uniformly random numbers are added to the sums, so
        that the key holder learns nothing at all.
        """

    @abstractmethod
    def unmask(self, residues: Blocks, masks: Any, form: Form, columns: int) -> FloatArray:
        """The sums V × C in what the key holder decrypted; ``masks`` is None without masks."""


class SecretKey(ABC):
    """The whole pair."""

    public: PublicKey

    @abstractmethod
    def to_bytes(self) -> bytes: ...

    def encrypt(self, values: Any, form: Form) -> Blocks:
        """As by the public key; a holder of the secret key may have a cheaper way."""
        return self.public.encrypt(values, form)

    @abstractmethod
    def decrypt(self, blocks: Blocks, form: Form, columns: int) -> Blocks:
        """What the ciphertexts of products hold, for :meth:`PublicKey.unmask`."""
