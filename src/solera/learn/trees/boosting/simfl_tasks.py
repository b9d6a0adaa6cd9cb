"""The client's side of SimFL: hash rows, find similar ones, add up gradients for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import Client, FloatArray, IntArray
from solera.core.errors import Refusal
from solera.core.rng import generator
from solera.core.task import task
from solera.learn.trees.boosting.base import boosting_target, gradients
from solera.learn.trees.client_trees import checked_rows, with_missing
from solera.learn.trees.tree import Tree

STATE = "trees.similar"
PLANES = 8
MOST_TABLES = 40
_COMPARED = 1 << 23
"""Pairs of rows compared at once."""


def hyperplanes(width: int, seed: int) -> FloatArray:
    """Directions and offsets of the hash tables, shared by all: tables × planes × (d + 1)."""
    tables = max(1, min(MOST_TABLES, width - 1))
    return generator(seed, "trees.lsh").normal(size=(tables, PLANES, width + 1))


@task("trees.hash")
def hash_rows(client: Client, ask: Any) -> dict[str, Any]:
    """One byte per row and table: on which side of eight random hyperplanes the row lies.

    Rows that are close share many bytes (Charikar 2002). This is what SimFL reveals of a row.
    """
    X = checked_rows(client, client.data.part("train"), ask["width"])
    X = (X - ask["mean"]) / ask["scale"]
    X = np.where(np.isfinite(X), X, 0.0)  # a missing value is the mean
    planes = hyperplanes(ask["width"], ask["seed"])
    sides = np.einsum("nd,tpd->ntp", X, planes[:, :, :-1]) + planes[:, :, -1] > 0
    client.state.pop(STATE, None)
    return {"codes": np.packbits(sides, axis=2)[:, :, 0]}


@task("trees.similar")
def find_similar(client: Client, ask: Any) -> dict[str, Any]:
    """For each own row, the row of every client that shares most bytes with it; kept, not sent."""
    own = ask["codes"][ask["clients"].tolist().index(client.id)]
    similar = np.empty((len(ask["codes"]), len(own)), dtype=np.int64)
    for i, (other, codes) in enumerate(zip(ask["clients"].tolist(), ask["codes"], strict=True)):
        similar[i] = np.arange(len(own)) if other == client.id else most_similar(own, codes)
    scores = np.repeat(ask["initial"][:, None], len(own), axis=1)
    client.state[STATE] = {"similar": similar, "scores": scores, "trees": 0}
    return {"rows": len(own)}


def most_similar(own: NDArray[np.uint8], others: NDArray[np.uint8]) -> IntArray:
    """Index of the first row of ``others`` that agrees with each own row in most tables."""
    nearest = np.empty(len(own), dtype=np.int64)
    step = max(1, _COMPARED // max(1, len(others)))
    columns = np.ascontiguousarray(others.T)
    for begin in range(0, len(own), step):
        shared = np.zeros((min(step, len(own) - begin), len(others)), dtype=np.uint8)
        for table, other_table in zip(own[begin : begin + step].T, columns, strict=True):
            shared += table[:, None] == other_table
        nearest[begin : begin + step] = shared.argmax(axis=1)
    return nearest


def _scores(client: Client, X: FloatArray, ask: Mapping[str, Any]) -> FloatArray:
    """This client's scores with all trees so far; those it has not counted yet are added."""
    if STATE not in client.state:
        raise Refusal(f"client {client.id} was not there when similar rows were found")
    kept = client.state[STATE]
    if kept["trees"] < ask["from"]:
        raise Refusal(f"client {client.id} missed too many trees to go on")
    scores = kept["scores"].copy()
    for trees in ask["trees"][kept["trees"] - ask["from"] :]:
        for k, payload in enumerate(trees):
            scores[k] += Tree.from_payload(payload, ask["width"], 1).values(X)[:, 0]
    client.state[STATE] = {**kept, "scores": scores, "trees": ask["from"] + len(ask["trees"])}
    return np.asarray(scores)


@task("trees.similar_gradients")
def similar_gradients(client: Client, ask: Any) -> dict[str, Any]:
    """Σg and Σh of this client's rows by the builder's row that each is similar to."""
    rows = client.data.part("train")
    scores = _scores(client, with_missing(rows.X), ask)
    g, h, losses = gradients(scores, boosting_target(rows.y, ask), ask["loss"])
    at = client.state[STATE]["similar"][ask["builder"]]
    size = ask["builder_rows"]
    summed = [[np.bincount(at, w, minlength=size) for w in pair] for pair in zip(g, h, strict=True)]
    return {"sums": np.array(summed), "loss": float(losses.sum()), "rows": len(rows)}


@task("trees.build_similar")
def build_tree(client: Client, ask: Any) -> dict[str, Any]:
    """A tree on this client's rows, each with the gradients of all rows similar to it.

    With target −G/H and weight H, least squares maximises Σ G²/H as Newton boosting does; leaves
    are −η ΣG/(ΣH + λ).
    """
    from sklearn.tree import DecisionTreeRegressor

    from solera.learn.trees.sklearn_trees import from_sklearn

    X = with_missing(client.data.part("train").X)
    trees = []
    for G, H in ask["sums"]:
        H = np.maximum(H, 1e-12)
        grower = DecisionTreeRegressor(
            max_depth=ask["max_depth"],
            min_samples_leaf=min(ask["min_rows"], max(1, len(X) // 2)),
            random_state=int(client.rng.integers(2**31)),
        )
        tree = from_sklearn(grower.fit(X, -G / H, sample_weight=H), rows=X)
        at = tree.apply(X)
        below_g, below_h = (
            tree.subtree_sums(np.bincount(at, w, minlength=len(tree))) for w in (G, H)
        )
        value = -ask["lr"] * below_g / (below_h + ask["l2"])
        trees.append(tree.replaced(value=value[:, None]).to_payload())
    return {"trees": trees}
