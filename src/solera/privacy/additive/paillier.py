"""Paillier's cipher behind the interface of additive ciphers: several numbers in a plaintext.

All V numbers of a row share one ciphertext, each in a field of its own, wide enough for its sum. A
column of a matrix is a product of powers: of the ciphertexts themselves where the matrix holds
zeros and ones, otherwise by buckets of eight bits of the exponents (Pippenger 1976). The sums of
many columns are shifted into one ciphertext before they travel, so that few are to be decrypted.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.clients import FloatArray, IntArray
from solera.core.errors import PayloadError, UsageError
from solera.core.payload import decode, encode
from solera.privacy.additive.interface import (
    Blocks,
    Form,
    Products,
    PublicKey,
    SecretKey,
    WeakCipher,
)
from solera.privacy.additive.paillier_numbers import SIZES, Factors, Modulus, generate_factors, gmp

_WINDOW = 8
"""Bits of an exponent that are looked at together."""
_KIND = "paillier"


class PaillierKey(PublicKey):
    """The public part of a pair."""

    scheme = "paillier"

    def __init__(self, modulus: Modulus) -> None:
        self.modulus = modulus

    @property
    def security(self) -> int:
        return self.modulus.security

    def to_bytes(self) -> bytes:
        numbers = [int(x).to_bytes(self.modulus.length, "little") for x in self._numbers()]
        return encode({"kind": _KIND, "bits": self.modulus.bits, "numbers": numbers})

    def _numbers(self) -> tuple[Any, Any]:
        return self.modulus.n, self.modulus.power

    @classmethod
    def from_bytes(cls, data: bytes) -> PaillierKey:
        n, power = _read(data, _KIND, 2)
        if n.bit_length() not in SIZES or not n % 2:
            raise PayloadError("damaged key: n is not of a length that is used")
        if not 1 < power < n * n or gmp().gcd(power, n) != 1:
            raise PayloadError("damaged key: no power of it makes ciphertexts random")
        return cls(Modulus(n, power))

    def form(self, *, vectors: int, rows: int, columns: int, sum_bits: int) -> Form:
        form = Form(vectors, rows, sum_bits, 1)
        self._columns_together(form)
        return form

    def _columns_together(self, form: Form) -> int:
        """Columns whose sums fit into one plaintext."""
        together = (self.modulus.bits - 2) // (_width(form) * form.vectors)
        if not together:
            raise UsageError(f"{form.vectors} vectors of {form.sum_bits} bits do not fit together")
        return together

    def encrypt(self, values: Any, form: Form) -> Blocks:
        checked = form.checked_values(values)
        modulus = self.modulus
        packed = _packed(checked, _width(form))
        return [b"".join(modulus.write(modulus.encrypt(number)) for number in packed)]

    def add(self, parts: Sequence[Blocks], form: Form) -> Blocks:
        modulus = self.modulus
        total, *others = (self._read_rows(part, form) for part in parts)
        for other in others:
            total = [a * b % modulus.square for a, b in zip(total, other, strict=True)]
        return [b"".join(map(modulus.write, total))]

    def _read_rows(self, encrypted: Blocks, form: Form) -> list[Any]:
        """The ciphertexts of all rows, which travel as one string of bytes."""
        length = self.modulus.length
        if len(encrypted) != 1 or len(encrypted[0]) != form.rows * length:
            raise PayloadError(f"these ciphertexts are not those of {form}")
        whole = encrypted[0]
        starts = range(0, len(whole), length)
        return [self.modulus.read(whole[start : start + length]) for start in starts]

    def prepare(self, matrix: Any, form: Form) -> _Chained:
        return _Chained(form.checked_matrix(matrix))

    def multiply(self, encrypted: Blocks, prepared: Any, form: Form, *, masked: bool) -> Products:
        modulus = self.modulus
        received = self._read_rows(encrypted, form)
        powers = prepared.powers(received, modulus)
        together = self._columns_together(form)
        shift = gmp().mpz(1) << (_width(form) * form.vectors)
        blocks, masks = [], []
        for first in range(0, len(powers), together):
            total = gmp().mpz(1)
            for power in reversed(powers[first : first + together]):
                total = gmp().powmod(total, shift, modulus.square) * power % modulus.square
            total = total * modulus.zero() % modulus.square
            if masked:
                mask = secrets.randbelow(int(modulus.n))
                total = total * modulus.plain(mask) % modulus.square
                masks.append(mask.to_bytes(modulus.length, "little"))
            blocks.append(modulus.write(total))
        return Products(blocks, masks if masked else None)

    def unmask(self, residues: Blocks, masks: Any, form: Form, columns: int) -> FloatArray:
        n, together = self.modulus.n, self._columns_together(form)
        masks = [bytes(1)] * len(residues) if masks is None else masks
        sums: list[int] = []
        for residue, mask in zip(residues, masks, strict=True):
            number = (_number(residue) - _number(mask)) % n
            number = number - n if number > n // 2 else number
            count = min(together, columns - len(sums) // form.vectors) * form.vectors
            sums += _unpacked(number, _width(form), count)
        if len(sums) != columns * form.vectors:
            raise PayloadError(f"damaged residues: {len(sums)} numbers of {columns} columns")
        found = np.array([float(number) for number in sums]).reshape(columns, form.vectors).T
        if np.abs(found).max(initial=0) >= 2.0**form.sum_bits:
            raise PayloadError("damaged residues: sums are beyond their bound")
        return found


class PaillierSecret(SecretKey):
    """The pair."""

    def __init__(self, factors: Factors, modulus: Modulus) -> None:
        self.factors = factors
        self.key = PaillierKey(modulus)
        self.public = self.key

    def to_bytes(self) -> bytes:
        modulus = self.key.modulus
        factors = [
            int(x).to_bytes(modulus.length, "little") for x in (self.factors.p, self.factors.q)
        ]
        return encode(
            {
                "kind": f"{_KIND} secret",
                "bits": modulus.bits,
                "numbers": factors,
                "public": self.key.to_bytes(),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> PaillierSecret:
        p, q = _read(data, f"{_KIND} secret", 2)
        public = PaillierKey.from_bytes(decode(data)["public"])
        if p * q != public.modulus.n:
            raise PayloadError("damaged key: its primes are not those of n")
        return cls(Factors(p, q), public.modulus)

    def decrypt(self, blocks: Blocks, form: Form, columns: int) -> Blocks:
        modulus = self.key.modulus
        if len(blocks) != -(-columns // self.key._columns_together(form)):
            raise PayloadError(f"{len(blocks)} ciphertexts are not those of {columns} columns")
        numbers = [self.factors.decrypt(modulus.read(block)) for block in blocks]
        return [int(number).to_bytes(modulus.length, "little") for number in numbers]


def generate(bits: int = 3072, seed: bytes | None = None) -> PaillierSecret:
    """A new pair; the same from the same ``seed`` of secret random bytes."""
    if bits not in SIZES:
        raise UsageError.of("generate", "bits", bits, f"must be one of {SIZES}")
    if bits < 3072:
        warnings.warn(
            f"WEAK ENCRYPTION: Paillier with {bits} bits has 112 bits of security, 3072 have 128",
            WeakCipher,
            stacklevel=2,
        )
    return PaillierSecret(*generate_factors(bits, seed))


def _width(form: Form) -> int:
    """Bits of a field: the sum, its sign, and one that is never used."""
    return form.sum_bits + 2


def _packed(values: IntArray, width: int) -> list[Any]:
    """Σ_v v_i 2^(v·width) of every row."""
    total = [gmp().mpz(0)] * values.shape[1]
    for vector in values[::-1].tolist():
        total = [(high << width) + low for high, low in zip(total, vector, strict=True)]
    return total


def _unpacked(number: Any, width: int, count: int) -> list[int]:
    """The signed fields of a number, the lowest first."""
    fields, half, all_ones = [], 1 << (width - 1), (1 << width) - 1
    for _ in range(count):
        field = int(number & all_ones)
        field = field - (1 << width) if field >= half else field
        fields.append(field)
        number = (number - field) >> width
    if number:
        raise PayloadError("damaged residues: numbers are left over")
    return fields


class _Chained:
    """A matrix whose columns begin where another one ends.

    Of zeros and ones, a column that contains another one needs the ciphertexts of its further rows
    alone: splits x ≤ 1, x ≤ 2, … of one column cost as much as a single one.
    """

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.order = list(range(matrix.shape[1]))
        self.inner: list[int | None] = [None] * matrix.shape[1]
        if matrix.size and matrix.min() >= 0 and matrix.max() <= 1:
            self._find_chains()

    def _find_chains(self) -> None:
        marks = self.matrix.astype(np.float32)
        shared = marks.T @ marks
        counts = np.diagonal(shared)
        self.order = np.argsort(counts, kind="stable").tolist()
        for place, column in enumerate(self.order):
            smaller = self.order[:place]
            contained = [c for c in smaller if shared[c, column] == counts[c] > 0]
            self.inner[column] = contained[-1] if contained else None

    def powers(self, ciphertexts: Sequence[Any], modulus: Modulus) -> list[Any]:
        """Π c_i^(M_ij) of every column."""
        found: dict[int, Any] = {}
        for column in self.order:
            exponents = self.matrix[:, column].astype(np.int64)
            start = self.inner[column]
            if start is None:
                found[column] = _column_power(ciphertexts, exponents, modulus)
                continue
            rest = exponents - self.matrix[:, start]
            more = _column_power(ciphertexts, rest, modulus)
            found[column] = found[start] * more % modulus.square
        return [found[column] for column in range(len(found))]


def _column_power(ciphertexts: Sequence[Any], column: Any, modulus: Modulus) -> Any:
    """Π c_i^(x_i) modulo n²."""
    some = np.flatnonzero(column)
    exponents = column[some]
    square = modulus.square
    negative = exponents < 0
    powers = [gmp().mpz(1), gmp().mpz(1)]
    for side in (0, 1):
        chosen = some[negative == bool(side)]
        powers[side] = _positive_power(
            [ciphertexts[i] for i in chosen], np.abs(exponents[negative == bool(side)]), square
        )
    return powers[0] * gmp().invert(powers[1], square) % square


def _positive_power(bases: Sequence[Any], exponents: IntArray, square: Any) -> Any:
    """By buckets: bases with the same eight bits are multiplied first, then raised together."""
    one = gmp().mpz(1)
    if not len(bases):
        return one
    if (exponents == 1).all():
        return _product(bases, square)
    total = one
    windows = -(-int(exponents.max()).bit_length() // _WINDOW)
    for window in reversed(range(windows)):
        total = gmp().powmod(total, 1 << _WINDOW, square)
        digits = ((exponents >> (window * _WINDOW)) & ((1 << _WINDOW) - 1)).tolist()
        buckets: list[Any] = [None] * (1 << _WINDOW)
        for base, digit in zip(bases, digits, strict=True):
            known = buckets[digit]
            buckets[digit] = base if known is None else known * base % square
        running, raised = one, one
        for bucket in reversed(buckets[1:]):
            if bucket is not None:
                running = running * bucket % square
            raised = raised * running % square
        total = total * raised % square
    return total


def _product(numbers: Sequence[Any], square: Any) -> Any:
    total = gmp().mpz(1)
    for number in numbers:
        total = total * number % square
    return total


def _number(data: bytes) -> Any:
    if not isinstance(data, bytes):
        raise PayloadError("damaged residues: these are no numbers")
    return gmp().mpz.from_bytes(data, "little")


def _read(data: bytes, kind: str, count: int) -> list[Any]:
    fields = decode(data)
    if not isinstance(fields, dict) or fields.get("kind") != kind:
        raise PayloadError(f"these bytes are no {kind} key")
    numbers = fields.get("numbers")
    if not isinstance(numbers, list) or len(numbers) != count:
        raise PayloadError(f"damaged {kind} key")
    return [_number(number) for number in numbers]
