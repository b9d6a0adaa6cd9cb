"""Where k-means starts, without a raw row leaving a client.

k-means++ and k-means|| start from rows, chosen far from each other. Here a client sends, instead
of a chosen row, sum and number of its rows that lie closest to it, and only where these are at
least five. The coordinator reduces the means to k centroids by weighted k-means. Which rows are
chosen depends on every single one: at an owner this needs the policy ``trusted``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core import rng
from solera.core.aggregation import Collect, Sum
from solera.core.clients import Client, ClientGroup, FloatArray
from solera.core.federation import Federation
from solera.core.task import task
from solera.data.agreement import SMALLEST_COUNT
from solera.learn.cluster.assignment import as_rows, nearest
from solera.learn.cluster.partition import partition
from solera.learn.cluster.tasks import cost
from solera.learn.preprocess.moments import (
    pooled_means,
    pooled_moments,
)
from solera.learn.rows import dense, not_finite
from solera.trust.cells import sum_by_cell

_ROUNDS = 5


def random_start(federation: Federation, k: int) -> FloatArray:
    """k draws from a normal distribution with the mean and variance of every column."""
    moments = pooled_moments(federation)
    draw = rng.generator(federation.seed, "kmeans.random").normal(size=(k, len(moments["mean"])))
    start: FloatArray = moments["mean"] + draw * np.sqrt(moments["variance"])
    return start


def from_groups(federation: Federation, k: int) -> FloatArray:
    """k-means over the groups of a k-d partition."""
    rows, means = partition(federation, k)
    return reduced(federation, means, rows, k)


def plus_plus(federation: Federation, k: int) -> FloatArray:
    """k-means++ at every client (Arthur & Vassilvitskii 2007), then k-means of their choices."""
    replies = federation.ask(local_seeds, {"k": k}).fold(Collect()).values()
    points = np.concatenate([_means(reply) for reply in replies])
    weights = np.concatenate([reply["rows"] for reply in replies])
    return reduced(federation, points, weights, k)


def parallel(federation: Federation, k: int) -> FloatArray:
    """k-means|| (Bahmani et al. 2012): in each of five rounds about 2k rows are drawn, by d².

    A row x is drawn with probability 2k d²(x, C) / Σ d², C the candidates so far; the first one is
    the mean of all rows.
    """
    candidates = pooled_means(federation)[None]
    for round in range(_ROUNDS):
        total = federation.ask(cost, {"centroids": candidates}, round=round).fold(Sum())
        inertia = float(total["inertia"].sum())
        if not inertia > 0:
            break
        order = {"centroids": candidates, "rate": 2 * k / inertia}
        replies = federation.ask(draw_candidates, order, round=round).fold(Collect()).values()
        candidates = np.concatenate([candidates, *(_means(reply) for reply in replies)])
    weights = federation.ask(cost, {"centroids": candidates}, round=_ROUNDS).fold(Sum())["counts"]
    return reduced(federation, candidates, weights, k)


def reduced(
    federation: Federation, points: FloatArray, weights: Any, k: int, start: Any = "k-means++"
) -> FloatArray:
    """k centroids of weighted points; where there are too few, the rest is drawn at random."""
    kept = weights > 0
    points, weights = points[kept], weights[kept]
    distinct = np.unique(points, axis=0)
    if len(distinct) < k:
        return np.concatenate([distinct, random_start(federation, k - len(distinct))])
    from sklearn.cluster import KMeans

    seed = int(rng.generator(federation.seed, "kmeans.reduce").integers(2**31))
    runs = 10 if isinstance(start, str) else 1
    model = KMeans(k, init=start, n_init=runs, random_state=seed)
    centroids = model.fit(points, sample_weight=weights).cluster_centers_
    return np.asarray(centroids, dtype=np.float64)


def _means(reply: Mapping[str, Any]) -> FloatArray:
    means: FloatArray = reply["sums"] / reply["rows"][:, None]
    return means


# --- the client's side ---


@task("kmeans.local_seeds")
def local_seeds(client: Client, ask: Any) -> dict[str, Any]:
    """k-means++ over this client's rows: sum and number of the rows around each choice."""
    X, draw = client.data.X, client.rng
    first = int(draw.integers(X.shape[0]))
    chosen = [first]
    _, squared = nearest(X, dense(X[[first]]))
    for _ in range(ask["k"] - 1):
        total = squared.sum()
        if not total > 0:
            break
        chosen.append(int(draw.choice(X.shape[0], p=squared / total)))
        squared = np.minimum(squared, nearest(X, dense(X[chosen[-1:]]))[1])
    return _sums_around(X, np.asarray(dense(X[chosen])), 0)


def _draw_candidates_many(group: ClientGroup, ask: Any) -> list[dict[str, Any]]:
    """Few clients draw a row; the others all give one and the same empty reply."""
    data, known = group.data, np.asarray(ask["centroids"])
    _, squared = nearest(data.joined().X, known)
    if not np.isfinite(squared).all():
        return [draw_candidates(client, ask) for client in group]
    drawn = group.uniforms() < ask["rate"] * squared
    nothing = {"sums": np.zeros((0, known.shape[1])), "rows": np.zeros(0, dtype=np.int64)}
    replies = [nothing] * len(group)
    draws = np.bincount(data.owners[drawn], minlength=len(group))
    ends = np.cumsum(data.sizes)
    for i in np.flatnonzero(draws).tolist():
        X = data[i].X
        own = drawn[ends[i] - data.sizes[i] : ends[i]]
        centres = np.concatenate([known, dense(X[np.flatnonzero(own)])])
        replies[i] = _sums_around(X, centres, len(known))
    return replies


@task("kmeans.candidates", many=_draw_candidates_many)
def draw_candidates(client: Client, ask: Any) -> dict[str, Any]:
    """Rows drawn in proportion to d²: sum and number of the rows around each of them."""
    X, known = client.data.X, np.asarray(ask["centroids"])
    _, squared = nearest(X, known)
    if not np.isfinite(squared).all():
        raise not_finite(client, X)
    drawn = np.flatnonzero(client.rng.random(X.shape[0]) < ask["rate"] * squared)
    return _sums_around(X, np.concatenate([known, dense(X[drawn])]), len(known))


def _sums_around(X: Any, centres: FloatArray, known: int) -> dict[str, Any]:
    """Sums of the rows nearest to each centre after the first ``known``, where they are many."""
    label, _ = nearest(X, centres)
    rows = np.bincount(label, minlength=len(centres))
    sums = sum_by_cell(as_rows(X), label, len(centres))
    many = np.arange(len(centres)) >= known
    many &= rows >= SMALLEST_COUNT
    return {"sums": sums[many], "rows": rows[many]}
