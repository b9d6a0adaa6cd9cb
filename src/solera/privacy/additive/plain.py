"""No cipher at all, behind the same interface: what the others are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.clients import FloatArray
from solera.core.errors import PayloadError
from solera.privacy.additive.interface import Blocks, Form, Products, PublicKey, SecretKey

_KIND = b"plain numbers, not encrypted"


class PlainKey(PublicKey):
    """Everybody reads everything: 0 bits of security."""

    scheme = "plain"

    @property
    def security(self) -> int:
        return 0

    def to_bytes(self) -> bytes:
        return _KIND

    def form(self, *, vectors: int, rows: int, columns: int, sum_bits: int) -> Form:
        return Form(vectors, rows, sum_bits, rows)

    def encrypt(self, values: Any, form: Form) -> Blocks:
        return [form.checked_values(values).tobytes()]

    def add(self, parts: Sequence[Blocks], form: Form) -> Blocks:
        total = np.sum([_read(blocks, form.rows, form) for blocks in parts], axis=0)
        return [total.astype(np.int64).tobytes()]

    def prepare(self, matrix: Any, form: Form) -> Any:
        return form.checked_matrix(matrix).astype(np.float64)  # whole numbers below 2^53 are exact

    def multiply(self, encrypted: Blocks, prepared: Any, form: Form, *, masked: bool) -> Products:
        sums = _read(encrypted, form.rows, form).astype(np.float64) @ prepared
        return Products([np.rint(sums).astype(np.int64).tobytes()], None)

    def unmask(self, residues: Blocks, masks: Any, form: Form, columns: int) -> FloatArray:
        return np.asarray(_read(residues, columns, form), dtype=np.float64)


class PlainSecret(SecretKey):
    """There is no secret."""

    public = PlainKey()

    def to_bytes(self) -> bytes:
        return _KIND

    def decrypt(self, blocks: Blocks, form: Form, columns: int) -> Blocks:
        return blocks


def _read(blocks: Blocks, columns: int, form: Form) -> Any:
    if len(blocks) != 1 or len(blocks[0]) != 8 * form.vectors * columns:
        raise PayloadError(f"these are not {form.vectors} vectors of {columns} numbers")
    return np.frombuffer(blocks[0], np.int64).reshape(form.vectors, columns)
