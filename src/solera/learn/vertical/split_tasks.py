"""What the parties of a split network do: bottoms forward, tops and losses, gradients back."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import Array, Client, IntArray
from solera.core.errors import DataError, Refusal
from solera.core.sealing import message
from solera.core.task import task
from solera.learn.averaging.training.architecture import architecture_of
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.losses import row_losses, targets_of
from solera.learn.averaging.training.reference import _outputs
from solera.learn.vertical.encoding import encoded_width, encoding_of
from solera.learn.vertical.party import (
    keep_outputs,
    keep_part,
    labelled,
    row_numbers,
    shared_rows,
)
from solera.learn.vertical.split_networks import (
    batch_rows,
    correlation_told,
    draws_of,
    first_network,
    inputs_of,
    joined,
    noise_of,
    one_thread,
    part_losses,
    probabilities,
    sent,
    speak,
    split_part,
    stepped,
    total_gradient,
)
from solera.trust.constructors import count_by, fact, sum_by


@task("split.start")
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
        kept["bottom"] = first_network(client, ask["bottom"], training)
        width = architecture_of(ask["bottom"]).inputs
        if width not in (None, encoded_width(schema)):
            raise DataError(
                f"the bottom network takes {width} columns, this party has {encoded_width(schema)}"
            )
    if ask["top"] is not None:
        if rows.y is None:
            raise DataError("this party holds no labels")
        kept["top"] = first_network(client, ask["top"], training)
    keep_part(client, ask["model"], split=kept)
    parameters = [len(kept[which]["weights"]) for which in ("bottom", "top") if which in kept]
    return {"parameters": fact(parameters)}


@task("split.bottom", sealed=True)
@one_thread()
def bottom(client: Client, ask: Any) -> dict[str, Any]:
    """Change this party's network by a batch's gradients, and speak of the next batch."""
    model, split = ask["model"], split_part(client, ask["model"])
    training, network = split["training"], split["bottom"]
    rows = shared_rows(client, model)
    size = training["batch_size"]
    if ask["back"] is not None:
        places = batch_rows(client, len(rows), ask["back"], ask["steps"], size)
        said, net = speak(client, split, rows.X[places], ask["back"])
        gradient = total_gradient(ask.get("sealed", ()), split["owners"], said)
        (said * gradient).sum().backward()
        network = stepped(network, net, training)
        keep_part(client, model, split={**split, "bottom": network})
        split = {**split, "bottom": network}
    if ask["forward"] is None:
        return {"sealed": [], "distance_correlation": correlation_told(client, split, rows)}
    places = batch_rows(client, len(rows), ask["forward"], ask["steps"], size)
    values = sent(client, split, rows.X[places], ask["forward"])
    letters = [message(o, top, client.draws.round, {"values": values}) for o in split["owners"]]
    return {"sealed": letters}


@task("split.top", sealed=True)
@one_thread()
def top(client: Client, ask: Any) -> dict[str, Any]:
    """Loss of a batch, a step of the top network, and gradients for the bottom networks."""
    t = torch()
    model, split = ask["model"], split_part(client, ask["model"])
    training, feeders = split["training"], split["feeders"]
    rows = shared_rows(client, model)
    places = batch_rows(client, len(rows), ask["step"], ask["steps"], training["batch_size"])
    inputs = inputs_of(ask["sealed"], feeders, len(places), training["dtype"])
    network = split["top"]
    architecture = architecture_of(network["model"])
    net = architecture.load(network["weights"])
    net.train()
    said = _outputs(
        architecture, net, joined(inputs, training["join"]), *draws_of(client, ask["step"])
    )
    y = targets_of(rows.y[places], training["loss"], split["classes"], training["dtype"])
    losses = row_losses(said, t.as_tensor(y), training["loss"])
    known = labelled(client, model, "train")[places]
    losses = t.where(t.as_tensor(known), losses, t.zeros_like(losses))
    (losses.sum() / len(places)).backward()
    kept = split["losses"].copy()
    kept[places] = losses.detach().numpy()
    network = stepped(network, net, training)
    keep_part(client, model, split={**split, "top": network, "losses": kept})
    letters = []
    noise = noise_of(client, training["gradient_noise"], "gradient")
    for feeder, given in zip(feeders, inputs, strict=True):
        gradient = noise(given.grad.numpy())
        letters.append(message(feeder, bottom, client.draws.round + 1, {"values": gradient}))
    return {"sealed": letters}


@task("split.epoch")
def epoch(client: Client, ask: Any) -> dict[str, Any]:
    """The sum of the losses of the rows of the last epoch."""
    losses = split_part(client, ask["model"])["losses"]
    known = labelled(client, ask["model"], "train")
    numbers = row_numbers(client, ask["model"], "train")
    return _sum_losses(losses[known], numbers[known])


def _sum_losses(losses: Array, numbers: IntArray) -> dict[str, Any]:
    """The losses of rows, by their numbers."""
    return {"loss": sum_by(None, losses, rows=numbers), "rows": count_by(None, rows=numbers)}


@task("split.say", sealed=True)
@one_thread()
def say(client: Client, ask: Any) -> dict[str, Any]:
    """Speak of all rows of a part to the label owners."""
    split = split_part(client, ask["model"])
    rows = shared_rows(client, ask["model"], ask["part"])
    values = sent(client, split, rows.X, None)
    letters = [message(o, answer, client.draws.round, {"values": values}) for o in split["owners"]]
    return {"sealed": letters}


@task("split.answer", sealed=True)
@one_thread()
def answer(client: Client, ask: Any) -> dict[str, Any]:
    """What the top network makes of what all bottoms said; this party keeps it."""
    t = torch()
    model, part = ask["model"], ask["part"]
    split = split_part(client, model)
    training, network = split["training"], split["top"]
    rows = shared_rows(client, model, part)
    inputs = inputs_of(ask["sealed"], split["feeders"], len(rows), training["dtype"])
    net = architecture_of(network["model"]).load(network["weights"]).eval()
    with t.no_grad():
        said = net(joined(inputs, training["join"])).numpy()
    keep_outputs(client, model, part, probabilities(said, training["loss"]))
    split = {**split, "scores": said}
    keep_part(client, model, split=split)
    numbers = row_numbers(client, model, part)
    if rows.y is None or part == "now":
        return _sum_losses(np.empty(0), numbers[:0])
    known = labelled(client, model, part)
    losses = part_losses(client, model, part, split, said)
    return _sum_losses(losses[known], numbers[known])


@task("split.keep")
def keep(client: Client, ask: Any) -> dict[str, Any]:
    """Keep the weights of now as the best ones, or take the best ones back."""
    split = split_part(client, ask["model"])
    own = [which for which in ("bottom", "top") if which in split]
    if ask["what"] == "keep":
        split = {**split, "best": {which: split[which] for which in own}}
    elif "best" in split:
        split = {**split, **split["best"]}
    keep_part(client, ask["model"], split=split)
    return {"kept": fact(True)}


@task("split.share", sealed=True)
def share(client: Client, ask: Any) -> dict[str, Any]:
    """Send this label owner's top network to the other ones, with the rows that it knows."""
    split = split_part(client, ask["model"])
    known = labelled(client, ask["model"], "train")
    values = np.append(np.asarray(split["top"]["weights"], dtype=float), known.sum())[None]
    others = [owner for owner in split["owners"] if owner != client.id]
    content = {"values": values}
    return {"sealed": [message(o, average, client.draws.round, content) for o in others]}


@task("split.average", sealed=True)
def average(client: Client, ask: Any) -> dict[str, Any]:
    """Take the mean of all label owners' top networks, by the rows that they know."""
    split = split_part(client, ask["model"])
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
    return {"averaged": fact(True)}
