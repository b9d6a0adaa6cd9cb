"""``so.nn``: the models that averaging learners train.

A model is a component: a registered name with parameters. Clients of a real federation build it
themselves from that description; no code travels. In simulation any ``nn.Module`` will do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from hashlib import blake2b
from inspect import signature
from typing import Any, ClassVar, Literal

from solera.core.component import Component
from solera.core.constraints import Count, ProperFraction
from solera.core.errors import UsageError
from solera.core.registry import new_registry
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.layers import (
    Activation,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    Image,
    Layer,
    Normalisation,
    Pooling,
)
from solera.learn.averaging.training.layout import Parameter
from solera.learn.averaging.training.recurrent import Embedding, Recurrent

ActivationKind = Literal["relu", "tanh", "sigmoid"]
_factories: dict[str, Callable[..., Any]] = new_registry()
_given: dict[str, type] = {}
"""The class of every ``nn.Module`` that was given as it is."""
_losses: dict[str, Callable[[Any, Any], Any]] = new_registry()
given_bases: dict[str, Any] = new_registry()
"""Language models that were given as they are, by the names under which tasks ask for them."""


class Model(Component, abstract=True):
    """A network described by data."""

    stacks: ClassVar[bool] = True
    """Whether ``torch.func`` may train the module of many clients in one call, if it can."""

    @abstractmethod
    def module(self) -> Any:
        """A new network of PyTorch, for one client."""

    def shapes(self) -> list[tuple[str, Parameter]]:
        """The parameters by their names, where they are known without the network."""
        return []


class Layered(Model, abstract=True):
    """A chain of layers that Solera trains for many clients at once."""

    @abstractmethod
    def layers(self) -> list[Layer]:
        """The layers, in order."""

    def head(self) -> list[str]:
        """The name of the last layer with parameters, which personalised learners keep private."""
        last = max(i for i, layer in enumerate(self.layers()) if layer.parameters())
        return [str(last)]

    def normalisation(self) -> list[str]:
        """The names of the layers of batch normalisation."""
        return [str(i) for i, lay in enumerate(self.layers()) if isinstance(lay, Normalisation)]

    def module(self) -> Any:
        """The same network as an ``nn.Sequential``."""
        return torch().nn.Sequential(*(layer.module() for layer in self.layers()))


class MLP(Layered):
    """Dense layers of the given sizes, the input first and the outputs last.

    ``so.nn.mlp(784, 128, 10)`` has 101,770 parameters. Every layer but the last is followed by the
    ``activation`` (relu, tanh or sigmoid) and, with ``dropout`` > 0, by dropout.
    """

    def __init__(
        self, *sizes: Count, activation: ActivationKind = "relu", dropout: ProperFraction = 0.0
    ) -> None:
        self.sizes = sizes
        self.activation = activation
        self.dropout = dropout

    def check_params(self) -> None:
        super().check_params()
        if len(self.sizes) < 2:
            raise UsageError.of(self, "sizes", self.sizes, "must be two or more positive numbers")

    def layers(self) -> list[Layer]:
        layers: list[Layer] = []
        for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False):
            if layers:
                layers.append(Activation(self.activation))
                if self.dropout:
                    layers.append(Dropout(self.dropout, len(layers)))
            layers.append(Dense(inputs, outputs))
        return layers


class LinearModel(Layered):
    """One dense layer: logistic or linear regression, depending on the target."""

    def __init__(self, inputs: Count, outputs: Count) -> None:
        self.inputs = inputs
        self.outputs = outputs

    def layers(self) -> list[Layer]:
        return [Dense(self.inputs, self.outputs)]


class ImageModel(Layered, abstract=True):
    """A network whose rows are the pixels of images ``shape`` = (height, width, channels)."""

    def __init__(self, shape: Sequence[Count] = (32, 32, 3), outputs: Count = 10) -> None:
        self.shape = shape
        self.outputs = outputs

    def check_params(self) -> None:
        super().check_params()
        if len(self.shape) != 3 or min(self.shape[:2]) < 8:
            rule = "must be (height, width, channels) with sides of at least 8"
            raise UsageError.of(self, "shape", self.shape, rule)


class SimpleCNN(ImageModel):
    """Two convolutions 4×4 with 8 channels and pooling, one dense layer; 5,354 parameters on CIFAR.

    The network of the experiments of GreedyFed (Singhal et al. 2024).
    """

    def layers(self) -> list[Layer]:
        height, width, channels = self.shape
        sides = [((side - 1) // 2 - 1) // 2 for side in (height, width)]
        return [
            Image(height, width, channels),
            Convolution(channels, 8, 4, padding=1),
            Activation("relu"),
            Pooling(),
            Convolution(8, 8, 4, padding=1),
            Activation("relu"),
            Pooling(),
            Flatten(),
            Dense(8 * sides[0] * sides[1], self.outputs),
        ]


class ComplexCNN(ImageModel):
    """Six convolutions 3×3 (32, 32, 64, 64, 128, 128) with batch normalisation, dense 512 and out.

    After each pair 2×2 pooling; 1,342,122 parameters on CIFAR-10. The network of the experiments
    of Hybrid-FL (Yoshida et al. 2020).
    """

    def layers(self) -> list[Layer]:
        height, width, channels = self.shape
        layers: list[Layer] = [Image(height, width, channels)]
        for wide in (32, 64, 128):
            for inputs in (channels, wide):
                layers += [
                    Convolution(inputs, wide, 3, padding=1),
                    Activation("relu"),
                    Normalisation(wide),
                ]
            layers.append(Pooling())
            channels = wide
        flat = 128 * (height // 8) * (width // 8)
        return [
            *layers,
            Flatten(),
            Dense(flat, 512),
            Activation("relu"),
            Dense(512, self.outputs),
        ]


class ConvNet(ImageModel):
    """Blocks of a 3×3 convolution and 2×2 pooling, then one dense layer and the outputs.

    The default is the network for MNIST of the thesis on learning analytics: two blocks of 32 and
    64 channels and a dense layer of 32. For CIFAR-10 it takes more of each, for example
    ``so.nn.conv_net((32, 32, 3), channels=(32, 64, 64), dense=64)``.
    """

    def __init__(
        self,
        shape: Sequence[Count] = (28, 28, 1),
        outputs: Count = 10,
        *,
        channels: Sequence[Count] = (32, 64),
        dense: Count = 32,
        dropout: ProperFraction = 0.0,
    ) -> None:
        super().__init__(shape, outputs)
        self.channels = channels
        self.dense = dense
        self.dropout = dropout

    def layers(self) -> list[Layer]:
        height, width, inputs = self.shape
        layers: list[Layer] = [Image(height, width, inputs)]
        for wide in self.channels:
            layers += [Convolution(inputs, wide, 3, padding=1), Activation("relu"), Pooling()]
            height, width, inputs = height // 2, width // 2, wide
        layers += [Flatten(), Dense(inputs * height * width, self.dense), Activation("relu")]
        if self.dropout:
            layers.append(Dropout(self.dropout, len(layers)))
        return [*layers, Dense(self.dense, self.outputs)]


class LSTM(Layered):
    """Sequences of ``tokens`` numbers: embedding, ``depth`` LSTM layers, one dense layer.

    A row holds the numbers of its tokens in order; shorter rows begin with zeros. The default is
    the network for Shakespeare of LEAF (Caldas et al. 2018): ``so.nn.lstm(81, 80)`` reads 80
    characters and guesses the next.
    """

    def __init__(
        self,
        tokens: Count,
        outputs: Count,
        *,
        embedding: Count = 8,
        hidden: Count = 256,
        depth: Count = 2,
    ) -> None:
        self.tokens = tokens
        self.outputs = outputs
        self.embedding = embedding
        self.hidden = hidden
        self.depth = depth

    def layers(self) -> list[Layer]:
        widths = [self.embedding] + [self.hidden] * (self.depth - 1)
        return [
            Embedding(self.tokens, self.embedding),
            *(Recurrent(wide, self.hidden, every=True) for wide in widths[:-1]),
            Recurrent(widths[-1], self.hidden),
            Dense(self.hidden, self.outputs),
        ]


def text_head(inputs: int, outputs: int, *, hidden: int = 64, dropout: float = 0.2) -> MLP:
    """The small network on top of a frozen representation of text: dropout, one hidden layer."""
    return MLP(inputs, hidden, outputs, dropout=dropout)


class Registered(Model):
    """A model made by a factory that :func:`register` knows, with its parameters.

    ``shape`` is that of its rows, where they are no vectors.
    """

    def __init__(
        self, name: str, params: Mapping[str, Any] | None = None, *, shape: Sequence[int] = ()
    ) -> None:
        self.name = name
        self.params = params
        self.shape = shape

    def described_params(self) -> dict[str, Any]:
        params = super().described_params()
        return params if self.shape else {n: v for n, v in params.items() if n != "shape"}

    def module(self) -> Any:
        """A new network, which gets rows in their shape."""
        network = self._made()
        if self.shape:
            network.register_forward_pre_hook(_RowsOfShape(tuple(self.shape)))
        return network

    def _made(self) -> Any:
        if self.name not in _factories:
            hint = "register its factory with so.nn.register(name, factory) in this process"
            raise UsageError(f"no model {self.name!r} is registered here", hint=hint)
        return _factories[self.name](**(self.params or {}))


class _RowsOfShape:
    """A hook that gives a network rows in their own shape, which lie flat in matrices."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __call__(self, network: Any, inputs: Any) -> Any:
        rows = inputs[0]
        return (rows.reshape(-1, *self.shape), *inputs[1:]) if rows.ndim == 2 else None


def register(name: str, factory: Callable[..., Any]) -> Callable[..., Registered]:
    """Make ``factory(**params)``, which returns an ``nn.Module``, known by a name.

    Coordinator and clients each register it in their own process; only name and parameters travel.
    The result makes the model: ``net = so.nn.register("my.net", Net)``, then ``net(width=3)``.
    """
    _factories[name] = factory
    return lambda **params: Registered(name, params)


def register_loss(name: str, loss: Callable[[Any, Any], Any]) -> str:
    """Make a loss ``loss(outputs, target) -> one number per row`` known by a name.

    Classes come as their indices, one whole number a row; labels and numbers in columns.
    """
    _losses[name] = loss
    return name


def find_loss(name: str) -> Callable[[Any, Any], Any]:
    """The registered loss of that name."""
    if name not in _losses:
        hint = "register it with so.nn.register_loss(name, function) in this process"
        raise UsageError(f"no loss {name!r} is registered here", hint=hint)
    return _losses[name]


def described(model: Any) -> Model:
    """The model itself, or for an ``nn.Module`` in simulation a name it is kept under here."""
    if isinstance(model, Model):
        return model
    if not isinstance(model, torch().nn.Module):
        hint = "for example so.nn.mlp(64, 100, 10)"
        if hasattr(model, "fit"):
            hint = "so.FedTorch(**so.learn.adapters.scikit_learn(…)) averages estimators"
        raise UsageError(f"a model is needed, not {model!r}", hint=hint)
    values = b"".join(
        v.detach().cpu().double().numpy().tobytes() for v in model.state_dict().values()
    )
    digest = blake2b(repr(model).encode() + values, digest_size=12).hexdigest()
    name = f"given/{digest}"
    if name not in _factories:
        kept = deepcopy(model)
        _factories[name] = lambda: deepcopy(kept)
        _given[name] = type(model)
    return Registered(name)


def registration_needed(model: Registered) -> list[str]:
    """What a process must register before it can build this model."""
    made = _given.get(model.name, _factories.get(model.name))
    maker = "its factory" if made is None else f"{made.__module__}.{made.__qualname__}"
    call = f"so.nn.register({model.name!r}, factory)"
    return [f"before so.load, call {call} with a factory that makes the network of {maker}"]


def described_loss(loss: Any) -> str | None:
    """The name of a loss; a function is registered under a name of its own, for simulation."""
    if loss is None or isinstance(loss, str):
        return loss
    if not callable(loss) or isinstance(loss, type):
        raise UsageError(f"loss={loss!r} must be a name, a function or a loss of torch.nn")
    if isinstance(loss, torch().nn.Module):
        kind, per_row = type(loss), deepcopy(loss)
        if hasattr(per_row, "reduction"):
            per_row.reduction = "none"
        values = [value.cpu().numpy().tobytes() for value in loss.state_dict().values()]
        digest = blake2b(repr(vars(per_row)).encode() + b"".join(values), digest_size=6).hexdigest()
        return register_loss(f"given/{kind.__module__}.{kind.__qualname__}/{digest}", per_row)
    name = f"given/{loss.__module__}.{loss.__qualname__}"
    if "reduction" in signature(loss).parameters:
        return register_loss(name, partial(loss, reduction="none"))
    return register_loss(name, loss)
