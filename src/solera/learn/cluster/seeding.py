"""Where k-means starts, without a raw row leaving a client.

k-means++ and k-means|| start from rows, chosen far from each other. Here a client sends, instead
of a chosen row, the mean of its rows that lie closest to it, and only where these are at least
five. The coordinator reduces all candidates to k centroids by weighted k-means.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core import rng
from solera.core.aggregation import Collect, Sum
from solera.core.clients import Client, FloatArray
from solera.core.federation import Federation
from solera.core.plan import Plan, planned
from solera.core.task import task
from solera.data.agreement import SMALLEST_COUNT
from solera.learn.cluster.assignment import cell_sums, nearest
from solera.learn.cluster.tasks import cost
from solera.learn.preprocess.moments import Moments, column_moments
from solera.learn.rows import dense, not_finite

_ROUNDS = 5


def random_start(federation: Federation, k: int) -> FloatArray:
    """k draws from a normal distribution with the mean and variance of every column."""
    moments = federation.ask(column_moments).fold(Moments())
    draw = rng.generator(federation.seed, "kmeans.random").normal(size=(k, len(moments["mean"])))
    start: FloatArray = moments["mean"] + draw * np.sqrt(moments["variance"])
    return start


def plus_plus(federation: Federation, k: int) -> FloatArray:
    """k-means++ at every client (Arthur & Vassilvitskii 2007), then k-means of their choices."""
    replies = federation.ask(local_seeds, {"k": k}).fold(Collect()).values()
    points = np.concatenate([reply["means"] for reply in replies])
    weights = np.concatenate([reply["rows"] for reply in replies])
    return _reduced(federation, points, weights, k)


def parallel(federation: Federation, k: int) -> FloatArray:
    """k-means|| (Bahmani et al. 2012): in each of five rounds about 2k rows are drawn, by d².

    A row x is drawn with probability 2k d²(x, C) / Σ d², C the candidates so far; the first one is
    the mean of all rows.
    """
    candidates = federation.ask(column_moments).fold(Moments())["mean"][None]
    for round in range(_ROUNDS):
        total = federation.ask(cost, {"centroids": candidates}, round=round).fold(Sum())
        if not total["inertia"] > 0:
            break
        order = {"centroids": candidates, "rate": 2 * k / total["inertia"]}
        replies = federation.ask(draw_candidates, order, round=round).fold(Collect()).values()
        candidates = np.concatenate([candidates, *(reply["means"] for reply in replies)])
    weights = federation.ask(cost, {"centroids": candidates}, round=_ROUNDS).fold(Sum())["counts"]
    return _reduced(federation, candidates, weights, k)


def random_asks(k: int) -> Plan:
    """What :func:`random_start` asks."""
    return (planned(column_moments, 1),)


def plus_plus_asks(k: int) -> Plan:
    """What :func:`plus_plus` asks; moments only where there are too few points."""
    return (planned(local_seeds, 1, {"k": k}), planned(column_moments, 1, optional=True))


def parallel_asks(k: int) -> Plan:
    """What :func:`parallel` asks; no candidates where all rows are the same."""
    return (
        planned(column_moments, 2),
        planned(cost, _ROUNDS + 1),
        planned(draw_candidates, _ROUNDS, open=["rate"], optional=True),
    )


def _reduced(federation: Federation, points: FloatArray, weights: Any, k: int) -> FloatArray:
    """k centroids of weighted points; where there are too few, the rest is drawn at random."""
    kept = weights > 0
    points, weights = points[kept], weights[kept]
    distinct = np.unique(points, axis=0)
    if len(distinct) < k:
        return np.concatenate([distinct, random_start(federation, k - len(distinct))])
    from sklearn.cluster import KMeans

    seed = int(rng.generator(federation.seed, "kmeans.reduce").integers(2**31))
    reduced = KMeans(k, n_init=10, random_state=seed).fit(points, sample_weight=weights)
    return np.asarray(reduced.cluster_centers_, dtype=np.float64)


@task("kmeans.local_seeds")
def local_seeds(client: Client, ask: Any) -> dict[str, Any]:
    """k-means++ over this client's rows: the mean and the number of rows around each choice."""
    X = client.data.X
    first = int(client.rng.integers(X.shape[0]))
    chosen = [first]
    _, squared = nearest(X, dense(X[[first]]))
    for _ in range(ask["k"] - 1):
        total = squared.sum()
        if not total > 0:
            break
        chosen.append(int(client.rng.choice(X.shape[0], p=squared / total)))
        squared = np.minimum(squared, nearest(X, dense(X[chosen[-1:]]))[1])
    return _means_around(X, dense(X[chosen]), 0)


@task("kmeans.candidates")
def draw_candidates(client: Client, ask: Any) -> dict[str, Any]:
    """Rows drawn in proportion to d²: the mean and the number of rows around each of them."""
    X, known = client.data.X, np.asarray(ask["centroids"])
    _, squared = nearest(X, known)
    if not np.isfinite(squared).all():
        raise not_finite(client, X)
    drawn = np.flatnonzero(client.rng.random(X.shape[0]) < ask["rate"] * squared)
    return _means_around(X, np.concatenate([known, dense(X[drawn])]), len(known))


def _means_around(X: Any, centres: FloatArray, known: int) -> dict[str, Any]:
    """Means of the rows nearest to each centre after the first ``known``, where they are many."""
    label, _ = nearest(X, centres)
    rows = np.bincount(label, minlength=len(centres))
    sums = cell_sums(X, label, len(centres))
    many = np.flatnonzero(rows >= SMALLEST_COUNT)
    many = many[many >= known]
    return {"means": sums[many] / rows[many, None], "rows": rows[many]}
