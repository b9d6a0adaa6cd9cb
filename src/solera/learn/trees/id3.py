"""ID3: one branch per category, chosen by information gain from counts alone.

The tree grows level by level. For the open nodes of a level the counts of rows by (node, column,
category, class) are all that is needed (Quinlan 1986):

    gain(j) = H(y) − Σ_v n_v/n · H(y | x_j = v),        H in bits

Counts are sums over rows, hence over clients: the same code grows a client's own tree and, with
counts summed over clients, the tree of the whole federation (Truex et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray, IntArray
from solera.core.errors import DataError
from solera.core.schema import Schema
from solera.learn.trees.binned_rows import AtNodes
from solera.learn.trees.tree import Tree, TreeBuilder, starts_of
from solera.trust.cells import Behind


class NodeCounts(NamedTuple):
    """Rows at some nodes: nodes × (all categories of all columns) × classes.

    ``branching``: nodes × categories, which of them get a branch where their column is chosen.
    """

    rows: FloatArray
    branching: BoolArray

    @classmethod
    def of(cls, counts: Array) -> NodeCounts:
        """Counts, of which noise may make some negative."""
        rows = np.asarray(np.maximum(counts, 0.0))
        return cls(rows, rows.sum(axis=2) > 0)

    @classmethod
    def in_agreement(cls, noised: Array, sizes: IntArray, fewest: float) -> NodeCounts:
        """Counts with noise, none in cells of fewer rows: there is no branch.

        Every column divides the same rows: the cells of each are scaled to the classes' mean over
        all columns.
        """
        starts = cell_starts(sizes)
        branching = noised.sum(axis=2) >= fewest
        rows = np.where(branching[:, :, None], np.maximum(noised, 0.0), 0.0)
        totals = np.add.reduceat(rows, starts[:-1], axis=1)
        mean = totals.mean(axis=1, keepdims=True)
        scale = np.divide(mean, totals, out=np.zeros_like(totals), where=totals > 0)
        return cls(rows * np.repeat(scale, sizes + 1, axis=1), branching)


RowCounts = Callable[[Tree, IntArray], NodeCounts]
"""Counts of rows at these nodes of a tree."""

Growing = Generator[tuple[Tree, IntArray], NodeCounts, Tree]
"""A tree that grows: it asks for the counts at some of its nodes until it is grown."""

_LEAST_GAIN = 1e-12


def category_sizes(schema: Schema) -> IntArray:
    """Categories of every column; a numeric column is an error."""
    for feature in schema.features:
        if not feature.is_coded:
            raise DataError(
                f"trees of counts need categorical columns, {feature.name} is numeric",
                hint="so.Pipeline(so.FedBins(8), …) cuts it into bins",
            )
    return np.array([len(feature.categories) for feature in schema.features], dtype=np.int64)


def codes_of(X: Any, sizes: IntArray) -> IntArray:
    """Columns of codes; a missing value is one more category, after the others."""
    X = np.asarray(X, dtype=np.float64)
    known = np.isfinite(X)
    whole = np.where(known, X, sizes).astype(np.int64)
    return np.clip(whole, 0, sizes)


def cell_starts(sizes: IntArray) -> IntArray:
    """Where the categories of each column begin among all of them; the total comes last."""
    return starts_of(sizes + 1)


def cells_at_nodes(
    codes: IntArray, labels: IntArray, at: IntArray, nodes: IntArray, sizes: IntArray, classes: int
) -> AtNodes:
    """The cells of rows by node, category of every column, and class."""
    starts = cell_starts(sizes)
    cells = (codes + starts[:-1]) * classes + labels[:, None]
    return AtNodes(cells, at, nodes, (int(starts[-1]), classes))


def grow(count: RowCounts, sizes: IntArray, classes: int, max_depth: int) -> Tree:
    """The ID3 tree whose counts ``count`` tells, one call per level."""
    growing = growing_id3(sizes, classes, max_depth)
    asked = next(growing)
    while True:
        try:
            asked = growing.send(count(*asked))
        except StopIteration as grown:
            return grown.value  # type: ignore[no-any-return]


def growing_id3(sizes: IntArray, classes: int, max_depth: int) -> Growing:
    """An ID3 tree that asks for counts, one level at a time."""
    starts = cell_starts(sizes)
    builder = TreeBuilder(classes)
    builder.add(np.zeros(classes), 0.0)
    open_nodes = [0]
    used: dict[int, frozenset[int]] = {0: frozenset()}
    for depth in range(max_depth + 1):
        counts = yield builder.build(), np.array(open_nodes)
        following: list[int] = []
        for node, by_cell, branching in zip(open_nodes, *counts, strict=True):
            total = by_cell[: starts[1]].sum(axis=0)
            if depth == 0:
                builder.set_value(0, total, total.sum())
            if depth == max_depth or (total > 0).sum() < 2:
                continue
            column = _best(by_cell, total, starts, used[node])
            if column is None:
                continue
            branches = []
            of_column = slice(starts[column], starts[column + 1])
            for weights, branch in zip(by_cell[of_column], branching[of_column], strict=True):
                if not branch:
                    branches.append(-1)
                    continue
                child = builder.add(weights, weights.sum())
                used[child] = used[node] | {column}
                branches.append(child)
                following.append(child)
            builder.split(node, column, branches)
        open_nodes = following
        if not open_nodes:
            break
    return builder.build()


def _best(
    by_cell: FloatArray,
    total: FloatArray,
    starts: IntArray,
    used: frozenset[int],
) -> int | None:
    """The column with the largest gain among those not used above, the first of equals."""
    rows = by_cell.sum(axis=1)
    uncertain = np.add.reduceat(rows * entropy(by_cell), starts[:-1]) / max(total.sum(), 1.0)
    gain = entropy(total[None])[0] - uncertain
    gain[list(used)] = -1.0
    best = int(np.argmax(gain))
    return best if gain[best] > _LEAST_GAIN else None


def entropy(weights: FloatArray) -> FloatArray:
    """Entropy in bits of distributions along the last axis; 0 for an empty one."""
    total = weights.sum(axis=-1, keepdims=True)
    p = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return -np.asarray((p * np.log2(p, out=np.zeros_like(p), where=p > 0)).sum(axis=-1))


def grow_id3(X: Any, labels: IntArray, sizes: IntArray, classes: int, max_depth: int) -> Tree:
    """The ID3 tree of these rows."""
    codes = codes_of(X, sizes)

    def count(tree: Tree, nodes: IntArray) -> NodeCounts:
        cells = cells_at_nodes(codes, labels, tree.apply(X), nodes, sizes, classes)
        return NodeCounts.of(cells.count(Behind(len(codes))))

    return grow(count, sizes, classes, max_depth)
