"""Matrices that are multiplied again and again, made ready for it once by each process."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from solera.core.clients import Array
from solera.privacy.additive import Form, PublicKey


class KeptMatrices:
    """The last ``most`` matrices that were made ready.

    Nothing depends on them but time: a process that was started again makes them anew.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[bytes, Any] = OrderedDict()

    def ready(
        self, key: PublicKey, form: Form, given: Sequence[Array], matrix: Callable[[], Array]
    ) -> Any:
        """The matrix that follows from what is ``given``, ready for products with this form."""
        digest = hashlib.blake2b(repr((key.scheme, form)).encode())
        for array in given:
            digest.update(np.ascontiguousarray(array).tobytes())
        name = digest.digest()
        if name not in self._kept:
            self._kept[name] = key.prepare(matrix(), form)
        self._kept.move_to_end(name)
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)
        return self._kept[name]
