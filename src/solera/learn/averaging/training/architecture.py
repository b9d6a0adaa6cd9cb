"""A network ready to be trained, built from the description in an ask."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from solera.core.clients import Array
from solera.core.component import build
from solera.core.errors import DataError, Refusal, UsageError
from solera.core.payload import decode, encode
from solera.core.rng import generator
from solera.learn.averaging.models import Layered, Model
from solera.learn.averaging.training.devices import seeded, torch
from solera.learn.averaging.training.layers import (
    Activation,
    Convolution,
    Dense,
    Dropout,
    Image,
    Layer,
    Normalisation,
)
from solera.learn.averaging.training.layout import Layout, Parameter, TrainingLayout


class Architecture:
    """A model with its layers, where it has some, and the order of its parameters."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.layers: list[Layer] | None = None
        if isinstance(model, Layered):
            self.layers = model.layers()
            named = [
                (f"{i}.{parameter.name}", parameter)  # as in an ``nn.Sequential``
                for i, layer in enumerate(self.layers)
                for parameter in layer.parameters()
            ]
        else:
            named = model.shapes() or _parameters_of(model.module())
        self._drawn_here = bool(self.layers or model.shapes())
        self.layout = Layout(named)
        self.training_layout = TrainingLayout(self.layout)

    @cached_property
    def dense(self) -> bool:
        """Whether it is a chain of dense layers, whose gradients are written by hand."""
        kinds = (Dense, Activation, Dropout)
        return self.layers is not None and all(isinstance(lay, kinds) for lay in self.layers)

    @cached_property
    def convolves(self) -> bool:
        if self.layers is not None:
            return any(isinstance(layer, Convolution) for layer in self.layers)
        conv = torch().nn.modules.conv._ConvNd
        return any(isinstance(part, conv) for part in self.module().modules())

    @cached_property
    def draws(self) -> bool:
        """Whether our layers draw random numbers in training."""
        return any(isinstance(layer, Dropout) for layer in self.layers or ())

    @cached_property
    def mixes_rows(self) -> str:
        """The name of a layer whose outputs for a row depend on the others of its batch, if any."""
        if self.layers is not None:
            mixing = [f"layer {i}" for i, lay in enumerate(self.layers)
                      if isinstance(lay, Normalisation)]  # fmt: skip
        elif self._drawn_here:
            mixing = []
        else:
            kind = torch().nn.modules.batchnorm._NormBase
            mixing = [
                name for name, part in self.module().named_modules() if isinstance(part, kind)
            ]
        return mixing[0] if mixing else ""

    @cached_property
    def stacks(self) -> bool:
        """Whether ``torch.func`` can train the module of many clients in one call."""
        if self.layers is not None or not self.model.stacks:
            return False
        module, nn = self.module(), torch().nn
        random = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.MultiheadAttention, nn.RNNBase)
        return not any(isinstance(part, random) for part in module.modules()) and not any(
            True for _ in module.buffers()
        )

    def module(self) -> Any:
        """The network for one client."""
        return self.model.module()

    def start(self, seed: int, dtype: str) -> Array:
        """The vector training begins with."""
        if self._drawn_here:
            return self.layout.start(generator(seed, "init"), dtype)
        with seeded(seed):
            module = self.module()
        return self.vector(module, dtype)

    def load(self, vector: Array) -> Any:
        """A module with the parameters of a flat vector."""
        t = torch()
        arrays = self.layout.arrays(np.asarray(vector))
        state = {name: t.tensor(value) for name, value in arrays.items()}
        module = self.module().to(state[self.layout.slots[0].name].dtype)
        module.load_state_dict(state, strict=False)
        return module

    def vector(self, module: Any, dtype: Any) -> Array:
        """The flat vector of a module."""
        values = {name: _numbers(value) for name, value in module.state_dict().items()}
        return self.layout.vector(values, dtype)

    @property
    def inputs(self) -> int | None:
        """Number of values of a row, where the layers say so."""
        first = self.layers[0] if self.layers else None
        if isinstance(first, Image):
            return first.height * first.width * first.channels
        return first.inputs if isinstance(first, Dense) else None

    @property
    def outputs(self) -> int | None:
        """Number of outputs, where the layers say so."""
        last = self.layers[-1] if self.layers else None
        return last.outputs if isinstance(last, Dense) else None

    def check_weights(self, weights: Any) -> None:
        """Refuse a vector that has not one number for each parameter."""
        if np.shape(weights) != (self.layout.size,):
            raise Refusal(
                f"{self.model!r} has {self.layout.size:,} parameters, the weights are "
                f"{' × '.join(map(str, np.shape(weights)))}"
            )

    def check(self, width: int, outputs: int) -> None:
        """Does the model take rows of this width and give that many outputs?"""
        if self.layers is None:
            return
        if self.inputs not in (None, width):
            raise DataError(
                f"{self.model!r} takes rows of {self.inputs} values, the data has {width}",
                hint="the first size of a model is the number of columns",
            )
        if self.outputs != outputs and (self.outputs, outputs) != (1, 2):
            raise DataError(
                f"{self.model!r} has {self.outputs} outputs, the target needs {outputs}",
                hint="the last size of a model is the number of classes, labels or numbers",
            )


def _numbers(value: Any) -> Array:
    """A tensor as an array; 16 bits of bfloat16, which NumPy has not, as 32."""
    value = value.detach().cpu()
    return np.asarray((value.float() if value.dtype == torch().bfloat16 else value).numpy())


def _parameters_of(module: Any) -> list[tuple[str, Parameter]]:
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    if not parameters:
        raise UsageError("the model has no parameters to train")
    return [
        (name, Parameter(name, tuple(value.shape), trained=name in parameters))
        for name, value in module.state_dict().items()
        if name in parameters or (name in buffers and value.is_floating_point())
    ]


def architecture_of(description: Mapping[str, Any]) -> Architecture:
    """The architecture of a described model; architectures are kept."""
    return built_architecture(encode(description))


@lru_cache(maxsize=16)
def built_architecture(frame: bytes) -> Architecture:
    return Architecture(build(decode(frame)))
