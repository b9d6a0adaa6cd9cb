"""What local training needs to know, read from an ask: the network, and how to train it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import IntArray
from solera.core.component import build
from solera.core.errors import DataError, UsageError
from solera.core.payload import decode, encode
from solera.core.rng import Bits, generator, random_bits
from solera.core.schema import class_codes
from solera.learn.averaging.models import Layered, Registered, find_loss
from solera.learn.averaging.training.layers import (
    Activation,
    Convolution,
    Dense,
    Dropout,
    Image,
    Layer,
    Layout,
    Parameter,
    named_parameters,
    torch,
)

OPTIMISERS = ("sgd", "adam")
ADAM = (0.9, 0.999, 1e-8)
"""β1, β2 and ε of the local Adam (Kingma & Ba 2015)."""


class Plan:
    """A model, ready to be trained: its layers where it has some, and its layout."""

    def __init__(self, model: Layered | Registered) -> None:
        self.model = model
        self.layers: list[Layer] | None = None
        if isinstance(model, Layered):
            self.layers = model.layers()
            self.layout = Layout(list(named_parameters(self.layers)))
        else:
            self.layout = Layout(_parameters_of(model.module()))

    @property
    def dense(self) -> bool:
        """Whether it is a chain of dense layers, whose gradients are written by hand."""
        kinds = (Dense, Activation, Dropout)
        return self.layers is not None and all(isinstance(lay, kinds) for lay in self.layers)

    @property
    def convolves(self) -> bool:
        if self.layers is not None:
            return any(isinstance(layer, Convolution) for layer in self.layers)
        conv = torch().nn.modules.conv._ConvNd
        return any(isinstance(part, conv) for part in self.module().modules())

    @property
    def stacks(self) -> bool:
        """Whether ``torch.func`` can train the module of many clients in one call."""
        if self.layers is not None:
            return False
        module, nn = self.module(), torch().nn
        random = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.MultiheadAttention, nn.RNNBase)
        return not any(isinstance(part, random) for part in module.modules()) and not any(
            True for _ in module.buffers()
        )

    def module(self) -> Any:
        """The network for one client."""
        return self.model.module()

    def start(self, seed: int, dtype: str) -> NDArray[Any]:
        """The vector training begins with."""
        if self.layers is not None:
            return self.layout.start(generator(seed, "init"), dtype)
        t = torch()
        with t.random.fork_rng(devices=[]):
            t.manual_seed(seed)
            module = self.module()
        return self.layout.vector(_values(module), dtype)

    def load(self, vector: NDArray[Any], module: Any) -> Any:
        """The module with the parameters of a flat vector."""
        t = torch()
        arrays = self.layout.arrays(np.asarray(vector))
        state = {name: t.tensor(np.ascontiguousarray(value)) for name, value in arrays.items()}
        module = module.to(state[self.layout.slots[0].name].dtype)
        module.load_state_dict(state, strict=False)
        return module

    def vector(self, module: Any, dtype: Any) -> NDArray[Any]:
        """The flat vector of a module."""
        return self.layout.vector(_values(module), dtype)

    @property
    def outputs(self) -> int | None:
        """Number of outputs, where the layers say so."""
        last = self.layers[-1] if self.layers else None
        return last.outputs if isinstance(last, Dense) else None

    def check(self, width: int, outputs: int) -> None:
        """Does the model take rows of this width and give that many outputs?"""
        if self.layers is None:
            return
        first, last = self.layers[0], self.layers[-1]
        assert isinstance(last, Dense)
        takes = width
        if isinstance(first, Dense):
            takes = first.inputs
        elif isinstance(first, Image):
            takes = first.height * first.width * first.channels
        if takes != width:
            raise DataError(
                f"{self.model!r} takes rows of {takes} values, the data has {width}",
                hint="the first size of a model is the number of columns",
            )
        if last.outputs != outputs and (last.outputs, outputs) != (1, 2):
            raise DataError(
                f"{self.model!r} has {last.outputs} outputs, the target needs {outputs}",
                hint="the last size of a model is the number of classes, labels or numbers",
            )


def _values(module: Any) -> dict[str, Any]:
    return {name: value.detach().cpu().numpy() for name, value in module.state_dict().items()}


def _parameters_of(module: Any) -> list[tuple[str, Parameter]]:
    trained = [(n, Parameter(n, tuple(p.shape))) for n, p in module.named_parameters()]
    kept = [
        (name, Parameter(name, tuple(buffer.shape), trained=False))
        for name, buffer in module.named_buffers()
        if buffer.is_floating_point()
    ]
    if not trained:
        raise UsageError("the model has no parameters to train")
    return trained + kept


def plan_of(description: Mapping[str, Any]) -> Plan:
    """The plan of a described model; plans are kept."""
    return _plan(encode(description))


@lru_cache(maxsize=16)
def _plan(frame: bytes) -> Plan:
    return Plan(build(decode(frame)))


@dataclass(frozen=True)
class Training:
    """How a client trains: loss, optimiser, and for how long.

    ``steps`` counts batches and takes the place of ``epochs`` when it is given. ``mu`` is the
    strength of FedProx's pull towards the model that training is anchored to.
    """

    loss: str
    lr: float
    optimiser: str = "sgd"
    momentum: float = 0.0
    l2: float = 0.0
    mu: float = 0.0
    epochs: int = 1
    steps: int | None = None
    batch_size: int | None = None

    @property
    def plain(self) -> bool:
        """Gradient descent alone, without memory or pull."""
        return self.optimiser == "sgd" and not (self.momentum or self.l2 or self.mu)


@dataclass(frozen=True)
class Batches:
    """Which rows each client takes in each of its steps.

    ``index`` is (clients, steps · batch), ``counts`` (clients, steps) says how many of a batch are
    real; 0 means that the client has finished.
    """

    index: IntArray
    counts: IntArray
    batch: int

    @property
    def steps(self) -> IntArray:
        """How many steps each client takes."""
        return np.asarray((self.counts > 0).sum(axis=1))

    def of(self, who: IntArray) -> Batches:
        """The same for some of the clients."""
        return Batches(self.index[who], self.counts[who], self.batch)


def deal_batches(keys: Bits, sizes: IntArray, how: Training) -> Batches:
    """Shuffle every client's rows anew in every epoch and cut them into batches."""
    widest = int(sizes.max())
    batch = min(how.batch_size or widest, widest)
    per_epoch = -(-sizes // batch)
    steps = per_epoch * how.epochs if how.steps is None else np.full_like(sizes, how.steps)
    columns, every = np.arange(widest), np.arange(int(steps.max()))
    left = sizes[:, None] - every % per_epoch[:, None] * batch
    counts = np.where(every < steps[:, None], np.minimum(left, batch), 0)
    index = np.zeros((len(sizes), len(every) * batch), dtype=np.int64)
    real = columns < sizes[:, None]
    for epoch in range(int((-(-steps // per_epoch)).max())):
        bits = random_bits(keys[:, None], (epoch << 32) + columns)
        bits[~real] = np.iinfo(np.uint64).max
        order = np.argsort(bits, axis=1, kind="stable")
        place = epoch * per_epoch[:, None] + columns // batch
        client, column = np.nonzero(real & (place < steps[:, None]))
        cell = place[client, column] * batch + column % batch
        index[client, cell] = order[client, column]
    return Batches(index, counts, batch)


def targets_of(y: Any, loss: str, classes: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Class codes, or a matrix of labels or numbers."""
    if loss == "softmax":
        return class_codes(y, classes)
    if loss == "binary":
        y = class_codes(y, classes)
    return np.asarray(y, dtype=dtype).reshape(len(y), -1)


def row_losses(outputs: Any, target: Any, loss: str) -> Any:
    """The loss of every row, as a function PyTorch can differentiate.

    Softmax cross-entropy for classes, the mean over labels of the sigmoid cross-entropy, half the
    squared error for numbers, or a registered loss.
    """
    F = torch().nn.functional
    if loss == "softmax":
        flat = F.cross_entropy(outputs.flatten(0, -2), target.flatten(), reduction="none")
        return flat.view(target.shape)
    if loss in ("sigmoid", "binary"):
        return F.binary_cross_entropy_with_logits(outputs, target, reduction="none").mean(dim=-1)
    if loss == "squared":
        return 0.5 * ((outputs - target) ** 2).sum(dim=-1)
    return find_loss(loss)(outputs, target)
