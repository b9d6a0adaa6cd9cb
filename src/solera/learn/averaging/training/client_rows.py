"""Rows of many clients where training needs them: held once, gathered by index."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import IntArray, Segments
from solera.core.errors import UsageError
from solera.learn.averaging.training.architecture import targets_of
from solera.learn.averaging.training.layers import torch

_on_device: dict[tuple[int, str], Any] = {}


def find_device(name: str | None) -> Any:
    """The device of that name; by default a GPU where there is one."""
    t = torch()
    if name is None:
        name = "cuda" if t.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not t.cuda.is_available():
        raise UsageError(f"device={name!r}: this process sees no GPU", hint="use device='cpu'")
    return t.device(name)


class Gathered:
    """The rows of a group of clients; :meth:`take` gathers those of a batch.

    On a CPU rows stay in the array they lie in, on a GPU the whole array is copied there once.
    Sparse rows become dense when they are gathered.
    """

    def __init__(
        self, rows: Segments, loss: str, classes: NDArray[Any], dtype: Any, device: Any
    ) -> None:
        t = torch()
        self.width = int(np.prod(rows.X.shape[1:]))
        self.dtype = dtype
        self.device = device
        self.starts = rows.starts
        self.first_target = np.cumsum(rows.sizes) - rows.sizes
        numbers = np.dtype(str(dtype).removeprefix("torch."))
        targets = targets_of(rows.y[rows.index], loss, classes, numbers)
        self.targets = t.from_numpy(targets).to(device)
        self.X = rows.X if hasattr(rows.X, "tocsr") else _moved(rows.X, device)
        self._buffer: Any = None

    @property
    def row_bytes(self) -> int:
        return self.width * int(self.dtype.itemsize)

    def take(self, who: IntArray, index: IntArray, keep: bool = False) -> tuple[Any, Any]:
        """Rows (clients, n, width) and targets of clients at positions ``who``.

        The rows are overwritten by the next call, unless they are to ``keep``.
        """
        t = torch()
        shape = index.shape
        places = (self.starts[who][:, None] + index).reshape(-1)
        if hasattr(self.X, "tocsr"):
            x = t.from_numpy(self.X[places].toarray()).to(self.device)
        else:
            if not keep and (self._buffer is None or len(self._buffer) < len(places)):
                self._buffer = self.X.new_empty(len(places), self.width)
            keeps = borrow(len(places), self.width, self.X) if keep else self._buffer
            x = keeps[: len(places)]
            t.index_select(self.X, 0, t.from_numpy(places).to(self.device), out=x)
        own = (self.first_target[who][:, None] + index).reshape(-1)
        target = self.targets.index_select(0, t.from_numpy(own).to(self.device))
        return x.to(self.dtype).view(*shape, -1), target.view(*shape, *target.shape[1:])


_LINE = 64
"""Bytes of a cache line: products of rows that begin with one are a tenth faster."""
_spare: dict[Any, list[Any]] = {}


class _Lent(np.ndarray[Any, Any]):
    """Memory on loan; everything made of it keeps it alive."""


def borrow(clients: int, size: int, like: Any) -> Any:
    """A matrix whose memory is used again once nothing refers to it any more.

    Large memory fresh from the system costs more than the arithmetic on it. On a GPU PyTorch does
    the same by itself.
    """
    t = torch()
    if like.device.type != "cpu":
        return t.empty(clients, size, dtype=like.dtype, device=like.device)
    per_line = _LINE // like.element_size()
    stride = -(-size // per_line) * per_line
    spare = _spare.setdefault(like.dtype, [])
    memory = spare.pop() if spare else None
    if memory is None or memory.numel() < clients * stride:
        memory = t.empty(clients * stride, dtype=like.dtype)
    lent = memory[: clients * stride].view(clients, stride).numpy().view(_Lent)
    weakref.finalize(lent, _give_back, spare, memory)
    return t.from_numpy(lent)[:, :size]


def _give_back(spare: list[Any], memory: Any) -> None:
    """Keep the largest spare memory only."""
    if not spare or spare[0].numel() < memory.numel():
        spare[:] = [memory]


def as_tensor(array: NDArray[Any]) -> Any:
    """A tensor that shares the memory of an array nobody will write to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch().from_numpy(np.ascontiguousarray(array))


def _moved(X: NDArray[Any], device: Any) -> Any:
    flat = X.reshape(len(X), -1)
    if device.type == "cpu":
        return as_tensor(flat)
    key = (id(X), str(device))
    if key not in _on_device:
        _on_device[key] = as_tensor(flat).to(device)
        weakref.finalize(X, _on_device.pop, key, None)
    return _on_device[key]
