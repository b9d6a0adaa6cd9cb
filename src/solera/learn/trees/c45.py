"""C4.5: gain ratio, a branch per category or a threshold on a number, pruned by estimated errors.

Quinlan (1993), *C4.5: programs for machine learning*. With the information gain of a split and the
entropy of its branches' sizes ("split info"), the column is taken whose

    gain ratio = gain / split info

is largest among those of at least average gain. A threshold costs the log₂ of the number of places
it could be at, divided by the rows (Quinlan 1996). Grown, a subtree becomes a leaf where the errors
expected of the leaf are no more than those of the subtree: of N rows with E errors N·U, with U the
upper limit at 25 % confidence of a binomial proportion.

A missing category is a category; rows without a number go where most rows go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from solera.core.clients import FloatArray, IntArray
from solera.core.schema import Schema
from solera.learn.trees.id3 import codes_of, entropy
from solera.learn.trees.tree import LEAF, Tree, TreeBuilder

_CONFIDENCE = 0.25
_SLACK = 0.1
"""A leaf may have so many more expected errors than the subtree that it stands for."""
_LEAST_GAIN = 1e-12


def sizes_of(schema: Schema) -> IntArray:
    """Categories of every column, 0 for a column of numbers."""
    sizes = [len(f.categories) if f.kind == "categorical" else 0 for f in schema.features]
    return np.array(sizes, dtype=np.int64)


@dataclass
class _Node:
    counts: FloatArray
    column: int = LEAF
    threshold: float | None = None
    missing_left: bool = True
    children: list[_Node | None] = field(default_factory=list)

    @property
    def rows(self) -> float:
        return float(self.counts.sum())


@dataclass(frozen=True)
class _Split:
    """The gain of a split, the entropy of its sizes, and the branch of every row."""

    column: int
    gain: float
    info: float
    branch: IntArray
    branches: int
    threshold: float | None = None
    missing_left: bool = True


def grow_c45(
    X: FloatArray, labels: IntArray, sizes: IntArray, classes: int, max_depth: int, min_rows: int
) -> Tree:
    """The tree of these rows; ``sizes`` are the categories of every column, 0 for numbers.

    At least two branches of every split have ``min_rows`` rows.
    """
    codes = codes_of(X, sizes)
    everyone = np.arange(len(labels))
    root = _grown(X, codes, labels, sizes, classes, everyone, frozenset(), max_depth, min_rows)
    _pruned(root)
    builder = TreeBuilder(classes)
    _build(builder, root)
    return builder.build()


def _grown(
    X: FloatArray,
    codes: IntArray,
    labels: IntArray,
    sizes: IntArray,
    classes: int,
    rows: IntArray,
    used: frozenset[int],
    depth: int,
    least: int,
) -> _Node:
    node = _Node(np.bincount(labels[rows], minlength=classes).astype(np.float64))
    if not depth or (node.counts > 0).sum() < 2 or len(rows) < 2 * least:
        return node
    split = _best(X[rows], codes[rows], labels[rows], sizes, node.counts, used, least)
    if split is None:
        return node
    node.column, node.threshold = split.column, split.threshold
    node.missing_left = split.missing_left
    below = used | {split.column} if sizes[split.column] else used
    for branch in range(split.branches):
        inside = rows[split.branch == branch]
        node.children.append(
            _grown(X, codes, labels, sizes, classes, inside, below, depth - 1, least)
            if len(inside)
            else None
        )
    return node


def _best(
    X: FloatArray,
    codes: IntArray,
    labels: IntArray,
    sizes: IntArray,
    counts: FloatArray,
    used: frozenset[int],
    least: int,
) -> _Split | None:
    """The split of the largest gain ratio among those of at least average gain."""
    found = []
    marks = np.eye(len(counts))[labels]
    for column, size in enumerate(sizes.tolist()):
        if size and column not in used:
            split = _by_category(column, codes[:, column], size, marks, counts, least)
        elif not size:
            split = _by_threshold(column, X[:, column], marks, counts, least)
        else:
            continue
        if split is not None and split.gain > _LEAST_GAIN:
            found.append(split)
    if not found:
        return None
    average = np.mean([split.gain for split in found]) - _LEAST_GAIN
    return max((s for s in found if s.gain >= average), key=lambda split: split.gain / split.info)


def _by_category(
    column: int, codes: IntArray, size: int, marks: FloatArray, counts: FloatArray, least: int
) -> _Split | None:
    by_code = np.zeros((size + 1, len(counts)))
    np.add.at(by_code, codes, marks)
    rows = by_code.sum(axis=1)
    if (rows >= least).sum() < 2:
        return None
    gain = _entropy(counts) - float((rows * entropy(by_code)).sum()) / rows.sum()
    return _Split(column, gain, _entropy(rows), codes, size + 1)


def _by_threshold(
    column: int, x: FloatArray, marks: FloatArray, counts: FloatArray, least: int
) -> _Split | None:
    known = np.isfinite(x)
    order = np.argsort(x[known], kind="stable")
    values, below = x[known][order], np.cumsum(marks[known][order], axis=0)
    if len(values) < 2 * least:
        return None
    places = np.flatnonzero(values[1:] > values[:-1])
    possible = places[(places + 1 >= least) & (len(values) - places - 1 >= least)]
    if not len(possible):
        return None
    left, right = below[possible], below[-1] - below[possible]
    n_left, n_right = left.sum(axis=1), right.sum(axis=1)
    uncertain = (n_left * entropy(left) + n_right * entropy(right)) / len(values)
    best = int(np.argmin(uncertain))
    gain = _entropy(below[-1]) - float(uncertain[best]) - np.log2(len(places)) / len(values)
    at = possible[best]
    threshold = float(values[at] + (values[at + 1] - values[at]) / 2)
    if not values[at] <= threshold < values[at + 1]:
        threshold = float(values[at])
    missing_left = bool(n_left[best] >= n_right[best])
    branch = np.where(known, x > threshold, not missing_left).astype(np.int64)
    sizes = np.bincount(branch, minlength=2).astype(np.float64)
    share = len(values) / len(x)  # what is not known tells nothing
    return _Split(column, gain * share, _entropy(sizes), branch, 2, threshold, missing_left)


def _entropy(weights: FloatArray) -> float:
    return float(entropy(weights[None])[0])


def _pruned(node: _Node) -> float:
    """Make leaves of the subtrees that are not worth it; the errors expected of what is left."""
    as_leaf = _expected_errors(node.counts)
    if node.column == LEAF:
        return as_leaf
    as_tree = sum(_pruned(child) for child in node.children if child is not None)
    if as_leaf > as_tree + _SLACK:
        return as_tree
    node.column, node.threshold, node.children = LEAF, None, []
    return as_leaf


def _expected_errors(counts: FloatArray) -> float:
    from scipy.stats import beta

    rows, errors = counts.sum(), counts.sum() - counts.max()
    if errors == rows:
        return float(rows)
    return float(rows * beta.ppf(1 - _CONFIDENCE, errors + 1, rows - errors))


def _build(builder: TreeBuilder, root: _Node) -> None:
    """Nodes level by level, so that parents come before their children."""
    builder.add(root.counts, root.rows)
    level: list[tuple[int, _Node]] = [(0, root)]
    while level:
        following: list[tuple[int, _Node]] = []
        for number, node in level:
            if node.column == LEAF:
                continue
            children = list(_added(builder, node, following))
            builder.split(
                number,
                node.column,
                children,
                threshold=node.threshold,
                missing_left=node.missing_left,
            )
        level = following


def _added(builder: TreeBuilder, node: _Node, following: list[tuple[int, Any]]) -> Iterator[int]:
    for child in node.children:
        if child is None:
            yield -1
            continue
        number = builder.add(child.counts, child.rows)
        following.append((number, child))
        yield number
