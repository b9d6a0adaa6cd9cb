"""Averaged networks as graphs, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core.clients import Array
from solera.core.errors import UsageError
from solera.learn.averaging.learner import FedAvg
from solera.learn.averaging.training import layers as our
from solera.learn.averaging.training.devices import torch
from solera.learn.export.graph import Graph
from solera.learn.export.model import Outputs, add_predictor, from_scores
from solera.learn.peers import PeerToPeer

_OPERATORS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
Arrays = Mapping[str, Array]


@add_predictor.register
def _network(learner: FedAvg, graph: Graph, X: str) -> Outputs:
    """The network in its own precision; with convolutions in float32, as runtimes have them."""
    architecture = learner._architecture
    dtype = np.float32 if architecture.convolves else learner.weights_.dtype
    x = graph.cast(X, dtype)
    arrays = architecture.layout.arrays(learner.weights_.astype(dtype))
    if architecture.layers is not None:
        for i, layer in enumerate(architecture.layers):
            x = _layer(layer, graph, x, _below(arrays, str(i)))
    else:
        x = _module(learner.module(), graph, x, arrays)
    outputs = architecture.outputs or learner.schema_.outputs
    return from_scores(graph, learner.schema_, graph.cast(x, np.float64), outputs, learner)


@add_predictor.register
def _peers(learner: PeerToPeer, graph: Graph, X: str) -> Outputs:
    return add_predictor(learner.learner_, graph, X)


def _below(arrays: Arrays, name: str) -> dict[str, Array]:
    """The parameters of one part of a network, by their own names."""
    start = f"{name}."
    return {key.removeprefix(start): v for key, v in arrays.items() if key.startswith(start)}


def _layer(layer: our.Layer, graph: Graph, x: str, own: Arrays) -> str:
    match layer:
        case our.Dense():
            return graph("Gemm", x, own["weight"], own["bias"], transB=1)
        case our.Activation():
            return graph(_OPERATORS[layer.kind], x)
        case our.Dropout():
            return x
        case our.Image():
            shape = np.array([-1, layer.height, layer.width, layer.channels])
            return graph("Transpose", graph("Reshape", x, shape), perm=[0, 3, 1, 2])
        case our.Convolution():
            return graph("Conv", x, own["weight"], own["bias"], pads=[layer.padding] * 4)
        case our.Normalisation():
            return _normalised(graph, x, own, our.EPSILON)
        case our.Pooling():
            return graph("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        case our.Flatten():
            return graph("Flatten", x)
    raise UsageError(f"the layer {type(layer).__name__} cannot be exported to ONNX")


def _normalised(graph: Graph, x: str, own: Arrays, epsilon: float) -> str:
    names = ("weight", "bias", "running_mean", "running_var")
    return graph("BatchNormalization", x, *(own[name] for name in names), epsilon=epsilon)


def _module(module: Any, graph: Graph, x: str, own: Arrays) -> str:
    """One's own ``nn.Module``: chains of the layers that are used most."""
    nn = torch().nn
    match module:
        case nn.Sequential():
            for name, part in module.named_children():
                x = _module(part, graph, x, _below(own, name))
            return x
        case nn.Linear():
            bias = [own["bias"]] if "bias" in own else []
            return graph("Gemm", x, own["weight"], *bias, transB=1)
        case nn.ReLU() | nn.Tanh() | nn.Sigmoid():
            return graph(_OPERATORS[type(module).__name__.lower()], x)
        case nn.Identity() | nn.Dropout():
            return x
        case nn.Flatten() if (module.start_dim, module.end_dim) == (1, -1):
            return graph("Flatten", x)
        case nn.Unflatten() if module.dim == 1:
            return graph("Reshape", x, np.array([-1, *module.unflattened_size]))
    raise UsageError(
        f"{type(module).__name__} is a module of one's own that Solera does not know inside",
        hint="torch.onnx.export(model.module(), …) writes it, or build it as an nn.Sequential",
    )
