"""What every party of SecureBoost does with its own columns: bins, sums, conditions, sides."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import Array, Client
from solera.core.errors import Refusal
from solera.core.sealing import message
from solera.core.task import task
from solera.learn.trees.binned_rows import Cells
from solera.learn.vertical.boosting.candidates import Candidates
from solera.learn.vertical.boosting.split_trees import Conditions
from solera.learn.vertical.kept_matrices import KeptMatrices
from solera.learn.vertical.party import (
    keep_part,
    part_of,
    private_seed,
    replace_part,
    shared_rows,
)
from solera.privacy import additive
from solera.privacy.additive import Form


@task("boost.begin", sealed=True)
def begin(client: Client, ask: Any) -> dict[str, Any]:
    """Cut this party's columns into bins and number all candidate splits."""
    rows = shared_rows(client, ask["model"])
    draw = np.random.default_rng(list(private_seed(client, "candidates")))
    owner = client.id == ask["owner"]
    shuffle = np.arange if owner else draw.permutation
    candidates = Candidates.of(rows, client.data.schema, ask["bins"], shuffle)
    conditions = Conditions.none(client.data.schema.features).to_payload()
    keep_part(
        client,
        ask["model"],
        candidates=candidates.to_payload(),
        conditions=conditions,
        owner=ask["owner"],
    )
    if owner:
        return {"sealed": []}
    counts = {"right": candidates.right, "left": len(candidates) - candidates.right}
    return {"sealed": [message(ask["owner"], "boost.grow", 0, {"counted": counts})]}


@task("boost.sums", sealed=True)
def add_gradients(client: Client, ask: Any) -> dict[str, Any]:
    """Encrypted sums of gradients to the left of every candidate of this party."""
    model = ask["model"]
    part = part_of(client, model)
    received = [m for m in ask["sealed"] if m["sender"] == part["owner"]]
    if len(received) != 1:
        raise Refusal("no gradients have come from the owner of the labels")
    content = received[0]["content"]
    if "key" in content:
        additive.read_public(ask["cipher"], content["key"])
        Form.from_list(list(content["form"]))
        keep_part(client, model, key=content["key"], form=list(content["form"]))
        part = part_of(client, model)
    if "key" not in part:
        raise Refusal("no key has come from the owner of the labels")
    key = additive.read_public(ask["cipher"], part["key"])
    form = Form.from_list(part["form"])
    rows = shared_rows(client, model)
    if form.rows != len(rows):
        raise Refusal(f"gradients of {form.rows:,} rows came, the parties share {len(rows):,}")
    candidates = Candidates.from_payload(part["candidates"])
    cells = candidates.cells(rows.X)
    given: list[Array] = [cells, candidates.column, candidates.bin, candidates.missing_left]
    prepared = _matrices.ready(key, form, given, lambda: candidates.matrix(cells))
    sums = [
        key.multiply(blocks, prepared, form, masked=False).blocks for blocks in content["nodes"]
    ]
    reply = message(part["owner"], "boost.choose", ask["step"], {"nodes": sums})
    return {"sealed": [reply]}


_matrices = KeptMatrices(4)
"""Candidates of the last few models: the same ones serve every tree."""


@task("boost.split", sealed=True)
def split(client: Client, ask: Any) -> dict[str, Any]:
    """Keep the conditions that were taken of this party's, and tell which rows go left."""
    model = ask["model"]
    part = part_of(client, model)
    received = [m for m in ask["sealed"] if m["sender"] == part["owner"]]
    if len(received) != 1:
        raise Refusal("the owner of the labels has not chosen yet")
    candidates = Candidates.from_payload(part["candidates"])
    conditions = Conditions.from_payload(part["conditions"])
    cells = candidates.cells(shared_rows(client, model).X)
    taken = []
    for order in received[0]["content"]["take"]:
        numbers = order["candidates"]
        if not len(numbers) or numbers.max() >= len(candidates):
            raise Refusal("a split was chosen that is none of this party's")
        inside = np.unpackbits(np.frombuffer(order["rows"], np.uint8))[: len(cells)].astype(bool)
        if len(inside) != len(cells):
            raise Refusal("a node has other rows than the parties share")
        number = candidates.first_of(numbers)
        condition = condition_of(candidates, number, cells[inside])
        conditions = conditions.added(ask["tree"], order["node"], *condition)
        left = candidates.left(cells[inside], number)
        taken.append(
            {"node": order["node"], "candidate": number, "left": np.packbits(left).tobytes()}
        )
    keep_part(client, model, conditions=conditions.to_payload())
    if ask["last"]:
        finish(client, model)
    reply = message(part["owner"], "boost.grow", ask["step"] + 1, {"taken": taken})
    return {"sealed": [reply]}


def finish(client: Client, model: str) -> None:
    """Forget what only training needed."""
    working = ("boosting", "candidates", "key", "form")
    part = part_of(client, model)
    replace_part(client, model, {k: v for k, v in part.items() if k not in working})


def condition_of(candidates: Candidates, number: int, cells: Cells) -> tuple[int, float, bool]:
    """Column, threshold and side of missing values; where none is missing, that of most rows."""
    column, bin = int(candidates.column[number]), int(candidates.bin[number])
    missing_left = bool(candidates.missing_left[number])
    if not (cells[:, column] == candidates.bins.starts_[column + 1] - 1).any():
        missing_left = bool(2 * candidates.left(cells, number).sum() >= len(cells))
    return column, candidates.threshold(column, bin), missing_left


@task("boost.sides", sealed=True)
def tell_sides(client: Client, ask: Any) -> dict[str, Any]:
    """Which of the rows each of this party's conditions sends left, for the label owner."""
    part = part_of(client, ask["model"])
    conditions = Conditions.from_payload(part["conditions"])
    sides = conditions.sides(shared_rows(client, ask["model"], ask["part"]).X)
    content = {"conditions": len(conditions), "sides": np.packbits(sides).tobytes()}
    return {"sealed": [message(part["owner"], "boost.score", 0, content)]}
