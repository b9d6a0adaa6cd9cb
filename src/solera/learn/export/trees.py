"""Trees, forests and boosting as graphs.

All trees of a model walk at once: the nodes of all lie in one row of arrays, a row of X stands at
one node per tree, and each step of a loop moves it as :meth:`Tree._step` does. Codes are those of
known categories or missing, so that each has a branch. ONNX's own operator for trees has no splits
with a branch per category.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solera.core.clients import Array
from solera.learn.export.graph import Graph
from solera.learn.export.model import Outputs, add_predictor, best_class, numbers
from solera.learn.trees.boosting.base import Boosted
from solera.learn.trees.forest import FedForest
from solera.learn.trees.single_tree import SingleTree
from solera.learn.trees.tree import Tree, shares, starts_of


@add_predictor.register
def _tree(learner: SingleTree, graph: Graph, X: str) -> Outputs:
    at = _walk(graph, X, [learner.tree_])
    p = graph("Gather", shares(learner.tree_.value), graph("Squeeze", at, np.array([1])), axis=0)
    return _of_probabilities(learner, graph, p)


@add_predictor.register
def _forest(learner: FedForest, graph: Graph, X: str) -> Outputs:
    at = _walk(graph, X, learner.trees_)
    each = np.concatenate([_votes(learner, tree) for tree in learner.trees_])
    total = graph("ReduceSum", graph("Gather", each, at, axis=0), np.array([1]), keepdims=0)
    mean = graph("Div", total, float(len(learner.trees_)))
    if learner.schema_.target != "classes":
        return numbers(graph, learner.schema_, mean)
    return _of_probabilities(learner, graph, mean)


def _votes(learner: FedForest, tree: Tree) -> Array:
    """What each node of a tree adds to the outputs of the forest."""
    if learner.schema_.target != "classes":
        return tree.value
    if learner.vote == "mean":
        return shares(tree.value)
    return np.asarray(np.eye(tree.value.shape[1])[tree.value.argmax(axis=1)])


@add_predictor.register
def _boosted(learner: Boosted, graph: Graph, X: str) -> Outputs:
    trees = [tree for trees in learner.trees_ for tree in trees]
    each = len(learner.initial_)
    scores = graph("Expand", learner.initial_[None], _shape_of_rows(graph, X, each))
    if trees:
        values = np.concatenate([tree.value[:, 0] for tree in trees])
        added = graph("Gather", values, _walk(graph, X, trees), axis=0)
        by_round = graph("Reshape", added, np.array([-1, len(learner.trees_), each]))
        total = graph("ReduceSum", by_round, np.array([1]), keepdims=0)
        scores = graph("Add", scores, total)
    if learner.schema_.target != "classes":
        return numbers(graph, learner.schema_, scores)
    if each > 1:
        return _of_probabilities(learner, graph, graph("Softmax", scores, axis=1))
    p = graph("Sigmoid", scores)
    both = graph("Concat", graph("Sub", 1.0, p), p, axis=1)
    return _of_probabilities(learner, graph, both)


def _of_probabilities(learner: SingleTree | FedForest | Boosted, graph: Graph, p: str) -> Outputs:
    schema = learner.schema_
    return Outputs(best_class(graph, schema, p), schema.classes.dtype, p)


def _shape_of_rows(graph: Graph, X: str, columns: int) -> str:
    """The shape rows × columns."""
    rows = graph("Shape", X, start=0, end=1)
    return graph("Concat", rows, np.array([columns]), axis=0)


def _walk(graph: Graph, X: str, trees: Sequence[Tree]) -> str:
    """The node of every tree at which every row ends: rows × trees."""
    first = starts_of([len(tree) for tree in trees])[:-1]
    branch_first = starts_of([len(tree.branches) for tree in trees])[:-1]
    parts = list(zip(trees, first, branch_first, strict=True))
    children = [np.where(t.branches >= 0, t.branches + n, -1) for t, n, _ in parts]
    nodes = {
        "feature": np.concatenate([tree.feature for tree in trees]),
        "threshold": np.concatenate([tree.threshold for tree in trees]),
        "categorical": np.concatenate([tree.categorical for tree in trees]),
        "missing": np.concatenate([~tree.missing_left for tree in trees]).astype(np.int64),
        "start": np.concatenate([tree.start + b for tree, _, b in parts]),
        "last": np.concatenate([tree.arity for tree in trees]) - 1,
        "branches": np.concatenate([*children, [-1]]),
    }
    names = {name: graph.constant(array) for name, array in nodes.items()}
    start = graph("Expand", first[None], _shape_of_rows(graph, X, len(trees)))
    depth = max(_depth(tree) for tree in trees)
    return graph.repeat(depth, start, np.int64, lambda body, at: _step(body, X, at, names))


def _step(graph: Graph, X: str, at: str, names: dict[str, str]) -> str:
    """Where rows go from their nodes; those at a leaf, or without a branch, stay."""
    feature = graph("Gather", names["feature"], at)
    inner = graph("GreaterOrEqual", feature, np.int64(0))
    x = graph("GatherElements", X, graph("Max", feature, np.int64(0)), axis=1)
    known = graph.known(x)
    right = graph.cast(graph("Greater", x, graph("Gather", names["threshold"], at)), np.int64)
    numeric = graph("Where", known, right, graph("Gather", names["missing"], at))
    code = graph.cast(graph("Where", known, x, 0.0), np.int64)  # the graph makes no other codes
    by_code = graph("Where", known, code, graph("Gather", names["last"], at))
    branch = graph("Where", graph("Gather", names["categorical"], at), by_code, numeric)
    place = graph("Add", graph("Gather", names["start"], at), branch)
    child = graph("Gather", names["branches"], graph("Where", inner, place, np.int64(-1)))
    return graph("Where", graph("GreaterOrEqual", child, np.int64(0)), child, at)


def _depth(tree: Tree) -> int:
    """Splits between the root and the farthest leaf."""
    parent, _ = tree.parents
    depth = np.zeros(len(tree), dtype=np.int64)
    for node in range(1, len(tree)):
        depth[node] = depth[parent[node]] + 1
    return int(depth.max())
