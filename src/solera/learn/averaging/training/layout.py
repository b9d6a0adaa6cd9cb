"""Where in one flat vector every parameter of a network lies.

Models and updates that are saved or sent are in PyTorch's order and shapes, :class:`Layout`. What
is trained for many clients at once lies as is fastest, :class:`TrainingLayout`: no such vector
leaves the process that made it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray
from solera.learn.averaging.training.devices import is_gpu, torch


@dataclass(frozen=True, slots=True)
class Parameter:
    """One array of a layer in PyTorch's shape; ``transposed`` is how it is trained."""

    name: str
    shape: tuple[int, ...]
    bound: float = 0.0
    transposed: bool = False
    trained: bool = True
    fill: float | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def training_shape(self) -> tuple[int, ...]:
        return self.shape[::-1] if self.transposed else self.shape

    def start(self, draw: np.random.Generator) -> FloatArray:
        """First values: a constant, or uniform within ± bound, as PyTorch's layers begin."""
        if self.fill is not None:
            return np.full(self.size, self.fill)
        return draw.uniform(-self.bound, self.bound, self.size)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a parameter lies in the flat vector."""

    name: str
    parameter: Parameter
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.parameter.size


Named = Sequence[tuple[str, Parameter]]
Tensors = dict[str, Any]
"""Parameters by their names, as tensors or as arrays."""


def _in_a_row(named: Named) -> Iterator[Slot]:
    start = 0
    for name, parameter in named:
        yield Slot(name, parameter, start)
        start += parameter.size


class Layout:
    """All parameters and running statistics in the order of the model's ``state_dict``."""

    def __init__(self, named: Named) -> None:
        trained = [(name, parameter) for name, parameter in named if parameter.trained]
        self.slots = list(_in_a_row(named))
        self.trained_slots = list(_in_a_row(trained))
        self.size = self.slots[-1].stop
        self.trained = self.trained_slots[-1].stop

    def slots_of(self, size: int) -> list[Slot]:
        """The places in a vector of this size: of all parameters, or of the trained ones alone."""
        return self.slots if size == self.size else self.trained_slots

    def arrays(self, vector: Any) -> Tensors:
        """Every parameter, or every trained one, in its shape; of an array or a tensor."""
        return {
            slot.name: vector[slot.start : slot.stop].reshape(slot.parameter.shape)
            for slot in self.slots_of(len(vector))
        }

    def vector(self, arrays: Tensors, dtype: Any) -> Array:
        """The flat vector of these parameters."""
        flat = np.empty(self.size, dtype)
        for slot in self.slots:
            flat[slot.start : slot.stop] = np.asarray(arrays[slot.name]).reshape(-1)
        return flat

    def start(self, draw: np.random.Generator, dtype: Any) -> Array:
        """The vector a model begins with."""
        return self.vector({s.name: s.parameter.start(draw) for s in self.slots}, dtype)

    @property
    def counted(self) -> BoolArray:
        """Marks the coordinates that gradients move."""
        return np.concatenate([np.full(s.parameter.size, s.parameter.trained) for s in self.slots])

    def select(self, names: Sequence[str]) -> BoolArray:
        """Marks the coordinates of all parameters whose name begins with one of these."""
        mask = np.zeros(self.size, dtype=bool)
        for slot in self.slots:
            if any(slot.name == name or slot.name.startswith(f"{name}.") for name in names):
                mask[slot.start : slot.stop] = True
        return mask


class TrainingLayout:
    """Trained parameters first, running statistics last, the weights of wide layers transposed.

    Vectors are the last axis of tensors. They hold all parameters, or the trained ones alone.
    """

    def __init__(self, layout: Layout) -> None:
        ordered = sorted(layout.slots, key=lambda slot: not slot.parameter.trained)
        self.slots = list(_in_a_row([(slot.name, slot.parameter) for slot in ordered]))
        self._by_name = {slot.name: slot for slot in self.slots}
        self._pytorch = layout
        transposed = any(slot.parameter.transposed for slot in self.slots)
        self._same = self.slots == layout.slots and not transposed
        self._gathers: dict[Any, Any] = {}

    def views(self, matrix: Any, first: int = 0) -> Tensors:
        """Each parameter of (clients, size) as a view (clients, …) of its training shape.

        ``first`` is the number of the parameter that the matrix begins with.
        """
        left_out = self.slots[first].start
        views = {}
        for slot in self.slots[first:]:
            columns = matrix[:, slot.start - left_out : slot.stop - left_out]
            views[slot.name] = columns.view(-1, *slot.parameter.training_shape)
        return views

    def arrange(self, vectors: Any) -> Any:
        """Vectors in PyTorch's order in the order of training."""
        return self._copied(vectors, to_training=True)

    def restore(self, vectors: Any) -> Any:
        """Vectors in the order of training in PyTorch's order."""
        return self._copied(vectors, to_training=False)

    def _copied(self, vectors: Any, to_training: bool) -> Any:
        if self._same:
            return vectors
        if not is_gpu(vectors.device):
            return self._copied_in_parts(vectors, to_training)
        key = (vectors.shape[-1], vectors.device, to_training)
        if key not in self._gathers:  # one start for all parameters, not one for each
            places = torch().arange(key[0])
            self._gathers[key] = self._copied_in_parts(places, to_training).to(vectors.device)
        return vectors.index_select(-1, self._gathers[key])

    def _copied_in_parts(self, vectors: Any, to_training: bool) -> Any:
        *leading, size = vectors.shape
        copy = torch().empty((*leading, size), dtype=vectors.dtype, device=vectors.device)
        for theirs in self._pytorch.slots_of(size):
            ours = self._by_name[theirs.name]
            source, target = (theirs, ours) if to_training else (ours, theirs)
            values = vectors[..., source.start : source.stop]
            into = copy[..., target.start : target.stop]
            if ours.parameter.transposed:
                shape = ours.parameter.shape
                rows, columns = shape if to_training else shape[::-1]
                values = values.unflatten(-1, (rows, columns)).transpose(-1, -2)
                into = into.unflatten(-1, (columns, rows))
            into.copy_(values)
        return copy
