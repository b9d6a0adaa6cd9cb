"""Rows of many clients where training needs them: held once, gathered by index."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from solera.core.clients import Array, IntArray, Segments
from solera.core.rng import Bits
from solera.learn.averaging.training.devices import as_tensor, borrow, torch
from solera.learn.averaging.training.losses import targets_of
from solera.learn.averaging.training.tile_threads import in_threads

_PIECE = 3 << 19
"""Bytes of rows that one thread gathers at once."""
_on_device: dict[tuple[int, str], Any] = {}


class ClientRows:
    """The rows of a group of clients; :meth:`take` gathers those of a batch.

    On a CPU rows stay in the array they lie in, on a GPU the whole array is copied there once.
    Sparse rows become dense when they are gathered. Rows are of the type and on the device of
    ``like``, a tensor; ``keys`` fix each client's draws.
    """

    def __init__(self, rows: Segments, keys: Bits, loss: str, classes: Array, like: Any) -> None:
        self.sizes = rows.sizes
        self.keys = keys
        self.width = int(np.prod(rows.X.shape[1:]))
        self.dtype = like.dtype
        self.device = like.device
        self.starts = rows.starts
        self.first_target = np.cumsum(rows.sizes) - rows.sizes
        numbers = np.dtype(str(self.dtype).removeprefix("torch."))
        targets = targets_of(rows.y[rows.index], loss, classes, numbers)
        self.targets = torch().from_numpy(targets).to(self.device)
        self.sparse = hasattr(rows.X, "tocsr")
        self.X = rows.X if self.sparse else _moved(rows.X, self.device)
        self._own = threading.local()  # a buffer for each thread that trains a tile

    @property
    def row_bytes(self) -> int:
        return self.width * int(self.dtype.itemsize)

    def take(self, who: IntArray, index: IntArray, keep: bool = False) -> tuple[Any, Any]:
        """Rows (clients, n, width) and targets of clients at positions ``who``.

        The rows are overwritten by the thread's next call, unless they are to ``keep``.
        """
        shape = index.shape
        places, own = (part.view(-1) for part in self.places(who, index))
        if self.sparse:
            x = torch().from_numpy(self.X[places.numpy()].toarray()).to(self.device)
        else:
            count = len(places)
            x = borrow(count, self.width, self.X) if keep else self.buffer(count)[:count]
            self._gather(places, x, max(1, _PIECE // self.row_bytes) if keep else count)
        target = self.targets.index_select(0, own.to(self.device))
        return x.to(self.dtype).view(*shape, -1), target.view(*shape, *target.shape[1:])

    def places(self, who: Any, index: IntArray) -> tuple[Any, Any]:
        """Where in X, and where in the targets, rows of clients at positions ``who`` lie."""
        firsts = self.starts[who], self.first_target[who]
        in_X, in_targets = (torch().from_numpy(first[:, None] + index) for first in firsts)
        return in_X, in_targets

    def buffer(self, rows: int) -> Any:
        """Memory of this thread for so many rows, of a dense X and of its type."""
        held: Any = getattr(self._own, "buffer", None)
        if held is None or len(held) < rows:
            held = self._own.buffer = self.X.new_empty(rows, self.width)
        return held

    def _gather(self, places: Any, into: Any, piece: int) -> None:
        """Write the rows at these places; on a CPU ``piece`` by piece, side by side."""
        t = torch()

        def gather(first: int) -> None:
            some = slice(first, first + piece)
            t.index_select(self.X, 0, places[some].to(self.device), out=into[some])

        if len(places) <= piece:
            gather(0)
        else:
            in_threads(gather, range(0, len(places), piece), self.device.type)


def _moved(X: Array, device: Any) -> Any:
    flat = X.reshape(len(X), -1)
    if device.type == "cpu":
        return as_tensor(flat)
    key = (id(X), str(device))
    if key not in _on_device:
        _on_device[key] = as_tensor(flat).to(device)
        weakref.finalize(X, _on_device.pop, key, None)
    return _on_device[key]
