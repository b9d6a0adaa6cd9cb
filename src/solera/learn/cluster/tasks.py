"""The client's side of federated k-means: move centroids, count, judge.

A reply holds sums and numbers of rows per cluster. A cluster in which a client has a single row
tells that row, and so do two replies whose clusters differ in one; behind a gate a cluster of few
rows, or one that differs in few from an earlier one, leaves as if its rows were at the centroid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np
from msgspec import Meta

from solera.core.clients import Client, ClientGroup, FloatArray, IntArray, Segments
from solera.core.constraints import Count, PositiveFraction
from solera.core.disclosure.evidence import Sums, cells, everyone
from solera.core.disclosure.noised import Noised
from solera.core.disclosure.steps import OneStep
from solera.core.errors import Refusal
from solera.core.release import Cells
from solera.core.replies import Stacked
from solera.core.rng import Bits, random_bits
from solera.core.task import group_task, task
from solera.learn.cluster.assignment import cell_sums, distances, nearest
from solera.learn.rows import check_shape, dense, not_finite
from solera.privacy.dp.sums import SumNoise, add_noise, clipped_rows, spent_by_sums
from solera.trust.declared import Shape


def _like(ask: Any) -> dict[str, Any]:
    k = len(ask["centroids"])
    counts = np.zeros(k, dtype=np.int64)
    return {"sums": ask["centroids"], "counts": counts, "inertia": 0.0}


class Centroids(TypedDict):
    """What ``kmeans.cost`` takes."""

    centroids: Annotated[FloatArray, Shape("k", "columns", longest=10_000)]


class Update(Centroids):
    """What ``kmeans.update`` takes."""

    epochs: Annotated[int, Meta(ge=1, le=1000)]
    batch_size: Count | None
    rate: PositiveFraction
    privacy: NotRequired[SumNoise]


def _steps(client: Client, ask: Any) -> int:
    """How often the centroids move; a part of a step counts as two.

    It mixes the sum of a cluster with its number of rows, and what is subtracted is neither.
    """
    rows = len(client.data)
    steps = int(ask["epochs"] * -(-rows // (ask["batch_size"] or rows)))
    return steps if ask["rate"] == 1 else 2 * steps


def _behind_update(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    """The rows of each cluster, their values, and their d²; after one step of β = 1 ΛΓ is Σ x."""
    label, squared = nearest(client.data.X, ask["centroids"])
    own = cells(label, len(ask["centroids"]))
    sums = Sums(own.right, dense(client.data.X))
    return {"counts": own, "sums": sums, "inertia": _inertia(squared)}


def _inertia(squared: FloatArray) -> Sums:
    return Sums(squared[:, None], what="distances")


def _nothing(entry: str) -> Callable[[Any, Any], dict[str, Any]]:
    """A total that may not leave is 0; an earlier one would be that of other centroids."""
    return lambda ask, reply: {entry: 0.0}


def _stay(ask: Any, reply: Any) -> dict[str, Any]:
    """Rows that may not tell where they are stand for rows at their centroid: it does not move."""
    return {"sums": reply["counts"][:, None] * ask["centroids"]}


@group_task(
    "kmeans.update",
    like=_like,
    ask=Update,
    release=[
        Noised(
            OneStep("counts", "sums", steps=_steps, behind=_behind_update, neutral=_stay),
            spends=spent_by_sums,
        ),
        OneStep("inertia", steps=_steps, behind=_behind_update, neutral=_nothing("inertia")),
    ],
)
def update(group: ClientGroup, ask: Any) -> Stacked:
    """Mini-batch k-means over the rows of each client, as in Kumar et al. (2020).

    Per batch, with Λᵇ and Γᵇ the numbers and means of the rows nearest to each centroid:

        Λ ← Λ + Λᵇ,      Γ ← Γ + β (Λᵇ / Λ) (Γᵇ − Γ)

    Λ starts from 0 in every epoch. A reply holds Λ and ΛΓ. The rows of all clients of the group lie
    one after the other, without padding. With noise there is one step over all rows, which are
    clipped, and no inertia.
    """
    if "privacy" in ask:
        return _noised_sums(group, ask)
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
            sums = cell_sums(X, cells, m * k).reshape(m, k, width)
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


def _noised_sums(group: ClientGroup, ask: Any) -> Stacked:
    """Numbers and sums of the rows nearest to each centroid: a row changes one of either.

    Its values are at most ``clip`` long.
    """
    start, privacy = np.asarray(ask["centroids"], dtype=np.float64), ask["privacy"]
    if ask["epochs"] != 1 or ask["batch_size"] is not None or privacy["mechanism"] == "laplace":
        raise Refusal("noise is for one step over all rows, and Gaussian")
    check_shape(group.ids, group.data.sizes, group.data.X, start.shape[1])
    counts, sums = [], []
    for client in group:
        X = clipped_rows(dense(client.data.X).astype(np.float64), privacy)
        label, squared = nearest(X, start)
        if not np.isfinite(squared).all():
            raise not_finite(client, X)
        exact = {
            "counts": np.bincount(label, minlength=len(start)),
            "sums": cell_sums(X, label, len(start)),
        }
        noised = add_noise(client, exact, {"counts": 1.0, "sums": privacy["clip"]}, privacy)
        counts.append(np.rint(noised["counts"]).astype(np.int64))
        sums.append(noised["sums"])
    inertia = np.zeros(len(group))
    return Stacked({"sums": np.stack(sums), "counts": np.stack(counts), "inertia": inertia})


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


def _behind_cost(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    label, squared = nearest(client.data.X, ask["centroids"])
    return {"counts": cells(label, len(ask["centroids"])), "inertia": _inertia(squared)}


@group_task(
    "kmeans.cost",
    ask=Centroids,
    release=[
        Cells("counts", behind=_behind_cost),
        Cells("inertia", behind=_behind_cost, neutral=_nothing("inertia")),
    ],
)
def cost(group: ClientGroup, ask: Any) -> Stacked:
    """Σ d² of each client's rows to their nearest centroids, and the rows of each cluster."""
    data, centroids = group.data, np.asarray(ask["centroids"])
    m, k, owners = len(group), len(centroids), group.data.owners
    label, squared = nearest(data.X[data.index], centroids)
    counts = np.bincount(owners * k + label, minlength=m * k).reshape(m, k)
    inertia = np.bincount(owners, weights=squared, minlength=m)
    return Stacked({"inertia": inertia, "counts": counts})


def _widths(client: Client, ask: Any) -> Iterator[FloatArray]:
    """(b − a) / max(a, b) of every row, a chunk of rows at a time."""
    for _, squared in distances(client.data.X, np.asarray(ask["centroids"])):
        a, b = np.sqrt(np.partition(squared, 1, axis=1)[:, :2]).T
        yield np.divide(b - a, b, out=np.zeros_like(b), where=b > 0)


def _behind_silhouette(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    widths = np.concatenate(list(_widths(client, ask)))[:, None]
    total = Sums(widths, what="silhouettes", beyond=True)
    return {"total": total, "rows": everyone(len(widths))}


@task(
    "kmeans.silhouette",
    ask=Centroids,
    release=[
        Cells("total", behind=_behind_silhouette, neutral=_nothing("total")),
        Cells("rows", behind=_behind_silhouette),
    ],
)
def silhouette(client: Client, ask: Any) -> dict[str, Any]:
    """Σ (b − a) / max(a, b) with a and b the distances to the nearest two centroids."""
    total = sum(float(part.sum()) for part in _widths(client, ask))
    return {"total": total, "rows": client.data.X.shape[0]}
