"""Sums by coefficients: one product of polynomials adds up many rows for many columns.

A block of n rows of V vectors is the polynomial m(X) = Σ_v Σ_i v_i X^(vn + i), a matrix M the
polynomial p(X) = Σ_b Σ_i M_ib X^(bVn + n − 1 − i), and in m·p the coefficient bVn + vn + n − 1 is
Σ_i v_i M_ib: all vectors and N/(Vn) columns in one product of a ciphertext and a plaintext, without
the rotations and rotation keys that sums over slots need. Blocks of rows are added. R·C·V/N
products
do R rows and C columns, whatever n is; n decides how many ciphertexts travel up and down.

The cipher is CKKS, computed by Microsoft SEAL (:mod:`solera.privacy.he`), with whole numbers at a
scale so large that sums below 2^44 are exact after rounding.

What the key holder learns of the matrix
    The sums, and nothing else up to 2^−40. A new encryption of zero covers the ciphertext;
    otherwise its second polynomial, divided by the one that was sent, would be p itself. All other
    coefficients get masks uniform modulo q. And the product is divided by a prime of 60 bits, which
    takes the noise e·p, about 2^15, below 2^−40 of the rounding.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.clients import FloatArray
from solera.core.errors import PayloadError, UsageError
from solera.privacy import he
from solera.privacy.additive.interface import Blocks, Form, Products, PublicKey, SecretKey
from solera.privacy.he.packing import embed, extract
from solera.privacy.he.ring import dump, ring, seal

PARAMETERS = he.Parameters(8192, (60, 60, 30), scale_bits=74)
"""192 bits of security by the standard's table: 150 bits of modulus at N = 8192."""
EXACT_BITS = 44
"""Sums below this many bits are exact; up to 54 bits they are so to 2^−44 of the bound."""
_MOST_BITS = 54
_ROOM = 118
"""Bits of the modulus for sums and their scale: 120 less the sign and a reserve."""
_KEPT = 1 << 29
"""Bytes of encoded matrices that are kept; more are encoded anew for each product."""
_UP, _DOWN, _PRODUCT = 2.8, 5.0, 0.145
"""Milliseconds for a ciphertext up, one down, and a product (one core, 2026)."""


class CkksKey(PublicKey):
    """The public part of a pair."""

    scheme = "ckks"

    def __init__(self, key: he.PublicKey) -> None:
        if key.parameters != PARAMETERS:
            raise PayloadError(f"a key of {key.parameters} is not one for {PARAMETERS}")
        self.key = key
        self.ring = ring(PARAMETERS)

    @property
    def security(self) -> int:
        return PARAMETERS.security()

    def to_bytes(self) -> bytes:
        return self.key.to_bytes()

    def form(self, *, vectors: int, rows: int, columns: int, sum_bits: int) -> Form:
        degree = PARAMETERS.degree
        if sum_bits > _MOST_BITS or vectors > degree:
            raise UsageError(
                f"sums of {sum_bits} bits of {vectors} vectors do not fit into the ciphertexts",
                hint=f"use at most {_MOST_BITS} bits and {degree} vectors, or cipher='paillier'",
            )

        def cost(block: int) -> float:
            up = -(-rows // block)
            down = -(-columns // (degree // (vectors * block)))
            return _UP * up + _DOWN * down + _PRODUCT * up * down

        together = 2 ** np.arange(int(np.log2(degree // vectors)) + 1)
        block = min((int(degree // (vectors * t)) for t in together), key=cost)
        return Form(vectors, rows, sum_bits, block)

    def encrypt(self, values: Any, form: Form) -> Blocks:
        return _encrypt(self.key, values, form)

    def add(self, parts: Sequence[Blocks], form: Form) -> Blocks:
        return [dump(self._sum(blocks, form)) for blocks in zip(*parts, strict=True)]

    def _sum(self, blocks: Sequence[bytes], form: Form) -> Any:
        total, *others = (self._load(block, form) for block in blocks)
        for other in others:
            self.ring.evaluator.add_inplace(total, other)
        return total

    def _load(self, block: bytes, form: Form) -> Any:
        """A ciphertext as :func:`_encrypt` makes it."""
        ciphertext = self.ring.load("Ciphertext", block)
        wanted = (*self.ring.place("flat", 0)[:1], _scale(form), 2)
        if (ciphertext.parms_id(), ciphertext.scale, ciphertext.size()) != wanted:
            raise PayloadError("damaged ciphertext: its modulus, scale or size is unexpected")
        if not ciphertext.is_ntt_form() or ciphertext.is_transparent():
            raise PayloadError("damaged ciphertext: it encrypts nothing")
        return ciphertext

    def prepare(self, matrix: Any, form: Form) -> _Encoded:
        return _Encoded(form.checked_matrix(matrix), form)

    def multiply(self, encrypted: Blocks, prepared: Any, form: Form, *, masked: bool) -> Products:
        if len(encrypted) != form.blocks:
            raise PayloadError(f"{len(encrypted)} ciphertexts are not those of {form}")
        evaluator, api = self.ring.evaluator, seal()
        top, _ = self.ring.place("flat", 0)
        nothing = self.ring.encode(np.zeros(PARAMETERS.slots), top, _scale(form))
        received = [self._load(block, form) for block in encrypted]
        product = api.Ciphertext()
        blocks, masks = [], []
        for group in range(prepared.groups):
            total = self.key.encrypt(nothing)
            for number, ciphertext in enumerate(received):
                plaintext = prepared.plaintext(group, number)
                if plaintext is not None:
                    evaluator.multiply_plain(ciphertext, plaintext, product)
                    evaluator.add_inplace(total, product)
            evaluator.rescale_to_next_inplace(total)
            mask = self._mask(total, None if masked else prepared.useful(group))
            blocks.append(dump(total))
            masks.append(mask[prepared.useful(group)])
        return Products(blocks, np.concatenate(masks) if masked else None)

    def _mask(self, product: Any, spared: Any) -> FloatArray:
        """Add uniform numbers modulo q to all coefficients but those spared; what was added.

        The encoder takes numbers up to q/4; added twice they cover the whole range.
        """
        words = np.frombuffer(secrets.token_bytes(8 * PARAMETERS.degree), np.int64)
        mask = np.asarray(words * (self.ring.primes[0] / 2.0**65), np.float64)
        if spared is not None:
            mask[spared] = 0
        plaintext = self.ring.encode(embed(mask / product.scale), product.parms_id(), product.scale)
        for _ in range(2):
            self.ring.evaluator.add_plain_inplace(product, plaintext)
        return 2 * mask

    def unmask(self, residues: Blocks, masks: Any, form: Form, columns: int) -> FloatArray:
        count = form.vectors * columns
        if len(residues) != 1 or len(residues[0]) != 8 * count:
            raise PayloadError(f"damaged residues: these are not those of {columns} columns")
        numbers = np.frombuffer(residues[0], np.float64)
        if not np.isfinite(numbers).all():
            raise PayloadError("damaged residues: they are no numbers")
        if masks is not None:
            modulus = float(self.ring.primes[0])
            numbers = np.remainder(numbers - masks + modulus / 2, modulus) - modulus / 2
        sums = numbers.reshape(columns, form.vectors).T / (_scale(form) / self.ring.primes[1])
        return np.asarray(np.rint(sums) if form.sum_bits <= EXACT_BITS else sums)


class CkksSecret(SecretKey):
    """The pair; ciphertexts of its holder are half as long, since a seed stands for half."""

    def __init__(self, key: he.SecretKey) -> None:
        self.key = key
        self.public = CkksKey(key.public)

    def to_bytes(self) -> bytes:
        return self.key.to_bytes()

    def encrypt(self, values: Any, form: Form) -> Blocks:
        return _encrypt(self.key, values, form)

    def decrypt(self, blocks: Blocks, form: Form, columns: int) -> Blocks:
        here = ring(PARAMETERS)
        groups = list(_groups(form, columns))
        if len(blocks) != len(groups):
            raise PayloadError(f"{len(blocks)} ciphertexts are not those of {columns} columns")
        low = here.place("rows", 1)[0]
        scale = _scale(form) / here.primes[1]
        residues = []
        for block, group in zip(blocks, groups, strict=True):
            product = here.load("Ciphertext", block)
            if (product.parms_id(), product.scale, product.size()) != (low, scale, 2):
                raise PayloadError("damaged product: its modulus, scale or size is unexpected")
            coefficients = extract(self.key.decrypt_block(product)) * scale
            residues.append(coefficients[_useful(form, len(group))])
        return [np.concatenate(residues).tobytes()]


class _Encoded:
    """A matrix as plaintexts, by group of columns and block of rows, encoded when first needed."""

    def __init__(self, matrix: Any, form: Form) -> None:
        self.matrix = matrix
        self.form = form
        self.columns = list(_groups(form, matrix.shape[1]))
        self._known: dict[tuple[int, int], Any] = {}

    @property
    def groups(self) -> int:
        return len(self.columns)

    def useful(self, group: int) -> Any:
        return _useful(self.form, len(self.columns[group]))

    def plaintext(self, group: int, block: int) -> Any:
        """None where no row of the block counts in these columns: SEAL cannot multiply by 0."""
        if (group, block) in self._known:
            return self._known[group, block]
        plaintext = self._encode(group, block)
        if len(self._known) * 16 * PARAMETERS.degree < _KEPT:
            self._known[group, block] = plaintext
        return plaintext

    def _encode(self, group: int, block: int) -> Any:
        form, columns = self.form, self.columns[group]
        rows = slice(block * form.block, (block + 1) * form.block)
        part = self.matrix[rows, columns[0] : columns[-1] + 1]
        if not part.any():
            return None
        polynomial = np.zeros(PARAMETERS.degree)
        stride = form.vectors * form.block
        spread = polynomial[: len(columns) * stride].reshape(len(columns), stride)
        spread[:, form.block - len(part) : form.block] = part[::-1].T
        here = ring(PARAMETERS)
        return here.encode(embed(polynomial), here.place("flat", 0)[0], 1.0)


def _scale(form: Form) -> float:
    return 2.0 ** (_ROOM - form.sum_bits)


def _groups(form: Form, columns: int) -> Any:
    """The columns of every product."""
    together = _fitting(form)
    return (range(first, min(first + together, columns)) for first in range(0, columns, together))


def _fitting(form: Form) -> int:
    """Columns in a product."""
    stride = form.vectors * form.block
    if stride > PARAMETERS.degree or form.sum_bits > _MOST_BITS:
        raise PayloadError(f"{form} does not fit into ciphertexts of {PARAMETERS.degree} numbers")
    return PARAMETERS.degree // stride


def _useful(form: Form, columns: int) -> Any:
    """The coefficients that hold sums, column by column, vector by vector."""
    return form.block * np.arange(1, columns * form.vectors + 1) - 1


def _encrypt(key: he.PublicKey | he.SecretKey, values: Any, form: Form) -> Blocks:
    here = ring(PARAMETERS)
    top, _ = here.place("flat", 0)
    _fitting(form)
    padded = np.zeros((form.vectors, form.blocks * form.block))
    padded[:, : form.rows] = form.checked_values(values)
    by_block = padded.reshape(form.vectors, form.blocks, form.block).swapaxes(0, 1)
    blocks = []
    for block in by_block:
        polynomial = np.zeros(PARAMETERS.degree)
        polynomial[: block.size] = block.reshape(-1)
        blocks.append(key.encrypt_block(here.encode(embed(polynomial), top, _scale(form))))
    return blocks


def generate(seed: bytes | None = None) -> CkksSecret:
    """A new pair; the same from the same ``seed`` of secret random bytes."""
    return CkksSecret(he.generate(PARAMETERS, seed=seed))
