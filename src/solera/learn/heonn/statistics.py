"""The client's side: what a client tells about its rows.

For every output c the layer minimises ‖F_c(d̄_c − X w_c)‖² + λ‖w_c‖² with d̄ = f⁻¹(d) and
F = diag f′(d̄) (Fontenla-Romero et al. 2021; the thesis, Eq. 3.16–3.18), so all that is needed of a
client are the Gram matrices G_c = Xᵀ F_c² X and the moments m_c = Xᵀ F_c² d̄_c. Both are sums over
rows, hence over clients.

How many different G_c there are depends on the target (``layout``):

- ``shared``: f′ is the same for every row and output, one G for all. So it is for the linear
  activation, and for classes with the logistic, where f′(0.05) = f′(0.95).
- ``classes``: f′² takes two values, u for the rows of class c and v for the others. Then
  G_c = v Σ_k H_k + (u − v) H_c with H_k the Gram matrix of the rows of class k alone.
- ``labels``: the same, but rows may have several labels: H_all first, then one H_c per label.
- ``outputs``: f′ differs from row to row, one weighted Gram matrix per output.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from solera.core.clients import BoolArray, Client, FloatArray, IntArray, Rows
from solera.core.errors import DataError, Refusal
from solera.core.rng import generator
from solera.core.schema import UNKNOWN, Schema, class_codes
from solera.learn.heonn.activations import activation, levels
from solera.learn.heonn.hidden import hidden
from solera.learn.heonn.plan import check_plan
from solera.learn.rows import check_shape, not_finite

_CHUNK = 1 << 24
"""Numbers held at once while rows are turned into features."""
_PAYS = 3 * 10**8
_PARTS = 8


def check(client: Client, rows: Rows, ask: Mapping[str, Any]) -> None:
    """Refuse too few rows, rows of another width, and rows with missing values."""
    check_shape(client.id, len(rows), rows.X, ask["width"])
    check_plan(ask, client.data.schema)
    least = ask["min_rows"]
    if len(rows) < least:
        raise Refusal(f"client {client.id} has {len(rows)} rows, at least {least} are needed")
    values = rows.X.data if hasattr(rows.X, "indptr") else rows.X
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise not_finite(client, rows.X)
    check_labels(client.id, rows, client.data.schema)


def check_labels(client: int, rows: Rows, schema: Schema) -> None:
    """Refuse labels that are unknown: they cannot be left out of a Gram matrix of all rows."""
    if schema.target == "labels" and (unknown := np.argwhere(rows.y == UNKNOWN)).size:
        label = schema.label_names[unknown[0, 1]]
        raise DataError(
            f"client {client} does not know label {label!r} of all rows, which FedHEONN needs",
            hint="so.FedLinear(), so.FedAvg(…) and so.MLFedAvg(…) leave unknown labels out",
        )


def summarise(client: Client, rows: Rows, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Statistics of all estimators of this client: T × …"""
    targets = Targets.of(rows.y, ask)
    patches = ask["patches"]
    if patches is None:
        summed = _over_chunks(rows.X, targets, ask)
        shape = {key: value[None] for key, value in summed.items()}
        few = len(rows) < ask["columns"]
    else:
        Z = with_ones(hidden(rows.X, ask["hidden"]))
        shape = _over_patches(client, Z, targets, ask)
        few = round(ask["row_share"] * len(rows)) <= patches.shape[1]
    moments, squares = shape.pop("moments"), shape.pop("squares")
    return {
        "shape": shape,
        "moments": moments,
        "squares": squares,
        "rows": len(rows),
        "few": int(few),
    }


def with_ones(Z: FloatArray) -> FloatArray:
    """A column of ones first: weight 0 is the bias."""
    return np.concatenate([np.ones((len(Z), 1)), Z], axis=1)


def with_bias(patches: IntArray) -> IntArray:
    """The columns of :func:`with_ones` that members see: the bias and their features."""
    return np.concatenate([np.zeros_like(patches[:, :1]), patches + 1], axis=1)


@dataclass(frozen=True)
class Targets:
    """f′², f′² d̄ and f′² d̄² of every row and output, and which classes or labels it has.

    ``scale`` is f′² of an absent class, 1 for numbers.
    """

    layout: str
    weight: FloatArray
    moment: FloatArray
    square: FloatArray
    present: BoolArray
    scale: float

    @classmethod
    def of(cls, y: Any, ask: Mapping[str, Any]) -> Targets:
        f = activation(ask["activation"], ask["derivative"])
        if ask["target"] == "numbers":
            d = f.within(np.asarray(y, dtype=np.float64).reshape(len(y), -1), ask["activation"])
            weight = f.slope(d) ** 2
            moment = weight * f.inverse(d)
            none = np.empty((len(d), 0), dtype=bool)
            return cls(ask["layout"], weight, moment, moment * f.inverse(d), none, 1.0)
        if ask["target"] == "classes":
            present = class_codes(y, ask["classes"])[:, None] == np.arange(ask["outputs"])
        else:
            present = np.asarray(y, dtype=bool)
        by_level = levels(f)
        weight, moment = (np.where(present, high, low) for low, high in by_level)
        scale = float(by_level[0][0])
        return cls(ask["layout"], weight, moment, moment**2 / weight, present, scale)

    def take(self, chosen: IntArray | slice) -> Targets:
        """Those of some rows."""
        arrays = {name: getattr(self, name)[chosen] for name in _BY_ROW}
        return replace(self, **arrays)

    def views(self, Z: FloatArray) -> list[FloatArray]:
        """Matrices A_k with A_kᵀ A_k the Gram matrices of the layout, in order."""
        if self.layout == "shared":
            return [Z * np.sqrt(self.scale)]
        if self.layout == "classes":
            return [Z[rows] for rows in self.present.T]
        if self.layout == "labels":
            return [Z, *(Z[rows] for rows in self.present.T)]
        return [Z * np.sqrt(weight)[:, None] for weight in self.weight.T]


_BY_ROW = ("weight", "moment", "square", "present")


def _over_chunks(X: Any, targets: Targets, ask: Mapping[str, Any]) -> dict[str, FloatArray]:
    """Statistics of one estimator over all features, a chunk of rows at a time."""
    rows, columns = X.shape[0], ask["columns"]
    factor = wants_factor(ask["representation"], rows, columns)
    step = max(columns, _CHUNK // columns)
    total: dict[str, FloatArray] | None = None
    for start in range(0, rows, step):
        chunk = slice(start, min(start + step, rows))
        Z = with_ones(hidden(X[chunk], ask["hidden"]))
        part = _moments_and_shape(Z, targets if rows <= step else targets.take(chunk), factor)
        total = part if total is None else _plus(total, part)
    assert total is not None
    return total


def _plus(a: dict[str, FloatArray], b: dict[str, FloatArray]) -> dict[str, FloatArray]:
    sums = {key: a[key] + b[key] for key in a if key != "factors"}
    if "factors" in a:
        sums["factors"] = triangle(np.concatenate([a["factors"], b["factors"]], axis=1))
    return sums


def _moments_and_shape(Z: FloatArray, targets: Targets, factor: bool) -> dict[str, FloatArray]:
    views = targets.views(Z)
    sums = {"moments": Z.T @ targets.moment, "squares": targets.square.sum(axis=0)}
    if factor:
        rank = min(Z.shape)
        sums["factors"] = np.stack([_padded(triangle(A), rank) for A in views])
    else:
        sums["grams"] = np.stack([pack(A.T @ A) for A in views])
    return sums


def moments_and_grams(Z: FloatArray, targets: Targets) -> dict[str, FloatArray]:
    """Moments, squares and Gram matrices of one estimator."""
    return _moments_and_shape(Z, targets, factor=False)


def wants_factor(representation: str, rows: int, columns: int) -> bool:
    """Whether a factor is sent: when asked for, or when it is smaller than half a Gram matrix."""
    return representation == "svd" or (representation == "auto" and 2 * rows < columns + 1)


def triangle(A: FloatArray) -> FloatArray:
    """R with RᵀR = AᵀA, no more rows than columns: the R of A = QR, S Vᵀ up to a rotation.

    A may be a stack of such matrices.
    """
    return np.asarray(np.linalg.qr(A, mode="r")) if len(A) else A


def _padded(R: FloatArray, rows: int) -> FloatArray:
    return np.concatenate([R, np.zeros((rows - len(R), R.shape[1]))]) if len(R) < rows else R


@lru_cache(maxsize=4)
def _upper(columns: int) -> tuple[IntArray, IntArray]:
    return np.triu_indices(columns)


def pack(G: FloatArray) -> FloatArray:
    """The upper triangle of symmetric matrices as vectors."""
    i, j = _upper(G.shape[-1])
    return G[..., i, j]


def unpack(packed: FloatArray, columns: int) -> FloatArray:
    """The symmetric matrices of :func:`pack`."""
    i, j = _upper(columns)
    G = np.empty((*packed.shape[:-1], columns, columns))
    G[..., i, j] = packed
    G[..., j, i] = packed
    return G


def draw_rows(
    rng: np.random.Generator, members: int, rows: int, count: int, replacement: bool
) -> IntArray:
    """The rows of every member: members × count."""
    if replacement:
        return rng.integers(rows, size=(members, count))
    return np.argsort(rng.random((members, rows)), axis=1)[:, :count]


def rows_of_members(client: Client, rows: int, ask: Mapping[str, Any]) -> IntArray:
    """The rows this client draws for every member, the same each time."""
    d = client.draws
    rng = generator(d.seed, d.purpose, d.round, client.id)
    count = max(1, round(ask["row_share"] * rows))
    return draw_rows(rng, len(ask["patches"]), rows, count, ask["row_replacement"])


def _over_patches(
    client: Client, Z: FloatArray, targets: Targets, ask: Mapping[str, Any]
) -> dict[str, FloatArray]:
    """Statistics of T estimators, each on rows this client draws and features all clients share."""
    features = with_bias(ask["patches"])
    drawn = rows_of_members(client, len(Z), ask)
    count, columns = drawn.shape[1], features.shape[1]
    factor = wants_factor(ask["representation"], count, columns)

    def members(start: int) -> dict[str, FloatArray]:
        r, c = drawn[start : start + step], features[start : start + step]
        if targets.layout != "shared" or factor:
            each = [
                _moments_and_shape(Z[np.ix_(rows, chosen)], targets.take(rows), factor)
                for rows, chosen in zip(r, c, strict=True)
            ]
            return {key: np.stack([sums[key] for sums in each]) for key in each[0]}
        A = Z[r[:, :, None], c[:, None, :]]
        transposed = A.transpose(0, 2, 1)
        return {
            "grams": pack(transposed @ A)[:, None] * targets.scale,
            "moments": transposed @ targets.moment[r],
            "squares": targets.square[r].sum(axis=1),
        }

    parallel = threads_pay(len(features) * count * columns**2)
    step = max(1, _CHUNK // (count * columns))
    if parallel:
        step = min(step, -(-len(features) // _PARTS))
    starts = range(0, len(features), step)
    if parallel:
        with threadpool_limits(1), ThreadPoolExecutor() as pool:
            parts = list(pool.map(members, starts))
    else:
        parts = [members(start) for start in starts]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def threads_pay(work: int) -> bool:
    """Whether so many multiplications are worth the threads.

    Measured on two cores: threads cost 4 ms to set up and gain from 3e8 multiplications on (2.6×
    at 8e8). The answer depends on the work alone, never on the clock, and every member is computed
    by one thread, so that results are the same bits each time. Worker processes have company and
    stay on one core.
    """
    alone = multiprocessing.parent_process() is None
    return work >= _PAYS and alone and (os.cpu_count() or 1) > 1
