"""A party's own networks: forward, what is sent of it, and one step back.

Nothing but weights, moments and row numbers is kept from task to task; the way back computes the
way forward once more with the same draws, so that an ask that is tried again ends the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from solera.core.clients import Array, Client, FloatArray, IntArray
from solera.core.errors import Refusal
from solera.core.rng import generator, stream_keys
from solera.learn.averaging.training.architecture import Architecture, architecture_of
from solera.learn.averaging.training.batches import ADAM
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.losses import row_losses, targets_of
from solera.learn.averaging.training.reference import _outputs
from solera.learn.probabilities import sigmoid, softmax
from solera.learn.vertical.encoding import encode
from solera.learn.vertical.leakage import distance_correlation
from solera.learn.vertical.party import (
    SharedPart,
    part_of,
    private_seed,
    shared_rows,
)

_SAMPLE = 256
"""Rows of which the distance correlation is computed."""


@contextmanager
def one_thread() -> Iterator[None]:
    """The same bits wherever a party computes: sums depend on how many threads add them up."""
    t = torch()
    threads = t.get_num_threads()
    t.set_num_threads(1)
    try:
        yield
    finally:
        t.set_num_threads(threads)


def split_part(client: Client, model: str) -> dict[str, Any]:
    """This party's part of the network."""
    split: dict[str, Any] | None = part_of(client, model).get("split")
    if split is None:
        raise Refusal(f"this client holds no part of the model {model[:12]}")
    return split


def first_network(client: Client, described: Any, training: Any) -> dict[str, Any]:
    seed = int(client.key[0] >> np.uint64(1))  # another one for every party
    weights = architecture_of(described).start(seed, training["dtype"])
    none = np.zeros((0, architecture_of(described).layout.trained), weights.dtype)
    return {"model": described, "weights": weights, "moments": none, "steps": 0}


def batch_rows(client: Client, rows: int, step: int, steps: int, size: int | None) -> IntArray:
    """Places, among the rows to train on, of a batch; every epoch has an order of its own."""
    epoch, batch = divmod(step, steps)
    order = generator(client.draws.seed, "split batches", epoch).permutation(rows)
    size = rows if size is None else size
    return order[batch * size : (batch + 1) * size]


def speak(client: Client, split: Any, X: Any, step: int) -> tuple[Any, Any]:
    """What the bottom network says of rows, clipped, as something to go back through."""
    t = torch()
    training, network = split["training"], split["bottom"]
    architecture = architecture_of(network["model"])
    net = architecture.load(network["weights"])
    net.train()
    x = encode(X, client.data.schema, split["encoding"])
    said = _outputs(
        architecture, net, t.as_tensor(x.astype(training["dtype"])), *draws_of(client, step)
    )
    return _clipped(said.flatten(1), training["clip"]), net


def sent(client: Client, split: Any, X: Any, step: int | None) -> Array:
    """What leaves of rows: clipped and with noise; without a step as at prediction."""
    t = torch()
    training, network = split["training"], split["bottom"]
    with t.no_grad():
        if step is None:
            net = architecture_of(network["model"]).load(network["weights"]).eval()
            x = encode(X, client.data.schema, split["encoding"]).astype(training["dtype"])
            said = _clipped(net(t.as_tensor(x)).flatten(1), training["clip"])
        else:
            said, _ = speak(client, split, X, step)
    leaves: Array = noise_of(client, training["noise"], "forward")(said.numpy())
    return leaves


def _clipped(said: Any, most: float | None) -> Any:
    """Rows of a norm of at most ``most``."""
    if most is None:
        return said
    norms = said.norm(dim=1, keepdim=True)
    return said * (most / norms.clamp(min=most))


def noise_of(client: Client, deviation: float, purpose: str) -> Any:
    """Adds Gaussian noise that only this party can draw."""
    if not deviation:
        return lambda values: values
    key = np.frombuffer(private_seed(client, purpose)[:16], dtype=np.uint64)
    draw = np.random.Generator(np.random.Philox(key=key))

    def noisy(values: Array) -> Array:
        return (values + deviation * draw.normal(size=values.shape)).astype(values.dtype)

    return noisy


def draws_of(client: Client, step: int) -> tuple[Any, int]:
    """Key and step of dropout, the same on the way forward and back."""
    return stream_keys(client.draws.seed, "split", 0, [client.id]), step


def inputs_of(sealed: Any, feeders: list[int], rows: int, dtype: str) -> list[Any]:
    """What the bottom networks said, in the order of the parties, to go back through."""
    given = {m["sender"]: m["content"]["values"] for m in sealed}
    if sorted(given) != sorted(feeders):
        raise Refusal("a party did not speak of this batch")
    inputs = []
    for feeder in feeders:
        if len(given[feeder]) != rows:
            raise Refusal(f"party {feeder} speaks of {len(given[feeder])} rows, there are {rows}")
        values = torch().tensor(np.asarray(given[feeder], dtype=dtype))
        inputs.append(values.requires_grad_())
    return inputs


def joined(inputs: list[Any], join: str) -> Any:
    if join == "concat":
        return torch().cat(inputs, dim=1)
    if len({given.shape[1] for given in inputs}) > 1:
        raise Refusal("bottom networks whose outputs are added need equally many")
    return sum(inputs[1:], inputs[0])


def total_gradient(sealed: Any, owners: list[int], said: Any) -> Any:
    """The gradients of all label owners, added."""
    given = {m["sender"]: m["content"]["values"] for m in sealed}
    if sorted(given) != sorted(owners):
        raise Refusal("a label owner did not send its gradient")
    if any(given[owner].shape != tuple(said.shape) for owner in owners):
        raise Refusal("a gradient is not of this batch")
    t = torch()
    return sum(t.tensor(np.asarray(given[owner])).to(said.dtype) for owner in owners)


def stepped(network: Any, net: Any, training: Any) -> dict[str, Any]:
    """The network after one step of its optimiser; ``net`` holds gradients."""
    architecture: Architecture = architecture_of(network["model"])
    parameters = dict(net.named_parameters())
    names = [slot.name for slot in architecture.layout.trained_slots]
    flat = np.concatenate([parameters[n].detach().numpy().reshape(-1) for n in names])
    gradient = np.concatenate([_gradient_of(parameters[n]) for n in names])
    gradient = gradient + training["l2"] * flat
    moments, steps = network["moments"], network["steps"] + 1
    if training["optimiser"] == "sgd":
        change = gradient
        if training["momentum"]:
            before = moments[0] if len(moments) else np.zeros_like(flat)
            change = training["momentum"] * before + gradient
            moments = change[None]
    else:
        beta1, beta2, epsilon = ADAM
        mean, square = moments if len(moments) else np.zeros((2, len(flat)), flat.dtype)
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        corrected = np.sqrt(square / (1 - beta2**steps)) + epsilon
        change = mean / (1 - beta1**steps) / corrected
        moments = np.stack([mean, square])
    moved = architecture.layout.arrays(flat - np.asarray(training["lr"] * change, flat.dtype))
    values = {name: v.detach().numpy() for name, v in net.state_dict().items()} | moved
    weights = architecture.layout.vector(values, flat.dtype)
    return {**network, "weights": weights, "moments": moments, "steps": steps}


def _gradient_of(parameter: Any) -> Array:
    if parameter.grad is None:
        return np.zeros(parameter.numel(), parameter.detach().numpy().dtype)
    return np.asarray(parameter.grad.numpy().reshape(-1))


def correlation_told(client: Client, split: Any, rows: Any) -> float:
    """How much what this party sends tells of its rows."""
    X = rows.X[:_SAMPLE]
    x = encode(X, client.data.schema, split["encoding"])
    return distance_correlation(x, sent(client, split, X, None))


def part_losses(client: Client, model: str, part: SharedPart, split: Any, said: Array) -> Array:
    t, training = torch(), split["training"]
    rows = shared_rows(client, model, part)
    y = targets_of(rows.y, training["loss"], split["classes"], training["dtype"])
    with t.no_grad():
        return np.asarray(row_losses(t.tensor(said), t.as_tensor(y), training["loss"]).numpy())


def probabilities(said: Array, loss: str) -> FloatArray:
    said = np.asarray(said, dtype=float)
    if loss == "softmax":
        return softmax(said)
    if loss == "binary":
        p = sigmoid(said[:, 0])
        return np.stack([1 - p, p], axis=1)
    return sigmoid(said) if loss == "sigmoid" else said
