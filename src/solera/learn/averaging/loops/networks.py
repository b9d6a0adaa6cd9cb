"""Where the parameters and buffers of networks lie in two flat vectors.

Only parameters that are trained when a network is made, and buffers that its ``state_dict`` has,
are part of a federated model; whatever is frozen is built by every client and compared by digest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

import numpy as np

from solera.core.clients import Array, BoolArray
from solera.core.errors import DataError, Refusal, UsageError
from solera.learn.averaging.loops.functions import find_function
from solera.learn.averaging.training.devices import as_tensor, seeded, torch

Network = Any
"""An ``nn.Module``, or a table of them."""
Named = Sequence[tuple[str, tuple[int, ...]]]
_built: dict[tuple[str, int], BuiltNetwork] = {}
_KEPT = 2
"""Networks that a process keeps, to make copies of."""


@dataclass(frozen=True)
class Places:
    """Names and shapes of arrays that lie in one vector, in their order."""

    named: Named

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for _, shape in self.named)

    def views(self, vector: Any) -> Iterator[tuple[str, Any]]:
        """Every array of a vector, in its shape; of NumPy's or a tensor."""
        first = 0
        for name, shape in self.named:
            last = first + math.prod(shape)
            yield name, vector[first:last].reshape(shape)
            first = last

    def select(self, names: Sequence[str]) -> BoolArray:
        """Marks the coordinates of all arrays whose name begins with one of these."""
        mask = np.zeros(self.size, dtype=bool)
        for array_name, view in self.views(mask):
            view[...] = any(array_name == n or array_name.startswith(f"{n}.") for n in names)
        return mask

    def to_payload(self) -> list[Any]:
        return [[name, list(shape)] for name, shape in self.named]

    @classmethod
    def from_payload(cls, payload: Any) -> Self:
        return cls([(name, tuple(shape)) for name, shape in payload])


class BuiltNetwork:
    """A network as its function makes it with a seed: first values, layout, what is frozen."""

    def __init__(self, name: str, seed: int) -> None:
        t = torch()
        with seeded(seed):
            self.network: Network = find_function(name)()
        parts = dict(parts_of(self.network))
        if not all(isinstance(part, t.nn.Module) for part in parts.values()):
            raise UsageError(
                f"model() made {type(self.network).__name__}: an nn.Module is needed, or a table "
                "of them by name"
            )
        trained = [(n, p) for n, p in parameters_of(self.network).items() if p.requires_grad]
        if not trained:
            raise UsageError("the model has no parameters to train: all are frozen, or none there")
        for parameter_name, parameter in trained:
            if not parameter.is_floating_point():
                raise UsageError(f"the parameter {parameter_name!r} is {parameter.dtype}")
        wide = any(p.dtype == t.float64 for _, p in trained)
        self.dtype = np.dtype("float64" if wide else "float32")
        self.parameters = Places([(n, tuple(p.shape)) for n, p in trained])
        self.buffers = Places([(n, tuple(b.shape)) for n, b in buffers_of(self.network).items()])
        self.weights = self.read_parameters(self.network)
        self.buffer_values = self.read_buffers(self.network)
        self.frozen = self._digest()

    def _digest(self) -> str:
        """Of all frozen parameters, or "" where there are none."""
        trained = {name for name, _ in self.parameters.named}
        frozen = {n: p for n, p in parameters_of(self.network).items() if n not in trained}
        if not frozen:
            return ""
        digest = blake2b(digest_size=16)
        for name, parameter in frozen.items():
            digest.update(name.encode())
            digest.update(as_bytes(parameter))
        return digest.hexdigest()

    @property
    def mixes_rows(self) -> str:
        """The name of a layer that keeps statistics of rows, if any."""
        kind = torch().nn.modules.batchnorm._NormBase
        for prefix, part in parts_of(self.network):
            for name, layer in part.named_modules():
                if isinstance(layer, kind) and layer.track_running_stats:
                    return _joined(prefix, name)
        return ""

    def check_layout(self, layout: Mapping[str, Any]) -> None:
        """Refuse a model that has other parameters than the network."""
        for kind, places in (("parameters", self.parameters), ("buffers", self.buffers)):
            if places.to_payload() != layout[kind]:
                raise UsageError(
                    f"the network has other {kind} than the model: {places.to_payload()[:3]}, not "
                    f"{layout[kind][:3]}",
                    hint="give the function that made the network when the model was trained",
                )

    def copy(self, weights: Array, buffers: Array) -> Network:
        """A network of one's own with these parameters and buffers."""
        network = deepcopy(self.network)
        t = torch()
        parameters = parameters_of(network)
        flat = as_tensor(weights)
        with t.no_grad():
            for name, values in self.parameters.views(flat):
                parameters[name].copy_(values)
            if self.buffers.named:
                held = buffers_of(network)
                for name, values in self.buffers.views(t.from_numpy(np.array(buffers))):
                    whole = not held[name].is_floating_point()
                    held[name].copy_(values.round() if whole else values)
        return network

    def read_parameters(self, network: Network) -> Array:
        """The vector of the trained parameters of a network."""
        parameters = parameters_of(network)
        vector = np.empty(self.parameters.size, self.dtype)
        for name, view in self.parameters.views(vector):
            view[...] = _same_shape(parameters, name, view.shape)
        return vector

    def read_buffers(self, network: Network) -> Array:
        """The vector of the buffers of a network."""
        held = buffers_of(network)
        vector = np.empty(self.buffers.size, np.float64)
        for name, view in self.buffers.views(vector):
            view[...] = _same_shape(held, name, view.shape)
        return vector

    def unfrozen(self, network: Network) -> list[str]:
        """Names of parameters that were frozen and are not what they were, in a trained copy."""
        trained = {name for name, _ in self.parameters.named}
        after = parameters_of(network)
        changed = []
        for name, parameter in parameters_of(self.network).items():
            if name in trained:
                continue
            copied = after.get(name)
            touched = copied is None or copied.requires_grad or copied._version > 0
            if touched and (copied is None or as_bytes(copied) != as_bytes(parameter)):
                changed.append(name)
        return changed


def build_network(name: str, seed: int, frozen: str | None = None) -> BuiltNetwork:
    """The network of a function, made with a seed; processes keep the last few.

    ``frozen`` is the digest that its frozen parameters must have, where it is known.
    """
    key = name, seed
    if key not in _built:
        while len(_built) >= _KEPT:
            del _built[next(iter(_built))]
        _built[key] = BuiltNetwork(name, seed)
    built = _built[key]
    if frozen is not None and built.frozen != frozen:
        raise Refusal(
            "the frozen parameters of the model are others here than where training began: "
            "model() must make the same ones everywhere, from a file or from torch's seed alone"
        )
    return built


def parts_of(network: Network) -> Iterator[tuple[str, Any]]:
    """The modules of a network and what their names begin with."""
    if isinstance(network, Mapping):
        yield from network.items()
    else:
        yield "", network


def parameters_of(network: Network) -> dict[str, Any]:
    """All parameters by name, shared ones once."""
    seen: dict[int, None] = {}
    named = {}
    for prefix, part in parts_of(network):
        for name, parameter in _parameters_in(part):
            if id(parameter) not in seen:
                seen[id(parameter)] = None
                named[_joined(prefix, name)] = parameter
    return named


def buffers_of(network: Network) -> dict[str, Any]:
    """All buffers that ``state_dict`` has, by name."""
    named = {}
    for prefix, part in parts_of(network):
        if hasattr(part, "trainable_weights"):
            named.update({_joined(prefix, n): b for n, b in _of_keras(part, trained=False)})
            continue
        buffers = dict(part.named_buffers())
        if buffers:
            saved = part.state_dict().keys()
            named.update({_joined(prefix, n): b for n, b in buffers.items() if n in saved})
    return named


def _parameters_in(part: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(part, "trainable_weights"):
        return _of_keras(part, trained=True)
    named: Iterator[tuple[str, Any]] = part.named_parameters()
    return named


def _of_keras(part: Any, trained: bool) -> Iterator[tuple[str, Any]]:
    """The weights of a Keras model by their places: names of Keras change from copy to copy."""
    weights = part.trainable_weights if trained else part.non_trainable_weights
    for place, weight in enumerate(weights):
        yield f"{place}.{weight.name}", weight.value


def as_bytes(tensor: Any) -> bytes:
    """The bytes of a tensor, of whatever type."""
    t = torch()
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(t.uint8).numpy().tobytes())


def _same_shape(tensors: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Array:
    tensor = tensors.get(name)
    if tensor is None or tuple(tensor.shape) != shape:
        now = "gone" if tensor is None else f"of shape {tuple(tensor.shape)}"
        raise DataError(
            f"{name!r} is {now} after training, and was of shape {shape}",
            hint="model() makes all layers; a loop changes their values alone",
        )
    values = tensor.detach().cpu()
    if values.dtype == torch().bfloat16:
        values = values.float()
    return np.asarray(values.numpy())


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
