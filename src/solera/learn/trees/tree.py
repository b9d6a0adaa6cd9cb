"""A decision tree as arrays: no node objects, all rows walk down together.

A node splits on one column, or is a leaf. A *numeric* split has two branches, x ≤ threshold and
x > threshold. A *categorical* split has a branch for every category and one for missing values;
branches without a child, and codes the tree never heard of, end at the node itself, whose
distribution then answers.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solera.core.component import Component
from solera.core.errors import PayloadError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LEAF = -1


class Tree(Component):
    """The arrays of one tree; node 0 is the root, and parents come before their children.

    Parameters
    ----------
    feature: column of every node's split, −1 for a leaf.
    threshold: of numeric splits; 0 elsewhere.
    categorical: which splits are categorical.
    missing_left: whether a numeric split sends missing values to its first branch.
    start, arity: node i's branches are ``branches[start[i] : start[i] + arity[i]]``.
    branches: the child behind every branch, −1 where there is none.
    value: nodes × outputs. Class weights (rows, or probabilities) or a number.
    support: training rows of every node.
    """

    def __init__(
        self,
        *,
        feature: ArrayLike,
        threshold: ArrayLike,
        categorical: ArrayLike,
        missing_left: ArrayLike,
        start: ArrayLike,
        arity: ArrayLike,
        branches: ArrayLike,
        value: ArrayLike,
        support: ArrayLike,
    ) -> None:
        self.feature: Ints = np.asarray(feature)
        self.threshold: Floats = np.asarray(threshold)
        self.categorical: Bools = np.asarray(categorical)
        self.missing_left: Bools = np.asarray(missing_left)
        self.start: Ints = np.asarray(start)
        self.arity: Ints = np.asarray(arity)
        self.branches: Ints = np.asarray(branches)
        self.value: Floats = np.asarray(value)
        self.support: Floats = np.asarray(support)

    # --- shape ---

    def __len__(self) -> int:
        return len(self.feature)

    @property
    def leaves(self) -> Ints:
        """The nodes without children."""
        return np.flatnonzero(self.feature < 0)

    def children(self, node: int) -> Ints:
        """The child behind every branch of a node, −1 where there is none."""
        return self.branches[self.start[node] : self.start[node] + self.arity[node]]

    @property
    def parents(self) -> tuple[Ints, Ints]:
        """Parent and branch of every node; −1 for the root."""
        parent, branch = np.full((2, len(self)), -1)
        owner = np.repeat(np.arange(len(self)), self.arity)
        place = np.arange(len(self.branches)) - np.repeat(self.start, self.arity)
        there = self.branches >= 0
        parent[self.branches[there]], branch[self.branches[there]] = owner[there], place[there]
        return parent, branch

    @property
    def depths(self) -> Ints:
        """Edges between the root and every node."""
        depth = np.zeros(len(self), dtype=np.int64)
        for node, above in enumerate(self.parents[0].tolist()):
            if above >= 0:
                depth[node] = depth[above] + 1
        return depth

    # --- use ---

    def apply(self, X: Any) -> Ints:
        """The node at which every row ends."""
        X = X if isinstance(X, np.ndarray) else dense(X)
        at = np.zeros(len(X), dtype=np.int64)
        moving = np.arange(len(X)) if self.feature[0] >= 0 else np.arange(0)
        while len(moving):
            node = at[moving]
            child = self._step(node, X[moving, self.feature[node]])
            at[moving] = np.where(child >= 0, child, node)
            moving = moving[(child >= 0) & (self.feature[child] >= 0)]
        return at

    def _step(self, node: Ints, x: Any) -> Ints:
        """Where rows with the values ``x`` go from their node; −1 where there is no branch."""
        known = np.isfinite(x)
        branch = np.where(known, x > self.threshold[node], ~self.missing_left[node]).astype(
            np.int64
        )
        is_code = self.categorical[node]
        if is_code.any():
            last = self.arity[node[is_code]] - 1
            codes, seen = x[is_code], known[is_code]
            valid = seen & (codes >= 0) & (codes < last) & (codes == np.floor(codes))
            branch[is_code] = np.where(valid, codes, np.where(seen, -1, last)).astype(np.int64)
        child = self.branches[self.start[node] + np.maximum(branch, 0)]
        return np.where(branch >= 0, child, -1)

    def values(self, X: Any) -> Floats:
        """The value of the node at which every row ends."""
        return self.value[self.apply(X)]

    def predict_proba(self, X: Any) -> Floats:
        """Class probabilities of every row, for a tree whose values are class weights."""
        return shares(self.values(X))

    def importance(self, width: int) -> Floats:
        """How much each column's splits reduce the Gini impurity, in shares that add up to 1.

        For numbers, the variance between children takes the place of the impurity's reduction.
        """
        gain = np.zeros(width)
        parent, _ = self.parents
        above = parent[1:]
        if not len(above):
            return gain
        if self.value.shape[1] == 1:
            score = self.support * self.value[:, 0] ** 2
        else:
            score = self.support * (shares(self.value) ** 2).sum(axis=1)
        inner = np.unique(above)
        told = np.bincount(above, weights=score[1:], minlength=len(self))
        known = np.bincount(above, weights=self.support[1:], minlength=len(self))
        share = np.divide(known, self.support, out=np.zeros(len(self)), where=self.support > 0)
        np.add.at(gain, self.feature[inner], (told - score * share)[inner])
        gain = np.maximum(gain, 0)
        return gain / gain.sum() if gain.sum() > 0 else gain

    # --- travel ---

    def to_payload(self) -> dict[str, Any]:
        """The arrays by name."""
        return self.get_params(deep=False)

    @classmethod
    def from_payload(cls, payload: Any, width: int, outputs: int) -> Self:
        """A tree somebody else sent, or an error when its arrays make no tree."""
        try:
            tree = cls(**payload)
        except TypeError as error:
            raise PayloadError(f"this is no tree: {error}") from None
        tree._check(width, outputs)
        return tree

    def _check(self, width: int, outputs: int) -> None:
        nodes = len(self.feature) if self.feature.ndim == 1 else 0
        kinds = {"feature": "i", "start": "i", "arity": "i", "branches": "i", "threshold": "f",
                 "value": "f", "support": "f", "categorical": "b", "missing_left": "b"}  # fmt: skip
        for name, kind in kinds.items():
            array = getattr(self, name)
            shape = {"value": (nodes, outputs), "branches": array.shape}.get(name, (nodes,))
            if not nodes or array.dtype.kind != kind or array.shape != shape or array.ndim > 2:
                raise PayloadError(f"this is no tree: {name} is {array.dtype} of {array.shape}")
            if kind == "f" and not np.isfinite(array).all():
                raise PayloadError(f"this is no tree: {name} has numbers that are not finite")
        self._check_branches(width, nodes)

    def _check_branches(self, width: int, nodes: int) -> None:
        inner = self.feature >= 0
        ends = np.cumsum(self.arity)
        good = (
            (self.feature >= LEAF).all()
            and (self.feature < width).all()
            and (self.arity >= 0).all()
            and (self.arity[inner & ~self.categorical] == 2).all()
            and (self.arity[~inner] == 0).all()
            and (self.arity[inner] >= 1).all()
            and self.branches.ndim == 1
            and ends[-1] == len(self.branches)
            and np.array_equal(self.start, ends - self.arity)
        )
        child = self.branches[self.branches >= 0] if good else np.empty(0)
        owner = np.repeat(np.arange(nodes), self.arity) if good else np.empty(0)
        good = good and np.array_equal(np.sort(child), np.arange(1, nodes))
        if not good or (child <= owner[self.branches >= 0]).any():
            raise PayloadError("this is no tree: nodes and branches do not fit together")
        if (self.branches[np.repeat(inner & ~self.categorical, self.arity)] < 0).any():
            raise PayloadError("this is no tree: a numeric split lacks a branch")


def dense(X: Any) -> Any:
    """Rows as a matrix, images flattened and sparse rows filled."""
    X = X.toarray() if hasattr(X, "toarray") else np.asarray(X)
    return X.reshape(len(X), -1)


def shares(weights: Floats) -> Floats:
    """Rows scaled to add up to 1; rows of zeros become even."""
    total = weights.sum(axis=-1, keepdims=True)
    even = np.full_like(weights, 1 / weights.shape[-1])
    return np.asarray(np.divide(weights, total, out=even, where=total > 0))


class TreeBuilder:
    """Grows the arrays of a tree, node by node."""

    def __init__(self, outputs: int) -> None:
        self._feature: list[int] = []
        self._threshold: list[float] = []
        self._categorical: list[bool] = []
        self._missing_left: list[bool] = []
        self._branches: list[list[int]] = []
        self._value: list[Any] = []
        self._support: list[float] = []
        self._outputs = outputs

    def __len__(self) -> int:
        return len(self._feature)

    def add(self, value: Any, support: float) -> int:
        """A leaf; its number."""
        self._feature.append(LEAF)
        self._threshold.append(0.0)
        self._categorical.append(False)
        self._missing_left.append(False)
        self._branches.append([])
        self._value.append(value)
        self._support.append(support)
        return len(self) - 1

    def settle(self, node: int, value: Any, support: float) -> None:
        """Give a node a value that was found later."""
        self._value[node] = value
        self._support[node] = support

    def split(
        self,
        node: int,
        feature: int,
        branches: list[int],
        *,
        threshold: float | None = None,
        missing_left: bool = True,
    ) -> None:
        """Turn a leaf into a split, categorical unless there is a threshold."""
        self._feature[node] = feature
        self._branches[node] = branches
        self._categorical[node] = threshold is None
        self._threshold[node] = 0.0 if threshold is None else threshold
        self._missing_left[node] = threshold is not None and missing_left

    def build(self) -> Tree:
        arity = np.array([len(branches) for branches in self._branches], dtype=np.int64)
        flat = [child for branches in self._branches for child in branches]
        return Tree(
            feature=np.array(self._feature, dtype=np.int64),
            threshold=np.array(self._threshold, dtype=np.float64),
            categorical=np.array(self._categorical, dtype=bool),
            missing_left=np.array(self._missing_left, dtype=bool),
            start=np.cumsum(arity) - arity,
            arity=arity,
            branches=np.array(flat, dtype=np.int64),
            value=np.array(self._value, dtype=np.float64).reshape(len(self), self._outputs),
            support=np.array(self._support, dtype=np.float64),
        )
