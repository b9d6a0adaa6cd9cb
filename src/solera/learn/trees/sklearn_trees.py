"""Trees of scikit-learn: grown at a client, or imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import FloatArray
from solera.core.errors import UsageError
from solera.core.schema import class_codes
from solera.learn.trees.tree import Tree

_HUGE = float(np.finfo(np.float64).max)
"""Stands for the infinite threshold that parts missing values from all others."""


def from_sklearn(estimator: Any, *, classes: Any = None, rows: FloatArray | None = None) -> Tree:
    """A fitted ``DecisionTreeClassifier`` or ``DecisionTreeRegressor`` as a :class:`Tree`.

    It predicts exactly as the original, on float64 rows too: scikit-learn rounds rows to float32
    before it compares them, and thresholds are moved to where that rounding turns.

    ``classes`` lists all classes when the tree was grown on some of them only. With ``rows``, those
    it was grown on, splits on columns without missing values there send them to the first branch;
    without it they go where scikit-learn sends them.
    """
    grown = getattr(estimator, "tree_", None)
    if grown is None:
        raise UsageError(
            f"{type(estimator).__name__} is no fitted tree of scikit-learn",
            hint="fit it first; of a forest, import the trees in estimators_",
        )
    if grown.n_outputs != 1:
        raise UsageError(f"the tree has {grown.n_outputs} outputs, one is supported")
    nodes = grown.node_count
    inner = grown.children_left >= 0
    arity = np.where(inner, 2, 0)
    pairs = np.stack([grown.children_left, grown.children_right], axis=1)
    feature = np.where(inner, grown.feature, -1).astype(np.int64)
    missing_left = inner & grown.missing_go_to_left.astype(bool)
    if rows is not None:
        missing_left |= inner & ~np.asarray(np.isnan(rows).any(axis=0))[feature]
    return Tree(
        feature=feature,
        threshold=np.where(inner, _turning_points(grown.threshold), 0.0).clip(-_HUGE, _HUGE),
        categorical=np.zeros(nodes, dtype=bool),
        missing_left=missing_left,
        start=np.cumsum(arity) - arity,
        arity=arity,
        branches=pairs[inner].ravel().astype(np.int64),
        value=_values(estimator, grown, classes),
        support=grown.weighted_n_node_samples.astype(np.float64),
    )


def _values(estimator: Any, grown: Any, classes: Any) -> FloatArray:
    value = grown.value[:, 0, :].astype(np.float64)
    own = getattr(estimator, "classes_", None)
    if own is None:
        return np.asarray(value)
    total = value.sum(axis=1, keepdims=True)
    weights = value / total * grown.weighted_n_node_samples[:, None]
    rows = np.rint(weights)
    if np.allclose(weights, rows, rtol=0, atol=1e-6):
        weights = rows  # counts of rows, exactly
    if classes is None:
        return np.asarray(weights)
    spread = np.zeros((len(value), len(classes)))
    spread[:, class_codes(own, classes)] = weights
    return spread


def _turning_points(threshold: FloatArray) -> FloatArray:
    """The largest float64 numbers that, rounded to float32, are at most the thresholds."""
    threshold = threshold.clip(*np.finfo(np.float32).max * np.array([-1.0, 1.0]))
    low = threshold.astype(np.float32)
    low = np.where(low > threshold, np.nextafter(low, np.float32(-np.inf)), low).astype(np.float32)
    with np.errstate(over="ignore"):
        high = np.nextafter(low, np.float32(np.inf))
    middle = (low.astype(np.float64) + high.astype(np.float64)) / 2
    even = low.view(np.uint32) % 2 == 0  # halfway cases go to the even neighbour
    return np.where(even, middle, np.nextafter(middle, -np.inf))
