"""What a party of vertical learning keeps and reads: shared rows, and its part of a model.

A client keeps the parts of its models in its state under :data:`PARTS`, by the model's name. There
they outlive the job that made them: a later job, to predict or to evaluate, finds them again. A
part is a table with ``order``, the numbers of this client's rows in the order that all parties
share, ``ends``, where the rows to train on and to validate with end in it, and whatever the
learner puts beside them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from solera.core.clients import Array, BoolArray, Client, IntArray, Rows, take_rows
from solera.core.errors import Refusal

PARTS = "solera.parts"
"""Where a client's state keeps its parts of models."""
MOST_PARTS = 64
"""Models of which a client keeps its part; of more, the one that was begun longest ago goes."""
SharedPart = Literal["train", "validation", "test", "now"]
"""Rows of the order in which the model was trained, or of the last new one, to predict."""


def part_of(client: Client, model: str) -> dict[str, Any]:
    """This client's part of a model."""
    held = client.state.get(PARTS, {})
    if model not in held:
        raise Refusal(f"this client holds no part of the model {model[:12]}")
    return dict(held[model])


def keep_part(client: Client, model: str, **changed: Any) -> None:
    """Change entries of this client's part of a model, or begin one."""
    held = dict(client.state.get(PARTS, {}))
    held[model] = {**held.get(model, {}), **changed}
    client.state[PARTS] = held


def replace_part(client: Client, model: str, part: Mapping[str, Any]) -> None:
    """Let this client's part of a model be this."""
    held = dict(client.state.get(PARTS, {}))
    client.state[PARTS] = {**held, model: dict(part)}


def begin_part(client: Client, model: str) -> None:
    """Forget whatever was known of a model of this name."""
    held = {name: part for name, part in client.state.get(PARTS, {}).items() if name != model}
    newest = list(held.items())[1 - MOST_PARTS :]
    client.state[PARTS] = {**dict(newest), model: {}}


def row_numbers(client: Client, model: str, part: SharedPart) -> IntArray:
    """The numbers of this client's rows of a part, in the shared order."""
    own = part_of(client, model)
    kept = own.get("now" if part == "now" else "trained")
    if kept is None:
        raise Refusal("the parties have not agreed on an order of rows yet")
    if kept["rows"] != rows_digest(client):
        raise Refusal("the rows of this client have changed since the parties agreed on an order")
    order, (train, validation) = kept["order"], kept["ends"]
    bounds = {
        "train": (0, train),
        "validation": (train, validation),
        "test": (validation, len(order)),
        "now": (0, len(order)),
    }
    first, last = bounds[part]
    return np.asarray(order[first:last], dtype=np.int64)


def shared_rows(client: Client, model: str, part: SharedPart = "train") -> Rows:
    """This client's columns, and labels where it has them, of the rows that all parties share."""
    rows = client.data.part("train")
    return take_rows(rows.X, rows.y, row_numbers(client, model, part))


def keep_order(
    client: Client, model: str, part: Literal["trained", "now"], order: IntArray, ends: list[int]
) -> None:
    """Take these rows, by their numbers, in this order as those that all parties share."""
    kept = {"order": order, "ends": [int(end) for end in ends], "rows": rows_digest(client)}
    keep_part(client, model, **{part: kept})


def rows_digest(client: Client) -> str:
    """By what this client knows that its rows are still the same: identifiers, or their number."""
    known = client.data.identifiers("train")
    if known is None:
        return str(len(client.data))
    return hashlib.sha256("\n".join(known.tolist()).encode()).hexdigest()


def keep_outputs(client: Client, model: str, part: SharedPart, outputs: Array) -> None:
    """What the model says of each shared row: probabilities by class, or numbers.

    The owner of the labels keeps it, for :meth:`VerticalLearner.predict` and ``evaluate``.
    """
    keep_part(client, model, outputs={"part": part, "values": np.asarray(outputs, dtype=float)})


def outputs_of(client: Client, model: str, part: SharedPart) -> Array:
    """What :func:`keep_outputs` kept."""
    kept: Mapping[str, Any] | None = part_of(client, model).get("outputs")
    if kept is None or kept["part"] != part:
        raise Refusal("the model has not been asked about these rows yet")
    return np.asarray(kept["values"])


def labelled(client: Client, model: str, part: SharedPart) -> BoolArray:
    """Which of the shared rows this client has labels of."""
    return client.data.labelled("train")[row_numbers(client, model, part)]


def private_seed(client: Client, purpose: str) -> bytes:
    """32 bytes to draw from that only this client knows; in a simulation they follow the seed.

    At an agent they are the same when the ask is tried again, whoever was killed in between.
    """
    secret = client.draws.secret
    if secret is None:
        secret = client.rng.bytes(32)
    return hashlib.sha256(purpose.encode() + b"\0" + secret).digest()


def ends_of(rows: int, validation: float, test: float) -> list[int]:
    """Where the rows to train on end, and those to validate with; the last are to test."""
    last = rows - int(np.floor(rows * test))
    return [last - int(np.floor(rows * validation)), last]
