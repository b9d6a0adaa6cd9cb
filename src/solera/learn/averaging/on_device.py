"""Replies that stay on a GPU until somebody looks at one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import IntArray
from solera.core.payload import encoded_size
from solera.core.replies import Stacked


class OnDevice(Stacked):
    """Stacked replies ``{"update": {"values": …}, …}`` whose values are a tensor of a GPU.

    Folding takes the mean there, so that one vector crosses the bus instead of one per client.
    """

    __slots__ = ("rest", "values")

    def __init__(self, values: Any, rest: Mapping[str, NDArray[Any]]) -> None:
        self.values = values
        self.rest = rest
        self._len = len(values)

    @property
    def fields(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {"update": {"values": self.values.cpu().numpy()}, **self.rest}

    def __getitem__(self, i: int) -> dict[str, Any]:
        values = self.values[i].cpu().numpy()
        return {"update": {"values": values}, **{n: v[i] for n, v in self.rest.items()}}

    def take(self, chosen: IntArray) -> Stacked:
        return OnDevice(self.values[chosen], {n: v[chosen] for n, v in self.rest.items()})

    def between(self, first: int, last: int) -> Stacked:
        rest = {name: value[first:last] for name, value in self.rest.items()}
        return OnDevice(self.values[first:last], rest)

    def sizes(self) -> IntArray:
        kind = str(self.values.dtype).removeprefix("torch.")
        values = np.broadcast_to(np.zeros((), kind), self.values.shape[1:])
        one = {"update": {"values": values}, **{n: v[0] for n, v in self.rest.items()}}
        return np.full(len(self), encoded_size(one), dtype=np.int64)

    def finite(self) -> NDArray[np.bool_]:
        good: NDArray[np.bool_] = self.values.isfinite().all(dim=1).cpu().numpy()
        for value in self.rest.values():
            good &= np.isfinite(value).reshape(len(self), -1).all(axis=1)
        return good
