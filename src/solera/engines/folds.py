"""What the coordinator of a round does with replies: turn the unsound away, and fold the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.aggregation import Aggregation
from solera.core.engine import Ask, Block
from solera.core.payload import is_finite
from solera.core.replies import Batch, Failure, Stacked
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
    task: Task, batch: Batch, bounds: list[int], aggregation: Aggregation
) -> list[Any] | None:
    """The partials of all blocks of stacked replies in one call; None where one may be unsound."""
    replies = batch.payloads
    assert isinstance(replies, Stacked)
    try:
        partials: list[Any] = [{} for _ in bounds[1:]]
        if not replies.fields and all(len(sums) == 1 for sums in replies.sums.values()):
            first = {entry: sums[0] for entry, sums in replies.sums.items()}
            return [first, *[None] * (len(partials) - 1)]
        if not replies.sums:
            partials = aggregation.fold_blocks(batch, bounds)
        elif replies.fields:
            own = Batch(batch.clients, Stacked(replies.fields))
            partials = aggregation.without(replies.sums).fold_blocks(own, bounds)
        for entry, sums in replies.sums.items():
            parts = _of_blocks(sums, len(partials))
            partials = [{**p, entry: part} for p, part in zip(partials, parts, strict=True)]
    except Exception:  # validate_and_fold finds out whose fault it is
        if replies.sums:
            raise
        return None
    if task.finite and not replies.sums and not is_finite(partials):
        return None
    return partials


def _of_blocks(sums: NDArray[Any], blocks: int) -> list[Any]:
    """The sums of every block; what is the sum over all of them counts for the first."""
    if len(sums) == blocks:
        return list(sums)
    nothing = np.broadcast_to(np.zeros((), sums.dtype), sums.shape[1:])
    return [sums[0], *[nothing] * (blocks - 1)]
