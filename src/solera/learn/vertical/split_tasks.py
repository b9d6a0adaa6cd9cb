"""What the parties of a split network do: bottoms forward, tops and losses, gradients back.

Nothing but weights, moments and row numbers is kept from task to task; the way back computes the
way forward once more with the same draws, so that an ask that is tried again ends the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
from msgspec import Meta

from solera.core.clients import Array, Client, FloatArray, IntArray
from solera.core.component import build
from solera.core.constraints import Count, NonNegative, NonNegativeInt, Positive, ProperFraction
from solera.core.disclosure.declared import Checked, Classes, Shape
from solera.core.disclosure.evidence import Sums
from solera.core.errors import DataError, Refusal, SoleraError
from solera.core.release import Cells, Facts, RowsOut
from solera.core.rng import generator, stream_keys
from solera.core.schema import Schema
from solera.core.sealing import message
from solera.core.task import task
from solera.learn.averaging.models import Layered, Registered
from solera.learn.averaging.training.architecture import Architecture, architecture_of
from solera.learn.averaging.training.batches import ADAM
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.losses import row_losses, targets_of
from solera.learn.averaging.training.reference import _outputs
from solera.learn.probabilities import sigmoid, softmax
from solera.learn.vertical.encoding import encode, encoded_width, encoding_of
from solera.learn.vertical.judging import ModelName, spread
from solera.learn.vertical.leakage import distance_correlation
from solera.learn.vertical.party import (
    SharedPart,
    keep_outputs,
    keep_part,
    labelled,
    part_of,
    private_seed,
    row_numbers,
    shared_rows,
)

_SAMPLE = 256
"""Rows of which the distance correlation is computed."""
MOST_PARTIES = 64
_Parties = Annotated[list[NonNegativeInt], Meta(max_length=MOST_PARTIES)]
_Step = Annotated[int, Meta(ge=0, lt=1 << 40)]


def _model_objection(value: Any, schema: Schema) -> str | None:
    try:
        if not isinstance(build(value), Layered | Registered):
            return "is no model"
        architecture_of(value)
    except (SoleraError, TypeError, ValueError, KeyError, ArithmeticError):
        return "is no model"
    return None


Described = Annotated[dict[str, Any], Checked(_model_objection)]


@contextmanager
def _one_thread() -> Iterator[None]:
    """The same bits wherever a party computes: sums depend on how many threads add them up."""
    t = torch()
    threads = t.get_num_threads()
    t.set_num_threads(1)
    try:
        yield
    finally:
        t.set_num_threads(threads)


class Training(TypedDict):
    """How every party trains its network, and what it does to what it sends."""

    lr: Positive
    optimiser: Literal["sgd", "adam"]
    momentum: ProperFraction
    l2: NonNegative
    batch_size: Count | None
    clip: Positive | None
    noise: NonNegative
    gradient_noise: NonNegative
    join: Literal["concat", "sum"]
    loss: str
    dtype: Literal["float32", "float64"]


class Start(TypedDict):
    """What ``split.start`` takes: this party's networks, and who is who."""

    model: ModelName
    bottom: Described | None
    top: Described | None
    classes: Annotated[Array, Classes()]
    standardise: bool
    training: Training
    feeders: _Parties
    owners: _Parties


class Sent(TypedDict):
    """What a bottom network says of a batch, or the gradient of the loss by it."""

    values: Annotated[FloatArray, Shape("*", "*", longest=20_000_000)]


class FromParty(TypedDict):
    """Values, and whose they are."""

    sender: NonNegativeInt
    content: Sent


class Bottom(TypedDict):
    """What ``split.bottom`` takes: a batch to go back through and one to go forward with."""

    model: ModelName
    back: _Step | None
    forward: _Step | None
    steps: Count
    sealed: NotRequired[list[FromParty]]


class Top(TypedDict):
    """What ``split.top`` takes: the batch."""

    model: ModelName
    step: _Step
    steps: Count
    sealed: list[FromParty]


class Say(TypedDict):
    """What ``split.say`` takes: the rows of which the bottom networks speak."""

    model: ModelName
    part: SharedPart


class Said(TypedDict):
    """What ``split.answer`` takes: what they said."""

    model: ModelName
    part: SharedPart
    sealed: list[FromParty]


class Epoch(TypedDict):
    """What ``split.epoch`` takes."""

    model: ModelName


class Keep(TypedDict):
    """What ``split.keep`` takes: keep these weights as the best ones, or take the best back."""

    model: ModelName
    what: Literal["keep", "restore"]


class Averaged(TypedDict):
    """What ``split.average`` takes: the top networks of the other label owners."""

    model: ModelName
    sealed: list[FromParty]


# --- the beginning ---


@task("split.start", ask=Start, release=[Facts("parameters")])
def start(client: Client, ask: Any) -> dict[str, Any]:
    """Draw this party's first weights, and see how its columns are encoded."""
    rows, schema = shared_rows(client, ask["model"]), client.data.schema
    training = ask["training"]
    if not len(rows):
        raise DataError("no shared rows are left to train on")
    kept: dict[str, Any] = {
        "training": training,
        "feeders": list(ask["feeders"]),
        "owners": list(ask["owners"]),
        "classes": ask["classes"],
        "losses": np.zeros(len(rows)),
    }
    if ask["bottom"] is not None:
        X = np.asarray(rows.X, dtype=float)
        if not ask["standardise"] and not np.isfinite(X).all():
            raise DataError("this party has missing values", hint="standardise=True fills them")
        kept["encoding"] = encoding_of(X, schema, standardise=ask["standardise"])
        kept["bottom"] = _first(client, ask["bottom"], training)
        width = architecture_of(ask["bottom"]).inputs
        if width not in (None, encoded_width(schema)):
            raise DataError(
                f"the bottom network takes {width} columns, this party has {encoded_width(schema)}"
            )
    if ask["top"] is not None:
        if rows.y is None:
            raise DataError("this party holds no labels")
        kept["top"] = _first(client, ask["top"], training)
    keep_part(client, ask["model"], split=kept)
    parameters = [len(kept[which]["weights"]) for which in ("bottom", "top") if which in kept]
    return {"parameters": parameters}


def _first(client: Client, described: Any, training: Any) -> dict[str, Any]:
    seed = int(client.key[0] >> np.uint64(1))  # another one for every party
    weights = architecture_of(described).start(seed, training["dtype"])
    none = np.zeros((0, architecture_of(described).layout.trained), weights.dtype)
    return {"model": described, "weights": weights, "moments": none, "steps": 0}


def _split(client: Client, model: str) -> dict[str, Any]:
    """This party's part of the network."""
    split: dict[str, Any] | None = part_of(client, model).get("split")
    if split is None:
        raise Refusal(f"this client holds no part of the model {model[:12]}")
    return split


# --- batches ---


def batch_rows(client: Client, rows: int, step: int, steps: int, size: int | None) -> IntArray:
    """Places, among the rows to train on, of a batch; every epoch has an order of its own."""
    epoch, batch = divmod(step, steps)
    order = generator(client.draws.seed, "split batches", epoch).permutation(rows)
    size = rows if size is None else size
    return order[batch * size : (batch + 1) * size]


@task(
    "split.bottom",
    ask=Bottom,
    release=[RowsOut("sealed", "distance_correlation")],
    sealed=True,
)
@_one_thread()
def bottom(client: Client, ask: Any) -> dict[str, Any]:
    """Change this party's network by a batch's gradients, and speak of the next batch."""
    model, split = ask["model"], _split(client, ask["model"])
    training, network = split["training"], split["bottom"]
    rows = shared_rows(client, model)
    size = training["batch_size"]
    if ask["back"] is not None:
        places = batch_rows(client, len(rows), ask["back"], ask["steps"], size)
        said, net = _speak(client, split, rows.X[places], ask["back"])
        gradient = _total(ask.get("sealed", ()), split["owners"], said)
        (said * gradient).sum().backward()
        network = _stepped(network, net, training)
        keep_part(client, model, split={**split, "bottom": network})
        split = {**split, "bottom": network}
    if ask["forward"] is None:
        return {"sealed": [], "distance_correlation": _told(client, split, rows)}
    places = batch_rows(client, len(rows), ask["forward"], ask["steps"], size)
    values = _sent(client, split, rows.X[places], ask["forward"])
    letters = [message(o, top, client.draws.round, {"values": values}) for o in split["owners"]]
    return {"sealed": letters}


@task("split.top", ask=Top, release=[RowsOut("sealed")], sealed=True)
@_one_thread()
def top(client: Client, ask: Any) -> dict[str, Any]:
    """Loss of a batch, a step of the top network, and gradients for the bottom networks."""
    t = torch()
    model, split = ask["model"], _split(client, ask["model"])
    training, feeders = split["training"], split["feeders"]
    rows = shared_rows(client, model)
    places = batch_rows(client, len(rows), ask["step"], ask["steps"], training["batch_size"])
    inputs = _inputs(ask["sealed"], feeders, len(places), training["dtype"])
    network = split["top"]
    architecture = architecture_of(network["model"])
    net = architecture.load(network["weights"])
    net.train()
    said = _outputs(
        architecture, net, _joined(inputs, training["join"]), *_draw(client, ask["step"])
    )
    y = targets_of(rows.y[places], training["loss"], split["classes"], training["dtype"])
    losses = row_losses(said, t.as_tensor(y), training["loss"])
    known = labelled(client, model, "train")[places]
    losses = t.where(t.as_tensor(known), losses, t.zeros_like(losses))
    (losses.sum() / len(places)).backward()
    kept = split["losses"].copy()
    kept[places] = losses.detach().numpy()
    network = _stepped(network, net, training)
    keep_part(client, model, split={**split, "top": network, "losses": kept})
    letters = []
    noise = _noise(client, training["gradient_noise"], "gradient")
    for feeder, given in zip(feeders, inputs, strict=True):
        gradient = noise(given.grad.numpy())
        letters.append(message(feeder, bottom, client.draws.round + 1, {"values": gradient}))
    return {"sealed": letters}


def _speak(client: Client, split: Any, X: Any, step: int) -> tuple[Any, Any]:
    """What the bottom network says of rows, clipped, as something to go back through."""
    t = torch()
    training, network = split["training"], split["bottom"]
    architecture = architecture_of(network["model"])
    net = architecture.load(network["weights"])
    net.train()
    x = encode(X, client.data.schema, split["encoding"])
    said = _outputs(
        architecture, net, t.as_tensor(x.astype(training["dtype"])), *_draw(client, step)
    )
    return _clipped(said.flatten(1), training["clip"]), net


def _sent(client: Client, split: Any, X: Any, step: int | None) -> Array:
    """What leaves of rows: clipped and with noise; without a step as at prediction."""
    t = torch()
    training, network = split["training"], split["bottom"]
    with t.no_grad():
        if step is None:
            net = architecture_of(network["model"]).load(network["weights"]).eval()
            x = encode(X, client.data.schema, split["encoding"]).astype(training["dtype"])
            said = _clipped(net(t.as_tensor(x)).flatten(1), training["clip"])
        else:
            said, _ = _speak(client, split, X, step)
    sent: Array = _noise(client, training["noise"], "forward")(said.numpy())
    return sent


def _clipped(said: Any, most: float | None) -> Any:
    """Rows of a norm of at most ``most``."""
    if most is None:
        return said
    norms = said.norm(dim=1, keepdim=True)
    return said * (most / norms.clamp(min=most))


def _noise(client: Client, deviation: float, purpose: str) -> Any:
    """Adds Gaussian noise that only this party can draw."""
    if not deviation:
        return lambda values: values
    key = np.frombuffer(private_seed(client, purpose)[:16], dtype=np.uint64)
    draw = np.random.Generator(np.random.Philox(key=key))

    def noisy(values: Array) -> Array:
        return (values + deviation * draw.normal(size=values.shape)).astype(values.dtype)

    return noisy


def _draw(client: Client, step: int) -> tuple[Any, int]:
    """Key and step of dropout, the same on the way forward and back."""
    return stream_keys(client.draws.seed, "split", 0, [client.id]), step


def _inputs(sealed: Any, feeders: list[int], rows: int, dtype: str) -> list[Any]:
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


def _joined(inputs: list[Any], join: str) -> Any:
    if join == "concat":
        return torch().cat(inputs, dim=1)
    if len({given.shape[1] for given in inputs}) > 1:
        raise Refusal("bottom networks whose outputs are added need equally many")
    return sum(inputs[1:], inputs[0])


def _total(sealed: Any, owners: list[int], said: Any) -> Any:
    """The gradients of all label owners, added."""
    given = {m["sender"]: m["content"]["values"] for m in sealed}
    if sorted(given) != sorted(owners):
        raise Refusal("a label owner did not send its gradient")
    if any(given[owner].shape != tuple(said.shape) for owner in owners):
        raise Refusal("a gradient is not of this batch")
    t = torch()
    return sum(t.tensor(np.asarray(given[owner])).to(said.dtype) for owner in owners)


def _stepped(network: Any, net: Any, training: Any) -> dict[str, Any]:
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


def _told(client: Client, split: Any, rows: Any) -> float:
    """How much what this party sends tells of its rows."""
    X = rows.X[:_SAMPLE]
    x = encode(X, client.data.schema, split["encoding"])
    return distance_correlation(x, _sent(client, split, X, None))


# --- after an epoch, and prediction ---


def _losses_behind(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    losses = _split(client, ask["model"])["losses"]
    numbers = row_numbers(client, ask["model"], "train")
    known = labelled(client, ask["model"], "train")
    given = spread(np.where(known, losses, 0.0)[:, None], numbers, len(client.data))
    counted = spread(known[:, None], numbers, len(client.data))
    return {"loss": Sums(given, what="losses", beyond=True), "rows": Sums(counted)}


@task("split.epoch", ask=Epoch, release=[Cells("loss", "rows", behind=_losses_behind)])
def epoch(client: Client, ask: Any) -> dict[str, Any]:
    """The sum of the losses of the rows of the last epoch."""
    losses = _split(client, ask["model"])["losses"]
    known = labelled(client, ask["model"], "train")
    return {"loss": float(losses[known].sum()), "rows": int(known.sum())}


@task("split.say", ask=Say, release=[RowsOut("sealed")], sealed=True)
@_one_thread()
def say(client: Client, ask: Any) -> dict[str, Any]:
    """Speak of all rows of a part to the label owners."""
    split = _split(client, ask["model"])
    rows = shared_rows(client, ask["model"], ask["part"])
    values = _sent(client, split, rows.X, None)
    letters = [message(o, answer, client.draws.round, {"values": values}) for o in split["owners"]]
    return {"sealed": letters}


def _answer_behind(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    model, part = ask["model"], ask["part"]
    split = _split(client, model)
    numbers = row_numbers(client, model, part)
    known = labelled(client, model, part) & (part != "now")
    losses = np.where(known, _part_losses(client, model, part, split, split["scores"]), 0.0)
    given = spread(losses[:, None], numbers, len(client.data))
    counted = spread(known[:, None], numbers, len(client.data))
    return {"loss": Sums(given, what="losses", beyond=True), "rows": Sums(counted)}


@task(
    "split.answer",
    ask=Said,
    release=[Cells("loss", "rows", behind=_answer_behind)],
    sealed=True,
)
@_one_thread()
def answer(client: Client, ask: Any) -> dict[str, Any]:
    """What the top network makes of what all bottoms said; this party keeps it."""
    t = torch()
    model, part = ask["model"], ask["part"]
    split = _split(client, model)
    training, network = split["training"], split["top"]
    rows = shared_rows(client, model, part)
    inputs = _inputs(ask["sealed"], split["feeders"], len(rows), training["dtype"])
    net = architecture_of(network["model"]).load(network["weights"]).eval()
    with t.no_grad():
        said = net(_joined(inputs, training["join"])).numpy()
    keep_outputs(client, model, part, _probabilities(said, training["loss"]))
    split = {**split, "scores": said}
    keep_part(client, model, split=split)
    if rows.y is None or part == "now":
        return {"loss": 0.0, "rows": 0}
    known = labelled(client, model, part)
    losses = _part_losses(client, model, part, split, said)
    return {"loss": float(losses[known].sum()), "rows": int(known.sum())}


def _part_losses(client: Client, model: str, part: SharedPart, split: Any, said: Array) -> Array:
    t, training = torch(), split["training"]
    rows = shared_rows(client, model, part)
    y = targets_of(rows.y, training["loss"], split["classes"], training["dtype"])
    with t.no_grad():
        return np.asarray(row_losses(t.tensor(said), t.as_tensor(y), training["loss"]).numpy())


def _probabilities(said: Array, loss: str) -> FloatArray:
    said = np.asarray(said, dtype=float)
    if loss == "softmax":
        return softmax(said)
    if loss == "binary":
        p = sigmoid(said[:, 0])
        return np.stack([1 - p, p], axis=1)
    return sigmoid(said) if loss == "sigmoid" else said


@task("split.keep", ask=Keep, release=[Facts("kept")])
def keep(client: Client, ask: Any) -> dict[str, Any]:
    """Keep the weights of now as the best ones, or take the best ones back."""
    split = _split(client, ask["model"])
    own = [which for which in ("bottom", "top") if which in split]
    if ask["what"] == "keep":
        split = {**split, "best": {which: split[which] for which in own}}
    elif "best" in split:
        split = {**split, **split["best"]}
    keep_part(client, ask["model"], split=split)
    return {"kept": True}


@task("split.share", ask=Epoch, release=[RowsOut("sealed")], sealed=True)
def share(client: Client, ask: Any) -> dict[str, Any]:
    """Send this label owner's top network to the other ones, with the rows that it knows."""
    split = _split(client, ask["model"])
    known = labelled(client, ask["model"], "train")
    values = np.append(np.asarray(split["top"]["weights"], dtype=float), known.sum())[None]
    others = [owner for owner in split["owners"] if owner != client.id]
    content = {"values": values}
    return {"sealed": [message(o, average, client.draws.round, content) for o in others]}


@task("split.average", ask=Averaged, release=[Facts("averaged")], sealed=True)
def average(client: Client, ask: Any) -> dict[str, Any]:
    """Take the mean of all label owners' top networks, by the rows that they know."""
    split = _split(client, ask["model"])
    network = split["top"]
    known = labelled(client, ask["model"], "train")
    given = {m["sender"]: m["content"]["values"][0] for m in ask["sealed"]}
    given[client.id] = np.append(np.asarray(network["weights"], dtype=float), known.sum())
    if sorted(given) != sorted(split["owners"]):
        raise Refusal("a label owner did not send its network")
    every = np.stack([given[owner] for owner in split["owners"]])
    mean = np.average(every[:, :-1], axis=0, weights=every[:, -1])
    top_ = {**network, "weights": mean.astype(network["weights"].dtype)}
    keep_part(client, ask["model"], split={**split, "top": top_})
    return {"averaged": True}
