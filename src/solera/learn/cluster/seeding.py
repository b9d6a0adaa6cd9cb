"""Where k-means starts, without a raw row leaving a client.

k-means++ and k-means|| start from rows, chosen far from each other. Here a client sends, instead
of a chosen row, sum and number of its rows that lie closest to it, and only where these are at
least five. The coordinator reduces the means to k centroids by weighted k-means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import numpy as np
from msgspec import Meta

from solera.core import rng
from solera.core.aggregation import Collect, Sum
from solera.core.clients import Client, ClientGroup, FloatArray, IntArray
from solera.core.constraints import NonNegative
from solera.core.disclosure.evidence import Sums, cells
from solera.core.federation import Federation
from solera.core.plan import Plan, planned
from solera.core.release import Cells, Update
from solera.core.task import task
from solera.data.agreement import SMALLEST_COUNT
from solera.learn.cluster.assignment import cell_sums, nearest
from solera.learn.cluster.tasks import Centroids, cost
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
    points = np.concatenate([_means(reply) for reply in replies])
    weights = np.concatenate([reply["rows"][reply["rows"] > 0] for reply in replies])
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
        candidates = np.concatenate([candidates, *(_means(reply) for reply in replies)])
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


def _means(reply: Mapping[str, Any]) -> FloatArray:
    """Means of the cells of a reply; one without rows is withheld."""
    kept = reply["rows"] > 0
    means: FloatArray = reply["sums"][kept] / reply["rows"][kept, None]
    return means


# --- the client's side ---


class LocalSeeds(TypedDict):
    """What ``kmeans.local_seeds`` takes."""

    k: Annotated[int, Meta(ge=1, le=10_000)]


class Candidates(Centroids):
    """What ``kmeans.candidates`` takes."""

    rate: NonNegative


def _behind_candidates(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    return _around(client, _drawn_centres(client, ask), len(ask["centroids"]))


def _around(client: Client, centres: FloatArray, known: int) -> dict[str, Sums]:
    """The rows of every cell that is sent."""
    label, many = _cells(client.data.X, centres, known)
    place = np.full(len(centres), -1)
    place[many] = np.arange(len(many))
    own = cells(place[label], len(many))
    return {"rows": own, "sums": Sums(own.right, dense(client.data.X))}


def _at_first_centroid(ask: Any, reply: Any) -> dict[str, Any]:
    """What may not leave stands for rows at the first centroid, the mean of all."""
    return {"sums": reply["rows"][:, None] * ask["centroids"][0]}


@task("kmeans.local_seeds", ask=LocalSeeds, release=[Update("rows", "sums")])
def local_seeds(client: Client, ask: Any) -> dict[str, Any]:
    """k-means++ over this client's rows: sum and number of the rows around each choice.

    Which rows are chosen depends on every single one: behind a gate this needs ``trusted``.
    """
    return _sums_around(client.data.X, _local_centres(client, ask), 0)


def _draw(client: Client) -> np.random.Generator:
    """The client's generator from its start, so that the rows behind a reply are those drawn."""
    draws = client.draws
    return rng.generator(draws.seed, draws.purpose, draws.round, client.id)


def _local_centres(client: Client, ask: Any) -> FloatArray:
    X, draw = client.data.X, _draw(client)
    first = int(draw.integers(X.shape[0]))
    chosen = [first]
    _, squared = nearest(X, dense(X[[first]]))
    for _ in range(ask["k"] - 1):
        total = squared.sum()
        if not total > 0:
            break
        chosen.append(int(draw.choice(X.shape[0], p=squared / total)))
        squared = np.minimum(squared, nearest(X, dense(X[chosen[-1:]]))[1])
    return np.asarray(dense(X[chosen]))


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


@task(
    "kmeans.candidates",
    many=_draw_candidates_many,
    ask=Candidates,
    release=[Cells("rows", "sums", behind=_behind_candidates, neutral=_at_first_centroid)],
)
def draw_candidates(client: Client, ask: Any) -> dict[str, Any]:
    """Rows drawn in proportion to d²: sum and number of the rows around each of them."""
    return _sums_around(client.data.X, _drawn_centres(client, ask), len(ask["centroids"]))


def _drawn_centres(client: Client, ask: Any) -> FloatArray:
    X, known = client.data.X, np.asarray(ask["centroids"])
    _, squared = nearest(X, known)
    if not np.isfinite(squared).all():
        raise not_finite(client, X)
    drawn = np.flatnonzero(_draw(client).random(X.shape[0]) < ask["rate"] * squared)
    return np.concatenate([known, dense(X[drawn])])


def _sums_around(X: Any, centres: FloatArray, known: int) -> dict[str, Any]:
    """Sums of the rows nearest to each centre after the first ``known``, where they are many."""
    label, many = _cells(X, centres, known)
    rows = np.bincount(label, minlength=len(centres))
    return {"sums": cell_sums(X, label, len(centres))[many], "rows": rows[many]}


def _cells(X: Any, centres: FloatArray, known: int) -> tuple[IntArray, IntArray]:
    """The nearest centre of every row, and the centres after the first that have many."""
    label, _ = nearest(X, centres)
    rows = np.bincount(label, minlength=len(centres))
    many = np.flatnonzero(rows >= SMALLEST_COUNT)
    return label, many[many >= known]
