"""Asks and the blocks that come back as payloads, for workers that this process started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.component import build, describe
from solera.core.engine import Ask, Block, PerClient, Preparation
from solera.core.errors import PayloadError
from solera.core.payload import Limits
from solera.core.replies import Batch, Failure, Stacked

UNLIMITED = Limits(size=1 << 40, structure=1 << 32)
"""Parent and workers trust each other; the limits of the federation were checked before."""
NOBODY = np.empty(0, dtype=np.int64)


def ask_to_payload(ask: Ask) -> dict[str, Any]:
    """The fields of an ask; payloads of their own are those of the clients asked."""
    message = {field.name: getattr(ask, field.name) for field in fields(ask)}
    del message["fit"]  # states go with the blocks
    message["prepare"] = [[step.description, step.digest] for step in ask.prepare]
    message["per_client"] = isinstance(ask.payload, PerClient)
    if isinstance(ask.payload, PerClient):
        message["payload"] = [[c, ask.payload.payloads[c]] for c in ask.clients.tolist()]
    return message


def ask_from_payload(message: Mapping[str, Any]) -> Ask:
    """What :func:`ask_to_payload` was given."""
    given = dict(message)
    given["prepare"] = tuple(Preparation(*step) for step in given["prepare"])
    if given.pop("per_client"):
        given["payload"] = PerClient(dict(given["payload"]))
    return Ask(**given)


def order_for(
    ask: Ask, aggregation: Aggregation | None
) -> tuple[dict[str, Any], Aggregation | None]:
    """What workers are told of an ask before its blocks; the aggregation if it is to fold here."""
    try:
        described, fold_here = describe(aggregation), None
    except PayloadError:  # with code among its parameters it stays in this process
        described, fold_here = None, aggregation
    told = ask_to_payload(ask) | {"clients": NOBODY}  # they come block by block
    return {"ask": told, "aggregation": described}, fold_here


def read_order(order: Mapping[str, Any]) -> tuple[Ask, Aggregation | None]:
    """What :func:`order_for` was given."""
    return ask_from_payload(order["ask"]), build(order["aggregation"])


def block_to_payload(block: Block, states: Mapping[int, Any]) -> dict[str, Any]:
    """A block, and what its clients keep."""
    replies: Any = None if block.batch is None else block.batch.payloads
    stacked = isinstance(replies, Stacked)
    return {
        "replied": block.replied,
        "up": block.up,
        "failures": [[f.client, f.kind, f.reason] for f in block.failures],
        "virtual": block.virtual,
        "stacked": stacked,
        "replies": replies.fields if stacked else replies,
        "partial": block.partial,
        "states": [[client, state] for client, state in states.items()],
    }


def block_from_payload(message: dict[str, Any], aggregation: Aggregation | None) -> Block:
    """The block a worker sent, folded here if the worker could not."""
    replies, partial = message["replies"], message["partial"]
    batch: Batch | None = None
    if replies is not None:
        batch = Batch(message["replied"], Stacked(replies) if message["stacked"] else replies)
    if batch is not None and aggregation is not None:
        partial, batch = aggregation.fold(batch), None
    failures = [Failure(*failure) for failure in message["failures"]]
    return Block(message["replied"], message["up"], failures, message["virtual"], batch, partial)
