"""Local training of many clients at once: their parameters are the rows of one matrix.

Clients are ordered by their number of steps and trained in tiles. A tile is as many clients as fit
the processor's cache together, because a step reads and writes all their weights; on a GPU it is
the whole group. Clients that have finished are left out of later steps, and the missing rows of a
last, shorter batch weigh nothing, so a masked step moves nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import IntArray
from solera.core.rng import Bits
from solera.learn.averaging.layers import Pass, torch
from solera.learn.averaging.networks import Network, Pull, network_for
from solera.learn.averaging.plan import Batches, Plan, Training, deal_batches
from solera.learn.averaging.rows import Gathered

TILE = 7 << 18
"""Bytes of parameters, and of rows, that a step works on, on a CPU: about the cache of a core."""
_GATHERED = {"cpu": 1 << 20, "cuda": 1 << 31}
"""Bytes of rows gathered at once."""


def tile_size(plan: Plan, device: str, itemsize: int, batch: int) -> int:
    """How many clients to train in one go; ``batch`` is the bytes of one client's batch.

    Convolutions of one client keep a CPU busy: stacked, they were slower in every measurement.
    """
    if device != "cpu":
        return 1 << 30
    if plan.convolves:
        return 1
    return int(max(1, TILE // max(plan.layout.size * itemsize, batch)))


def train_together(
    plan: Plan,
    weights: Any,
    rows: Gathered,
    sizes: IntArray,
    keys: Bits,
    how: Training,
    pull: Pull,
    *,
    start: Any = None,
    relative: bool = False,
) -> tuple[NDArray[np.float64], IntArray]:
    """Train each row of ``weights`` in place; the mean loss on the way and the number of steps.

    With ``start``, a vector, every row begins there, whatever it held; ``relative`` leaves the
    difference to it.
    """
    t = torch()
    batches = deal_batches(keys, sizes, how)
    steps = (batches.counts > 0).sum(axis=1)
    order = np.argsort(-steps, kind="stable")
    losses = t.zeros(len(sizes), dtype=t.float64, device=weights.device)
    batch_bytes = batches.batch * rows.row_bytes
    size = tile_size(plan, weights.device.type, weights.element_size(), batch_bytes)
    in_order = bool((np.diff(order) > 0).all())
    with t.no_grad():
        for first in range(0, len(sizes), size):
            who = order[first : first + size]
            place = t.from_numpy(who).to(weights.device)
            chosen: Any = slice(first, first + len(who)) if in_order else place
            mine = weights[chosen]
            if start is not None:
                mine.copy_(start.expand_as(mine))
            network = network_for(plan, mine, how, pull.of(chosen))
            dealt = Batches(batches.index[who], batches.counts[who], batches.batch)
            losses[place] = _train_tile(network, dealt, rows, who, keys[who])
            if relative:
                mine.sub_(start)
            if not in_order:
                weights[place] = mine
    return losses.cpu().numpy() / batches.counts.sum(axis=1), steps


def _train_tile(network: Network, dealt: Batches, rows: Gathered, who: IntArray, keys: Bits) -> Any:
    """All steps of a tile whose clients are ordered by their number of steps."""
    t = torch()
    device, dtype = network.weights.device, network.weights.dtype
    total = t.zeros(len(who), dtype=t.float64, device=device)
    counts, batch = dealt.counts[:, : (dealt.counts[0] > 0).sum()], dealt.batch
    at_work = (counts > 0).sum(axis=0)
    alike = ((counts == counts[0]).sum(axis=0) >= at_work).tolist()
    active, longest = at_work.tolist(), counts.max(axis=0).tolist()
    at_once = max(1, _GATHERED[device.type] // (len(who) * batch * rows.row_bytes))
    for step in range(counts.shape[1]):
        within = step % at_once
        if within == 0:
            columns = slice(step * batch, (step + at_once) * batch)
            still = active[step]
            x, target = rows.take(who[:still], dealt.index[:still, columns])
        clients, most = active[step], longest[step]
        now = slice(within * batch, within * batch + most)
        share: Any = 1.0 / most
        training = Pass(keys[:clients], step)
        if not alike[step]:
            count = counts[:clients, step, None]
            real = np.arange(most) < count
            training.real = t.from_numpy(real).to(device, dtype)
            share = t.from_numpy(real / count).to(device, dtype)
        total[:clients] += network.step(x[:clients, now], target[:clients, now], share, training)
    return total
