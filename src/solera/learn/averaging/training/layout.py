"""Where in one flat vector every parameter of a network lies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from solera.learn.averaging.training.layers import Layer


@dataclass(frozen=True, slots=True)
class Parameter:
    """One array of a layer; ``shape`` is PyTorch's, ``flipped`` says it is stored transposed."""

    name: str
    shape: tuple[int, ...]
    bound: float = 0.0
    flipped: bool = False
    trained: bool = True
    fill: float | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def stored(self) -> tuple[int, ...]:
        return self.shape[::-1] if self.flipped else self.shape

    def start(self, draw: np.random.Generator) -> NDArray[np.float64]:
        """First values: a constant, or uniform within ± bound, as PyTorch's layers begin."""
        if self.fill is not None:
            return np.full(self.size, self.fill)
        values = draw.uniform(-self.bound, self.bound, self.shape)
        return (values.T if self.flipped else values).reshape(-1)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a parameter lies in the flat vector."""

    name: str
    parameter: Parameter
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.parameter.size


class Layout:
    """Order of all parameters in one flat vector: the trained ones first, running statistics last.

    Names are those of the parameters of the same model in PyTorch.
    """

    def __init__(self, named: Sequence[tuple[str, Parameter]]) -> None:
        ordered = sorted(named, key=lambda item: not item[1].trained)
        sizes = [parameter.size for _, parameter in ordered]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist()
        self.slots = [
            Slot(name, parameter, start)
            for (name, parameter), start in zip(ordered, starts[:-1], strict=True)
        ]
        self.size = starts[-1]
        self.trained = sum(slot.parameter.size for slot in self.slots if slot.parameter.trained)

    def views(self, matrix: Any) -> dict[str, Any]:
        """Each parameter of (C, size) as a view (C, …) of its stored shape."""
        return {
            slot.name: matrix[:, slot.start : slot.stop].view(-1, *slot.parameter.stored)
            for slot in self.slots
        }

    def arrays(self, vector: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Every parameter in PyTorch's shape."""
        found = {}
        for slot in self.slots:
            values = vector[slot.start : slot.stop].reshape(slot.parameter.stored)
            found[slot.name] = values.T if slot.parameter.flipped else values
        return found

    def vector(self, arrays: dict[str, Any], dtype: Any) -> NDArray[Any]:
        """The flat vector of parameters in PyTorch's shape."""
        flat = np.empty(self.size, dtype)
        for slot in self.slots:
            values = np.asarray(arrays[slot.name])
            flat[slot.start : slot.stop] = (values.T if slot.parameter.flipped else values).reshape(
                -1
            )
        return flat

    def start(self, draw: np.random.Generator, dtype: Any) -> NDArray[Any]:
        """The vector a model begins with."""
        flat = np.empty(self.size, dtype)
        for slot in self.slots:
            flat[slot.start : slot.stop] = slot.parameter.start(draw)
        return flat

    def select(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Marks the coordinates of all parameters whose name begins with one of these."""
        mask = np.zeros(self.size, dtype=bool)
        for slot in self.slots:
            if any(slot.name == name or slot.name.startswith(f"{name}.") for name in names):
                mask[slot.start : slot.stop] = True
        return mask


def named_parameters(layers: Sequence[Layer]) -> Iterator[tuple[str, Parameter]]:
    """All parameters with the names an ``nn.Sequential`` of the layers gives them."""
    for i, layer in enumerate(layers):
        for parameter in layer.parameters():
            yield f"{i}.{parameter.name}", parameter
