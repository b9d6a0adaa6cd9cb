"""What clients count along trees: metrics, and class shares of leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core.clients import FloatArray, IntArray
from solera.evaluation.counts import class_metrics, metrics_of
from solera.learn.trees.tree import Tree, shares

METRICS = ("accuracy", "macro_f1")


def mean_metrics(replies: Mapping[int, Any], owners: IntArray) -> dict[str, FloatArray]:
    """Mean metrics of the owners' trees at the other clients that have rows; NaN where none has."""
    confusion = np.stack([reply["confusion"] for reply in replies.values()])
    counts = confusion.any(axis=(2, 3))
    counts &= np.array(list(replies))[:, None] != owners  # nobody judges the own tree
    number = counts.sum(axis=0)
    of_each = class_metrics(confusion.reshape(-1, *confusion.shape[2:]))
    means = {}
    for name in METRICS:
        total = np.where(counts, of_each[name].reshape(counts.shape), 0.0).sum(axis=0)
        means[name] = np.where(number, total / np.maximum(number, 1), np.nan)
    return means


def calibrated(tree: Tree, seen: FloatArray) -> Tree:
    """Leaves with the class shares of the rows seen there; the old shares count as one row.

    A node that rows can stop at, because a category has no branch, gets those of all rows below it.
    """
    below = tree.subtree_sums(seen)
    return tree.replaced(value=shares(below + shares(tree.value)))


def compare(reply: Any, predicted: IntArray) -> dict[str, Any]:
    """Metrics of the local and the global tree at one client."""
    part = "test" if reply["test"]["reached"].any() else "train"
    reached, local = reply[part]["reached"], reply[part]["own"]
    of_global = np.zeros_like(local)
    np.add.at(of_global.T, predicted, reached)
    compared: dict[str, Any] = {"rows": int(reached.sum())}
    for name, matrix in (("local", local), ("global", of_global)):
        if matrix.sum():
            metrics = metrics_of({"confusion": matrix})
            compared.update({f"{name}_{metric}": metrics[metric] for metric in METRICS})
    return compared
