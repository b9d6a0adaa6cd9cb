"""A decision tree as arrays: no node objects, all rows walk down together.

A node splits on one column, or is a leaf. A *numeric* split has two branches, x ≤ threshold and
x > threshold. A *categorical* split has a branch for every category and one for missing values;
branches without a child, and codes the tree never heard of, end at the node itself, whose
distribution then answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray, IntArray
from solera.core.component import Component
from solera.core.errors import PayloadError
from solera.learn.rows import dense

LEAF = -1
MOST_NODES = 100_000
_MANY_ROWS = 512
"""From here on a row that has arrived may as well look again."""
_DEEPEST = 1000
"""The most levels of a tree that somebody else sent."""
_DTYPES: dict[str, Any] = {
    "feature": np.int64,
    "threshold": np.float64,
    "categorical": bool,
    "missing_left": bool,
    "value": np.float64,
    "support": np.float64,
}
"""What the arrays of nodes hold; those of branches hold int64."""


class Arrays(Component, abstract=True):
    """A component whose parameters are arrays; subclasses are dataclasses of them."""

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            setattr(self, name, np.asarray(value))

    def check_params(self) -> None:
        """Arrays of strangers are checked where they arrive, not each time they are held."""

    def to_payload(self) -> dict[str, Any]:
        """The arrays by name."""
        return dict(vars(self))

    def replaced(self, **changed: Any) -> Self:
        """The same with other arrays for some of the names."""
        return type(self)(**{**vars(self), **changed})


@dataclass(kw_only=True, eq=False, repr=False)
class Tree(Arrays):
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

    feature: IntArray
    threshold: FloatArray
    categorical: BoolArray
    missing_left: BoolArray
    start: IntArray
    arity: IntArray
    branches: IntArray
    value: FloatArray
    support: FloatArray

    # --- shape ---

    def __len__(self) -> int:
        return len(self.feature)

    @property
    def leaves(self) -> IntArray:
        """The nodes without children."""
        return np.flatnonzero(self.feature < 0)

    def children(self, node: int) -> list[tuple[int, int]]:
        """Branch and child of every branch of a node that has a child."""
        first = self.start[node]
        branches = self.branches[first : first + self.arity[node]].tolist()
        return [(way, child) for way, child in enumerate(branches) if child >= 0]

    @property
    def parents(self) -> tuple[IntArray, IntArray]:
        """Parent and branch of every node; −1 for the root."""
        parents = np.full((2, len(self)), -1)
        there = self.branches >= 0
        parents[:, self.branches[there]] = self.branch_places[:, there]
        parent, branch = parents
        return parent, branch

    @property
    def branch_places(self) -> IntArray:
        """The node of every branch, and its place among those of the node: 2 × branches."""
        node = np.repeat(np.arange(len(self)), self.arity)
        return np.stack([node, np.arange(len(self.branches)) - self.start[node]])

    def subtree_sums(self, at_nodes: Array) -> FloatArray:
        """Sums over every node and all nodes below it of what each node holds itself."""
        total = at_nodes.copy()
        parent, _ = self.parents
        for node in range(len(self) - 1, 0, -1):
            total[parent[node]] += total[node]
        return total

    # --- use ---

    def apply(self, X: Any) -> IntArray:
        """The node at which every row ends."""
        X = X if isinstance(X, np.ndarray) else dense(X)
        at = np.zeros(len(X), dtype=np.int64)
        if len(X) >= _MANY_ROWS and not self.categorical.any() and np.isfinite(X).all():
            return self._apply_numbers(np.ascontiguousarray(X), at)
        moving = np.arange(len(X)) if self.feature[0] >= 0 else np.arange(0)
        while len(moving):
            node = at[moving]
            child = self._step(node, X[moving, self.feature[node]])
            at[moving] = np.where(child >= 0, child, node)
            moving = moving[(child >= 0) & (self.feature[child] >= 0)]
        return at

    def _apply_numbers(self, X: Any, at: IntArray) -> IntArray:
        """:meth:`apply` without categories and missing values: every row looks up its way."""
        inner = self.feature >= 0
        column = np.where(inner, self.feature, 0)
        ways = np.repeat(np.arange(len(self)), 2)  # a leaf leads to itself
        ways[np.repeat(inner, 2)] = self.branches
        values, line = X.reshape(-1), np.arange(0, X.size, X.shape[1])
        while inner.take(at).any():
            x = values.take(line + column.take(at))
            at = ways.take(2 * at + (x > self.threshold.take(at)))
        return at

    def _step(self, node: IntArray, x: Any) -> IntArray:
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

    def values(self, X: Any) -> FloatArray:
        """The value of the node at which every row ends."""
        return self.value[self.apply(X)]

    def predict_proba(self, X: Any) -> FloatArray:
        """Class probabilities of every row, for a tree whose values are class weights."""
        return shares(self.values(X))

    def importance(self, width: int) -> FloatArray:
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
        below = np.bincount(above, weights=score[1:], minlength=len(self))
        rows = np.bincount(above, weights=self.support[1:], minlength=len(self))
        share = np.divide(rows, self.support, out=np.zeros(len(self)), where=self.support > 0)
        np.add.at(gain, self.feature[inner], (below - score * share)[inner])
        gain = np.maximum(gain, 0)
        return gain / gain.sum() if gain.sum() > 0 else gain

    # --- travel ---

    @classmethod
    def from_payload(cls, payload: Any, width: int, outputs: int) -> Self:
        """A tree somebody else sent, or an error when its arrays make no tree."""
        try:
            tree = cls(**payload)
        except (TypeError, ValueError) as error:
            raise PayloadError(f"this is no tree: {error}") from None
        tree.check(width, outputs)
        return tree

    def check(self, width: int, outputs: int) -> None:
        """Raise :class:`PayloadError` unless these arrays make a tree for so many columns."""
        nodes = len(self.feature) if self.feature.ndim == 1 else 0
        for name, array in vars(self).items():
            kind = np.dtype(_DTYPES.get(name, np.int64)).kind
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
            and (self.arity[inner & ~self.categorical] == 2).all()
            and (self.arity[~inner] == 0).all()
            and (self.arity[inner] >= 1).all()
            and self.branches.ndim == 1
            and (self.arity <= len(self.branches)).all()
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
        if nodes > MOST_NODES or (nodes > _DEEPEST and self._deeper_than(_DEEPEST)):
            raise PayloadError(
                f"this tree has more than {MOST_NODES:,} nodes or {_DEEPEST:,} levels"
            )

    def _deeper_than(self, most: int) -> bool:
        """Whether some leaf is more than so many splits away from the root."""
        parent, _ = self.parents
        above = parent
        for _ in range(most):
            if (above < 0).all():
                return False
            above = np.where(above >= 0, parent[above], -1)
        return True


def starts_of(sizes: Any) -> IntArray:
    """Where groups of these sizes begin when they lie one after the other; the end comes last."""
    return np.concatenate([[0], np.cumsum(sizes)])


def shares(weights: FloatArray) -> FloatArray:
    """Rows scaled to add up to 1; rows of zeros become even."""
    total = weights.sum(axis=-1, keepdims=True)
    even = np.full_like(weights, 1 / weights.shape[-1])
    return np.asarray(np.divide(weights, total, out=even, where=total > 0))


_LEAVES: dict[str, Any] = {
    "feature": LEAF,
    "threshold": 0.0,
    "categorical": False,
    "missing_left": False,
    "branches": (),
}
"""What the arrays say of a leaf, besides its value and support."""


class TreeBuilder:
    """Grows the arrays of a tree, node by node."""

    def __init__(self, outputs: int) -> None:
        self._outputs = outputs
        self._nodes: dict[str, list[Any]] = {name: [] for name in (*_DTYPES, "branches")}

    def __len__(self) -> int:
        return len(self._nodes["value"])

    def add(self, value: Any, support: float) -> int:
        """A leaf; its number."""
        self.add_all([value], [support])
        return len(self) - 1

    def add_all(self, values: Sequence[Any], supports: Sequence[float]) -> None:
        """Several leaves."""
        self._nodes["value"] += values
        self._nodes["support"] += supports
        for name, default in _LEAVES.items():
            self._nodes[name] += [default] * len(values)

    def set_value(self, node: int, value: Any, support: float) -> None:
        """Give a node a value that became known later."""
        self._nodes["value"][node] = value
        self._nodes["support"][node] = support

    def split(
        self,
        node: int,
        feature: int,
        branches: Sequence[int],
        *,
        threshold: float | None = None,
        missing_left: bool = True,
    ) -> None:
        """Turn a leaf into a split, categorical unless there is a threshold."""
        nodes = self._nodes
        nodes["feature"][node] = feature
        nodes["branches"][node] = branches
        if threshold is None:
            nodes["categorical"][node] = True
        else:
            nodes["threshold"][node] = threshold
            nodes["missing_left"][node] = missing_left

    @classmethod
    def of(cls, tree: Tree) -> TreeBuilder:
        """A builder that goes on with a tree."""
        builder = cls(tree.value.shape[1])
        ends = (tree.start + tree.arity).tolist()
        places = zip(tree.start.tolist(), ends, strict=True)
        builder._nodes = {name: getattr(tree, name).tolist() for name in _DTYPES}
        builder._nodes["value"] = list(tree.value if builder._outputs > 1 else tree.value[:, 0])
        builder._nodes["branches"] = [tree.branches[a:b].tolist() for a, b in places]
        return builder

    def build(self) -> Tree:
        branches = self._nodes["branches"]
        arity = np.array([len(each) for each in branches], dtype=np.int64)
        flat = np.array([child for each in branches for child in each], dtype=np.int64)
        arrays = {name: np.array(self._nodes[name], dtype=dtype) for name, dtype in _DTYPES.items()}
        arrays["value"] = arrays["value"].reshape(len(self), self._outputs)
        return Tree(start=np.cumsum(arity) - arity, arity=arity, branches=flat, **arrays)
