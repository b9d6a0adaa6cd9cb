"""Trees of clients that never leave them: the coordinator grows each from counts of its rows.

A tree of ID3 or CART follows from counts of rows by node, category of every column and class. So a
client need not grow and send its tree, in which one row may decide a threshold; it tells counts,
level by level. The thresholds are those of an agreed grid: the categories, or the bins of
``FedBins``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from solera.core.aggregation import Collect
from solera.core.clients import FloatArray, IntArray
from solera.core.engine import PerClient
from solera.core.federation import Federation
from solera.learn.trees.fed_id3 import count_at_nodes
from solera.learn.trees.id3 import Growing, NodeCounts, cell_starts
from solera.learn.trees.tree import Tree, TreeBuilder

_LEAST_GAIN = 1e-12


def grow_trees(
    federation: Federation, order: dict[str, Any], growing: Callable[[], Growing]
) -> dict[int, Tree]:
    """The tree of every client that answers to the end, all of them grown at the same time.

    ``order`` is what ``trees.count`` takes besides tree and nodes.
    """
    tree, nodes = next(growing())
    ask = {"tree": tree.to_payload(), "nodes": nodes, **order}
    replies = federation.ask(count_at_nodes, ask).fold(Collect())
    growers = {client: growing() for client in replies}
    for grower in growers.values():
        next(grower)
    grown: dict[int, Tree] = {}
    level = 0
    while replies:
        asks: dict[int, Any] = {}
        for client, reply in replies.items():
            try:
                tree, nodes = growers[client].send(NodeCounts.of(reply["counts"]))
            except StopIteration as done:
                grown[client] = done.value
            else:
                asks[client] = {"tree": tree.to_payload(), "nodes": nodes, **order}
        level += 1
        replies = {}
        if asks:
            asked = federation.ask(count_at_nodes, PerClient(asks), to=list(asks), round=level)
            replies = asked.fold(Collect())
    return {client: grown[client] for client in sorted(grown)}


def growing_cart(sizes: IntArray, classes: int, max_depth: int, min_rows: int) -> Growing:
    """A CART tree (Gini) that asks for counts, one level at a time.

    Categories are read as numbers, as by the CART of clients; missing values go to the first
    branch.
    """
    starts = cell_starts(sizes)
    builder = TreeBuilder(classes)
    open_nodes = [builder.add(np.zeros(classes), 0.0)]
    for depth in range(max_depth):
        counts = yield builder.build(), np.array(open_nodes)
        following: list[int] = []
        for node, by_cell in zip(open_nodes, counts.rows, strict=True):
            if depth == 0:
                total = by_cell[: starts[1]].sum(axis=0)
                builder.set_value(0, total, total.sum())
            found = _best_cut(by_cell, starts, min_rows)
            if found is None:
                continue
            column, category, sides = found
            below = [builder.add(side, side.sum()) for side in sides]
            builder.split(node, column, below, threshold=category + 0.5)
            following += [
                child for child, side in zip(below, sides, strict=True) if (side > 0).sum() > 1
            ]
        open_nodes = following
        if not open_nodes:
            break
    return builder.build()


def _best_cut(
    by_cell: FloatArray, starts: IntArray, min_rows: int
) -> tuple[int, int, FloatArray] | None:
    """The column and the category after which to cut, and the class counts of both sides.

    The cut that lowers the Gini impurity of a row most, the first of equals.
    """
    best, found = _LEAST_GAIN, None
    for column, (first, after) in enumerate(pairwise(starts.tolist())):
        known, missing = by_cell[first : after - 1], by_cell[after - 1]
        left = known.cumsum(axis=0)[:-1] + missing
        total = known.sum(axis=0) + missing
        right = total - left
        rows, others = left.sum(axis=1), right.sum(axis=1)
        fits = np.flatnonzero((rows >= min_rows) & (others >= min_rows))
        if not len(fits):
            continue
        purity = (left[fits] ** 2).sum(axis=1) / rows[fits]
        purity += (right[fits] ** 2).sum(axis=1) / others[fits]
        gain = (purity - (total**2).sum() / total.sum()) / total.sum()
        k = int(gain.argmax())
        if gain[k] > best:
            best = float(gain[k])
            found = column, int(fits[k]), np.stack([left[fits[k]], right[fits[k]]])
    return found
