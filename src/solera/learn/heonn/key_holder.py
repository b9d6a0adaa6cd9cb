"""Prediction through a trusted key holder: [[z]] goes to it, z comes back.

Whoever holds rows and an encrypted model, but no key, computes [[z]] = X (G + λI)⁻¹ [[m]] under
encryption, one product. A client that holds the key decrypts z and sends it back. The key holder
sees z and no row; the one who asks sees z and no weight.

The key holder decrypts what it is given, and cannot tell [[z]] from any other ciphertext of the
pair: it must trust the one who asks with all of them. As many predictions as there are columns
tell the weights. At an agent the task runs under the policy "trusted" only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from solera.core.clients import Client, FloatArray
from solera.core.task import task
from solera.privacy import he
from solera.privacy.he import keys


@task("heonn.decrypt")
def decrypt(client: Client, ask: Any) -> dict[str, Any]:
    """The numbers inside ciphertexts of a pair that this client keeps."""
    pair = keys.find(ask["key"])
    sealed = [he.Encrypted.from_payload(payload, pair) for payload in ask["sealed"]]
    return {"opened": [he.decrypt(pair, each) for each in sealed]}


def in_squares(Z: FloatArray) -> Iterator[FloatArray]:
    """Rows of members, T × n × d, in pieces of d rows: a product is by square matrices."""
    rows, columns = Z.shape[1:]
    for start in range(0, rows, columns):
        piece = Z[:, start : start + columns]
        yield np.pad(piece, ((0, 0), (0, columns - piece.shape[1]), (0, 0)))
