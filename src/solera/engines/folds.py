"""What the coordinator of a round does with replies: turn the unsound away, and fold the others."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import IntArray
from solera.core.engine import Ask, Block
from solera.core.payload import is_finite
from solera.core.replies import Batch, Failure, Stacked, map_leaves
from solera.core.task import Task


def validate_and_fold(
    task: Task,
    ask: Ask,
    batch: Batch,
    failures: list[Failure],
    virtual: float,
    aggregation: Aggregation | None,
) -> Block:
    """What the coordinator does with the replies of a block: turn the unsound away, and fold.

    Whatever goes wrong in a fold is the fault of the clients whose replies do it, and theirs alone.
    """
    if task.like is not None and ask.cover is None and not isinstance(batch.payloads, Stacked):
        like = task.like
        batch, failed = batch.alike(lambda client: like(ask.payload_for(client)))
        failures += failed
    partial = None
    if aggregation is not None:
        try:
            partial = aggregation.fold(batch)
        except Exception:
            batch, failed = batch.liftable(aggregation.lift)
            failures += failed
            batch, failed = batch.combinable(aggregation.lift, aggregation.merge)
            failures += failed
            partial = aggregation.fold(batch)
    if task.finite and (aggregation is None or not aggregation.sound(partial)):
        batch, failed = batch.only_finite(None if aggregation is None else aggregation.sound_reply)
        failures += failed
        if aggregation is not None and failed:
            partial = aggregation.fold(batch)
    kept = batch if aggregation is None else None
    return Block(batch.clients, batch.sizes(), failures, virtual, kept, partial)


def fold_all(
    task: Task, batch: Batch, bounds: list[int], aggregation: Aggregation, merged: bool = False
) -> list[Any] | None:
    """The partials of all blocks of stacked replies in one call; None where one may be unsound.

    Those that are to be ``merged`` are one.
    """
    replies = batch.payloads
    assert isinstance(replies, Stacked)
    if replies.sums:
        partials = _with_sums(replies, batch.clients, bounds, aggregation)
        return [aggregation.merge_all(partials)] if merged else partials
    try:
        if merged:
            partials = [aggregation.fold_together(batch, bounds)]
        else:
            partials = aggregation.fold_blocks(batch, bounds)
    except Exception:  # validate_and_fold finds out whose fault it is
        return None
    return None if task.finite and not is_finite(partials) else partials


def _with_sums(
    replies: Stacked, clients: IntArray, bounds: list[int], aggregation: Aggregation
) -> list[Any]:
    """The same where some entries were added up already: they count for the first block."""
    others = len(bounds) - 2
    if not replies.fields:
        return [dict(replies.sums), *[None] * others]
    own = Batch(clients, Stacked(replies.fields))
    first, *rest = aggregation.without(replies.sums).fold_blocks(own, bounds)
    nothing = map_leaves(
        lambda total: np.broadcast_to(np.zeros((), total.dtype), total.shape), dict(replies.sums)
    )
    return [{**first, **replies.sums}, *({**partial, **nothing} for partial in rest)]
