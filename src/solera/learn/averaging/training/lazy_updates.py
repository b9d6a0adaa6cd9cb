"""Replies whose updates stay as they were computed until somebody looks at one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray, IntArray
from solera.core.payload import is_finite
from solera.core.replies import Stacked
from solera.learn.averaging.training.devices import is_gpu, to_host, torch
from solera.learn.averaging.training.layout import TrainingLayout

Rest = Mapping[str, Array]


class LazyUpdates(Stacked, ABC):
    """Stacked replies ``{"update": {"values": …}, …}`` whose values are not in a matrix.

    Folding asks for their weighted sum only. ``rest`` are the other entries of the replies.
    """

    __slots__ = ("layout", "rest")

    rest: Rest
    layout: TrainingLayout | None
    arrays: ClassVar[tuple[str, ...]]
    """Names of the tensors that updates are held in, one row per client."""

    def __init__(self, *arrays: Any, rest: Rest, layout: TrainingLayout | None = None) -> None:
        for name, array in zip(self.arrays, arrays, strict=True):
            setattr(self, name, array)
        self.rest = rest
        self.layout = layout
        self._len = len(arrays[0])

    @abstractmethod
    def matrix(self, chosen: Any) -> Array:
        """The updates of some clients, one row each."""

    @abstractmethod
    def weighted_sum(self, weights: FloatArray, chosen: slice = slice(None)) -> Array:
        """Σ w u over all clients, or over some of them."""

    def restored(self, vectors: Any) -> Array:
        """Vectors in the order of training, in memory and in PyTorch's order."""
        if self.layout is not None:
            vectors = self.layout.restore(vectors)
        return to_host(vectors)

    @property
    def on_gpu(self) -> bool:
        return is_gpu(getattr(self, self.arrays[0]).device)

    def take(self, chosen: Any) -> Self:
        """The replies of some clients."""
        arrays = [getattr(self, name)[chosen] for name in self.arrays]
        rest = {name: value[chosen] for name, value in self.rest.items()}
        return type(self)(*arrays, rest=rest, layout=self.layout)

    @property
    @abstractmethod
    def kind(self) -> tuple[int, str]:
        """The length of an update, and the type of its numbers."""

    @abstractmethod
    def finite_values(self) -> BoolArray:
        """For every update, whether all its numbers are finite."""

    @property
    def fields(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {"update": {"values": self.matrix(slice(None))}, **self.rest}

    def __getitem__(self, i: int) -> dict[str, Any]:
        values = self.matrix(slice(i, i + 1))[0]
        return {"update": {"values": values}, **{n: v[i] for n, v in self.rest.items()}}

    def between(self, first: int, last: int) -> Stacked:
        return self.take(slice(first, last))

    def outline(self) -> dict[str, Any]:
        return {"update": {"values": self._unread()}, **{n: v[0] for n, v in self.rest.items()}}

    def sizes(self) -> IntArray:
        nobodys = self._unread()
        values = np.broadcast_to(nobodys, (len(self), *nobodys.shape))
        return Stacked({"update": {"values": values}, **self.rest}).sizes()

    def _unread(self) -> Array:
        """Values that nobody reads, so that they take no memory."""
        return np.empty(*self.kind)

    def finite(self) -> BoolArray:
        finite = self.finite_values()
        for value in self.rest.values():
            finite &= np.isfinite(value).reshape(len(self), -1).all(axis=1)
        return finite


class StackedUpdates(LazyUpdates):
    """Updates in one tensor, where they were computed and in the order of training.

    Of many clients' updates only the sum is brought into PyTorch's order and, from a GPU, into
    memory.
    """

    __slots__ = arrays = ("values",)
    values: Any

    def matrix(self, chosen: Any) -> Array:
        return self.restored(self.values[chosen])

    def weighted_sum(self, weights: FloatArray, chosen: slice = slice(None)) -> Array:
        if self.values.device.type != "cpu":
            return self.restored(self.values.new_tensor(weights) @ self.values[chosen])
        values = self.values.numpy()[chosen]
        return self.restored(torch().from_numpy(weights.astype(values.dtype) @ values))

    def summed_blocks(self, weights: FloatArray, bounds: Sequence[int]) -> Array:
        """:meth:`weighted_sum` of every block, added up one after the other."""
        values = self.values.numpy()
        own = weights.astype(values.dtype)
        total, *others = (own[a:b] @ values[a:b] for a, b in pairwise(bounds))
        for block in others:
            total += block
        return self.restored(torch().from_numpy(total))

    @property
    def kind(self) -> tuple[int, str]:
        return self.values.shape[1], str(self.values.dtype).removeprefix("torch.")

    def finite_values(self) -> BoolArray:
        if self.values.device.type == "cpu" and is_finite(self.values.numpy()):
            return np.ones(len(self), dtype=bool)
        # One pass: the largest number of an update is NaN if any is.
        largest = torch().linalg.vector_norm(self.values, ord=math.inf, dim=1)
        return np.asarray(largest.isfinite().cpu().numpy())
