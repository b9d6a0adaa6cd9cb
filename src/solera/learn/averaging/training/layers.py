"""The layers that models are made of: their parameters, and what they do to rows of many clients.

A batch has one more axis than usual: rows of C clients are (C, B, …), and every parameter has one
value per client, (C, …). Layers carry no numbers themselves; a :class:`TrainingLayout` says where
in one flat vector each parameter lies.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from solera.core.rng import Bits, uniform
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.layout import Parameter, Tensors

NARROW = 32
"""Layers with fewer outputs are trained with weights (out, in), wider ones with (in, out).

Measured: with batches of 20 rows and ten outputs the products of (out, in) weights are two to six
times faster, from about 32 outputs on (in, out) is as fast or faster.
"""
_MOMENTUM, EPSILON = 0.1, 1e-5


@dataclass
class Pass:
    """What a forward pass in training needs besides rows and parameters.

    ``real`` marks the rows that are no padding, (C, B), or is None when all are real; ``keys`` and
    ``step`` fix the draws of dropout; ``moved`` collects new running statistics; ``tensor_cores``
    says that products need not be of float32.
    """

    keys: Bits
    step: int
    real: Any = None
    moved: Tensors | None = None
    tensor_cores: bool = False


class Layer(ABC):
    """A layer without parameters; subclasses override what they need."""

    def parameters(self) -> Sequence[Parameter]:
        return ()

    def module(self) -> Any:
        """The same layer of PyTorch, for one client."""
        return _as_module(self)

    @abstractmethod
    def forward(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        """The layer for many clients at once; ``training`` is None when it only predicts."""

    def forward_on_gpu(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        """The same where images have their channels last, (C, B, H, W, channels)."""
        return self.forward(x, own, training)


@dataclass(frozen=True)
class Dense(Layer):
    """x W + b."""

    inputs: int
    outputs: int

    @cached_property
    def wide(self) -> bool:
        return self.outputs >= NARROW

    def parameters(self) -> Sequence[Parameter]:
        bound = 1 / math.sqrt(self.inputs)
        return (
            Parameter("weight", (self.outputs, self.inputs), bound, transposed=self.wide),
            Parameter("bias", (self.outputs,), bound),
        )

    def module(self) -> Any:
        return torch().nn.Linear(self.inputs, self.outputs)

    def forward(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        W, b = own["weight"], own["bias"].unsqueeze(1)
        return torch().baddbmm(b, x, W if self.wide else W.transpose(1, 2))


def _as_module(layer: Layer) -> Any:
    """A layer without parameters, of which PyTorch has none alike, as a module for one client."""

    class OneClient(torch().nn.Module):  # type: ignore[misc]
        current: Pass | None = None
        """The draws of this step; whoever trains sets it."""

        def forward(self, x: Any) -> Any:
            training = self.current if self.training else None
            return layer.forward(x.unsqueeze(0), {}, training)[0]

    return OneClient()


_ACTIVATIONS = {"relu": "ReLU", "tanh": "Tanh", "sigmoid": "Sigmoid"}


@dataclass(frozen=True)
class Activation(Layer):
    """relu, tanh or sigmoid."""

    kind: str

    def module(self) -> Any:
        return getattr(torch().nn, _ACTIVATIONS[self.kind])()

    def forward(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        return getattr(torch(), self.kind)(x)


@dataclass(frozen=True)
class Dropout(Layer):
    """Each value is dropped with probability ``rate``, the others are scaled up.

    The draws belong to the client, the step and the place in the batch, so that they do not depend
    on who else is trained at the same time.
    """

    rate: float
    place: int

    def mask(self, training: Pass, shape: tuple[int, ...], like: Any) -> Any:
        """0 or 1/(1 − rate) for every value of (C, B, …)."""
        cells = math.prod(shape[1:])
        first = (training.step << 40) | (self.place << 32)
        kept = uniform(training.keys[:, None], first + np.arange(cells)) >= self.rate
        mask = torch().from_numpy(kept.reshape(shape))
        return mask.to(like) / (1 - self.rate)

    def forward(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        return x if training is None else x * self.mask(training, tuple(x.shape), x)


@dataclass(frozen=True)
class Image(Layer):
    """Flat rows of pixels become channels × height × width."""

    height: int
    width: int
    channels: int

    def forward(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        shape = (*x.shape[:2], self.height, self.width, self.channels)
        return x.reshape(shape).permute(0, 1, 4, 2, 3)

    def forward_on_gpu(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        return x.reshape(*x.shape[:2], self.height, self.width, self.channels)


@dataclass(frozen=True)
class Convolution(Layer):
    """A square convolution with stride 1."""

    inputs: int
    outputs: int
    kernel: int
    padding: int = 0

    def parameters(self) -> Sequence[Parameter]:
        bound = 1 / math.sqrt(self.inputs * self.kernel**2)
        shape = (self.outputs, self.inputs, self.kernel, self.kernel)
        return Parameter("weight", shape, bound), Parameter("bias", (self.outputs,), bound)

    def module(self) -> Any:
        return torch().nn.Conv2d(self.inputs, self.outputs, self.kernel, padding=self.padding)

    def forward(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        clients, rows = x.shape[:2]
        weight = own["weight"].reshape(-1, self.inputs, self.kernel, self.kernel)
        joined = x.transpose(0, 1).reshape(rows, clients * self.inputs, *x.shape[3:])
        y = torch().nn.functional.conv2d(
            joined, weight, own["bias"].reshape(-1), padding=self.padding, groups=clients
        )
        return y.view(rows, clients, self.outputs, *y.shape[2:]).transpose(0, 1)

    def forward_on_gpu(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        from solera.learn.averaging.training.channels_last import convolve

        tensor_cores = training is not None and training.tensor_cores
        return convolve(x, own["weight"], own["bias"], self.padding, tensor_cores)


@dataclass(frozen=True)
class Normalisation(Layer):
    """Batch normalisation of channels (Ioffe & Szegedy 2015), with running statistics."""

    channels: int

    def parameters(self) -> Sequence[Parameter]:
        shape = (self.channels,)
        return (
            Parameter("weight", shape, fill=1.0),
            Parameter("bias", shape, fill=0.0),
            Parameter("running_mean", shape, fill=0.0, trained=False),
            Parameter("running_var", shape, fill=1.0, trained=False),
        )

    def module(self) -> Any:
        return torch().nn.BatchNorm2d(self.channels)

    def forward(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        if training is None:
            mean, variance = own["running_mean"], own["running_var"]
        else:
            mean, variance, count = self._statistics(x, training.real)
            self._move(own, training, mean, variance, count)
        scale = own["weight"] / (variance + EPSILON).sqrt()
        shift = own["bias"] - mean * scale
        return x * scale[:, None, :, None, None] + shift[:, None, :, None, None]

    def forward_on_gpu(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        from solera.learn.averaging.training.channels_last import normalise

        if training is None:
            return self.forward(x.permute(0, 1, 4, 2, 3), own, None).permute(0, 1, 3, 4, 2)
        y, mean, variance = normalise(x, own["weight"], own["bias"], training.real, EPSILON)
        places, rows = x.shape[2] * x.shape[3], x.shape[1]
        real = training.real
        count = mean.new_full((1, 1), rows) if real is None else real.sum(dim=1, keepdim=True)
        self._move(own, training, mean, variance, count * places)
        return y

    def _move(self, own: Tensors, training: Pass, mean: Any, variance: Any, count: Any) -> None:
        """Let running statistics follow those of a batch."""
        assert training.moved is not None
        bessel = count / (count - 1).clamp(min=1)
        for name, new in (("running_mean", mean), ("running_var", variance * bessel)):
            old = own[name].detach()
            training.moved[name] = old + _MOMENTUM * (new.detach() - old)

    def _statistics(self, x: Any, real: Any) -> tuple[Any, Any, Any]:
        """Mean, variance and number of the values of every channel that are no padding."""
        spatial = x.shape[3] * x.shape[4]
        if real is None:
            count = torch().full((len(x), 1), float(x.shape[1] * spatial)).to(x)
            mean = x.mean(dim=(1, 3, 4))
            variance = ((x - mean[:, None, :, None, None]) ** 2).mean(dim=(1, 3, 4))
            return mean, variance, count
        weight = real[:, :, None, None, None]
        count = (real.sum(dim=1) * spatial)[:, None]
        mean = (x * weight).sum(dim=(1, 3, 4)) / count
        spread = (x - mean[:, None, :, None, None]) ** 2 * weight
        return mean, spread.sum(dim=(1, 3, 4)) / count, count


@dataclass(frozen=True)
class Pooling(Layer):
    """The largest of every 2 × 2 values."""

    def module(self) -> Any:
        return torch().nn.MaxPool2d(2)

    def forward(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        y = torch().nn.functional.max_pool2d(x.reshape(-1, *x.shape[2:]), 2)
        return y.view(*x.shape[:2], *y.shape[1:])

    def forward_on_gpu(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        return self.forward(x.permute(0, 1, 4, 2, 3), own, training).permute(0, 1, 3, 4, 2)


@dataclass(frozen=True)
class Flatten(Layer):
    """Everything of a row in one line."""

    def module(self) -> Any:
        return torch().nn.Flatten()

    def forward(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        return x.reshape(*x.shape[:2], -1)

    def forward_on_gpu(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        images = x.ndim == 5
        return self.forward(x.permute(0, 1, 4, 2, 3) if images else x, own, training)
