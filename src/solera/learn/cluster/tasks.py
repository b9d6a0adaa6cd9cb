"""The client's side of federated k-means: which rows are nearest to which centroid, and how far.

Every sum is by cluster, so that a mean and its rows are told together or not at all. Steps over
mini-batches are no sums: they have a task of their own, ``kmeans.update``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from solera.core.clients import Client, ClientGroup, FloatArray, IntArray, Segments
from solera.core.errors import DataError
from solera.core.replies import Stacked
from solera.core.rng import Bits, random_bits
from solera.core.task import task
from solera.learn.cluster.assignment import as_rows, distances, nearest
from solera.learn.rows import check_shape, not_finite
from solera.trust.cells import sum_by_cell
from solera.trust.constructors import count_by, sum_by, update
from solera.trust.contributions import Contribution, Update


def _sums_like(ask: Any) -> dict[str, Any]:
    k = len(ask["centroids"])
    sums = {"counts": np.zeros(k, dtype=np.int64), "sums": ask["centroids"]}
    return sums if "privacy" in ask else {**sums, "inertia": np.zeros(k)}


def _steps_like(ask: Any) -> dict[str, Any]:
    return {**_sums_like(ask), "inertia": 0.0}


@task("kmeans.assign", many=True, like=_sums_like)
def assign(client: Client, ask: Any) -> dict[str, Contribution]:
    """Λ_j and Σ x of the rows x nearest to centroid j, and Σ d² where nothing is noised.

    With noise a row has to be bounded, and its distance is not.
    """
    k = len(ask["centroids"])
    label, squared = _nearest(client, ask)
    sums: dict[str, Contribution] = {
        "counts": count_by(label, k),
        "sums": sum_by(label, as_rows(client.data.X), k),
    }
    if "privacy" not in ask:
        sums["inertia"] = sum_by(label, squared, k)
    return sums


@task("kmeans.cost", many=True, version=2)
def cost(client: Client, ask: Any) -> dict[str, Contribution]:
    """The rows nearest to each centroid, and Σ d² of these."""
    k = len(ask["centroids"])
    label, squared = _nearest(client, ask)
    return {"counts": count_by(label, k), "inertia": sum_by(label, squared, k)}


@task("kmeans.inertia")
def inertia(client: Client, ask: Any) -> dict[str, Contribution]:
    """Σ d² of all rows, and how many they are."""
    _, squared = _nearest(client, ask)
    return {"rows": count_by(None), "inertia": sum_by(None, squared)}


def _nearest(client: Client, ask: Any) -> tuple[IntArray, FloatArray]:
    """The nearest centroid of every row and d², unless a value is missing or infinite.

    With noise such a row is no error, which would tell of it: it gives nothing to the sums.
    """
    X, centroids = client.data.X, np.asarray(ask["centroids"], dtype=np.float64)
    columns, width = math.prod(X.shape[1:]), centroids.shape[1]
    if columns != width:
        raise DataError(f"client {client.id} has {columns} columns, the model {width}")
    label, squared = nearest(X, centroids)
    if "privacy" not in ask and not np.isfinite(squared).all():
        raise not_finite(client, X)
    return label, squared


@task("kmeans.silhouette", version=2)
def silhouette(client: Client, ask: Any) -> dict[str, Contribution]:
    """Σ (b − a) / max(a, b) with a and b the distances to the nearest two centroids."""
    widths = [np.empty(0)]
    for _, squared in distances(client.data.X, np.asarray(ask["centroids"])):
        a, b = np.sqrt(np.partition(squared, 1, axis=1)[:, :2]).T
        widths.append(np.divide(b - a, b, out=np.zeros_like(b), where=b > 0))
    return {"total": sum_by(None, np.concatenate(widths)), "rows": count_by(None)}


# --- steps over mini-batches ---


def _steps_of_many(group: ClientGroup, ask: Any) -> Stacked:
    """The rows of all clients of the group lie one after the other, without padding."""
    data, start = group.data, np.asarray(ask["centroids"], dtype=np.float64)
    check_shape(group.ids, data.sizes, data.X, start.shape[1])
    m, (k, width) = len(group), start.shape
    batches = list(_batches(data, group.keys, ask["batch_size"]))
    centroids = np.repeat(start[None], m, axis=0)
    counts = np.zeros((m, k), dtype=np.int64)
    inertia = np.zeros(m)
    moved = False
    for _ in range(ask["epochs"]):
        counts[:], inertia[:] = 0, 0.0
        for rows, owners in batches:
            X = data.X[rows]
            label, squared = nearest(X, centroids, owners) if moved else nearest(X, start)
            cells = owners * k + label
            here = np.bincount(cells, minlength=m * k).reshape(m, k)
            sums = sum_by_cell(as_rows(X), cells, m * k).reshape(m, k, width)
            counts += here
            step = ask["rate"] * here / np.maximum(counts, 1)
            means = sums / np.maximum(here, 1)[:, :, None]
            centroids += step[:, :, None] * (means - centroids)
            inertia += np.bincount(owners, weights=squared, minlength=m)
            moved = True
    if not np.isfinite(inertia).all():
        for client, finite in zip(group, np.isfinite(inertia), strict=True):
            if not finite:
                raise not_finite(client, client.data.X)
    sums = counts[:, :, None] * centroids
    return Stacked({"sums": sums, "counts": counts, "inertia": inertia})


@task("kmeans.update", many=_steps_of_many, version=2, like=_steps_like)
def steps(client: Client, ask: Any) -> Update:
    """Mini-batch k-means over the rows of a client, as in Kumar et al. (2020).

    Per batch, with Λᵇ and Γᵇ the numbers and means of the rows nearest to each centroid:

        Λ ← Λ + Λᵇ,      Γ ← Γ + β (Λᵇ / Λ) (Γᵇ − Γ)

    Λ starts from 0 in every epoch. A reply holds Λ and ΛΓ.
    """
    return update(_steps_of_many(client.alone, ask)[0])


def _batches(data: Segments, keys: Bits, size: int | None) -> Iterator[tuple[Any, IntArray]]:
    """The rows of the first batch of every client with their owners, then of the second, …"""
    owners = data.owners
    if size is None:
        yield data.index, owners
        return
    before = np.cumsum(data.sizes) - data.sizes
    within = np.arange(len(owners)) - before[owners]
    order = np.lexsort((random_bits(keys[owners], within), owners))
    rows = data.starts[owners] + within[order]  # `order` keeps owners in place
    batch = within // size
    for number in range(int(batch.max()) + 1):
        chosen = batch == number
        yield rows[chosen], owners[chosen]
