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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import BoolArray, Client, FloatArray, IntArray, Rows
from solera.core.errors import DataError, Refusal
from solera.core.rng import generator
from solera.core.schema import UNKNOWN, Schema, class_codes
from solera.learn.heonn.activations import Layout, activation, levels
from solera.learn.heonn.hidden import hidden
from solera.learn.rows import check_shape, not_finite
from solera.trust.cells import Behind
from solera.trust.constructors import gram
from solera.trust.contributions import bound_rows
from solera.trust.grams import Gram
from solera.trust.members import Members


def check(client: Client, rows: Rows, ask: Mapping[str, Any]) -> None:
    """Refuse too few rows, rows of another width, and rows with missing values."""
    check_shape(client.id, len(rows), rows.X, ask["width"])
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


def contributions_of(
    client: Client, rows: Rows, ask: Mapping[str, Any], owned: IntArray | None = None
) -> tuple[Gram, Gram, Gram]:
    """G, m and Σ f′² d̄² of every member."""
    members = members_of(client, rows, ask, owned)
    targets = Targets.of(rows.y, ask)
    longest, largest = bounds_of(ask)
    matrices = targets.matrices(members, (longest, largest["grams"]))
    bound = longest, largest["moments"]
    moments = gram(members, targets.moment, bound=bound)
    first = None if members.rows is None else np.zeros((members.members, 1), dtype=np.int64)
    ones = Members(np.ones((len(rows), 1)), members.rows, first)
    return matrices, moments, gram(ones, targets.square)


def members_of(
    client: Client, rows: Rows, ask: Mapping[str, Any], owned: IntArray | None = None
) -> Members:
    """The columns of the layer, of all rows or of those this client draws for every member.

    ``owned``: the rows of each of several clients, clients × rows; each is a member then.
    """

    def features(X: Any) -> FloatArray:
        Z = hidden(X, ask["hidden"])
        if "privacy" in ask:
            Z = bound_rows(Z, ask["privacy"]["clip"])
        return with_ones(Z)

    if owned is not None:
        columns = np.tile(np.arange(ask["columns"]), (len(owned), 1))
        return Members(rows.X, owned, columns, features=features)
    if ask["patches"] is None:
        return Members(rows.X, features=features, width=ask["columns"])
    drawn = rows_of_members(client, len(rows), ask)
    return Members(rows.X, drawn, with_bias(ask["patches"]), features=features)


def bounds_of(ask: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
    """R, how long a row of columns may be, and the most of its weights and of its targets.

    Without noise nothing needs a bound.
    """
    if "privacy" not in ask:
        return math.inf, {"grams": math.inf, "moments": math.inf}
    weight, moment = levels(ask["activation"], ask["derivative"])
    outputs = ask["outputs"]
    matrices = {"shared": float(weight[0]), "classes": 1.0, "labels": math.sqrt(1 + outputs)}
    return math.sqrt(1 + ask["privacy"]["clip"] ** 2), {
        "grams": matrices[ask["layout"]],
        "moments": math.sqrt(outputs) * float(np.abs(moment).max()),
    }


def has_few(rows: int, ask: Mapping[str, Any]) -> bool:
    """Whether a member has fewer rows than columns: its Gram matrix tells them, but for a turn."""
    patches = ask["patches"]
    if patches is None:
        return rows < int(ask["columns"])
    return bool(round(ask["row_share"] * rows) <= patches.shape[1])


def with_ones(Z: FloatArray) -> FloatArray:
    """A column of ones first: weight 0 is the bias."""
    return np.concatenate([np.ones((len(Z), 1)), Z], axis=1)


def with_bias(patches: IntArray) -> IntArray:
    """The columns of :func:`with_ones` that members see: the bias and their features."""
    return np.concatenate([np.zeros_like(patches[:, :1]), patches + 1], axis=1)


@dataclass(frozen=True, slots=True)
class Targets:
    """f′², f′² d̄ and f′² d̄² of every row and output, and which classes or labels it has.

    ``scale`` is f′² of an absent class, 1 for numbers, of which none is ``present``.
    """

    layout: Layout
    weight: FloatArray
    moment: FloatArray
    square: FloatArray
    scale: float
    present: BoolArray | None

    @classmethod
    def of(cls, y: Any, ask: Mapping[str, Any]) -> Targets:
        f = activation(ask["activation"], ask["derivative"])
        if ask["target"] == "numbers":
            d = f.within(np.asarray(y, dtype=np.float64).reshape(len(y), -1), ask["activation"])
            weight = f.slope(d) ** 2
            moment = weight * f.inverse(d)
            return cls(ask["layout"], weight, moment, moment * f.inverse(d), 1.0, None)
        if ask["target"] == "classes":
            present = class_codes(y, ask["classes"])[:, None] == np.arange(ask["outputs"])
        else:
            present = np.asarray(y, dtype=bool)
        by_level = levels(ask["activation"], ask["derivative"])
        weight, moment = (np.where(present, high, low) for low, high in by_level)
        scale = float(by_level[0][0])
        return cls(ask["layout"], weight, moment, moment**2 / weight, scale, present)

    def matrices(self, members: Members, bound: tuple[float, float]) -> Gram:
        """The Gram matrices of the layout."""
        if self.layout == "shared":
            return gram(members, weights=np.array([[self.scale]]), bound=bound)
        if self.layout == "outputs":
            return gram(members, weights=self.weight, bound=bound)
        assert self.present is not None
        if self.layout == "classes":
            classes = self.present.shape[1]
            return gram(members, cell=self.present.argmax(axis=1), cells=classes, bound=bound)
        everyone = np.ones((len(self.present), 1), dtype=bool)
        marks = np.concatenate([everyone, self.present], axis=1)
        return gram(members, weights=marks, bound=bound)


class Factors(Gram):
    """Gram matrices that travel as R with RᵀR = G where they are read client by client.

    A factor is no sum over rows: a number of it may be what the columns before it do not tell of a
    single row. So in a closed job the matrix leaves in its place.
    """

    in_one_pass = False

    @classmethod
    def of_matrices(cls, matrices: Gram) -> Factors:
        of, bound = matrices, matrices.bound
        return cls(of.X, None, of.weights, of.cells, bound, None, of.part)

    def unjudged(self, behind: Behind) -> FloatArray:
        """R of every member and matrix, no more rows than columns."""
        members: Members = self.X
        each = [self._factors(X, rows) for X, rows in members.tables()]
        if members.rows is not None:
            return np.stack(each)
        total = each[0]
        for more in each[1:]:
            total = triangle(np.concatenate([total, more], axis=1))
        return total[None]

    def _factors(self, X: FloatArray, rows: Any) -> FloatArray:
        rank = min(X.shape)
        return np.stack([_padded(triangle(half), rank) for half in self.halves(X, rows)])


def wants_factor(ask: Mapping[str, Any], members: Members) -> bool:
    """Whether a factor is sent: when asked for, or when it is smaller than half a Gram matrix."""
    rows = members.shape[0] if members.rows is None else members.rows.shape[1]
    wanted = ask["representation"]
    return bool(wanted == "svd" or (wanted == "auto" and 2 * rows < members.shape[1] + 1))


def triangle(A: FloatArray) -> FloatArray:
    """R with RᵀR = AᵀA, no more rows than columns: the R of A = QR, S Vᵀ up to a rotation.

    A may be a stack of such matrices.
    """
    return np.asarray(np.linalg.qr(A, mode="r")) if len(A) else A


def _padded(R: FloatArray, rows: int) -> FloatArray:
    return np.concatenate([R, np.zeros((rows - len(R), R.shape[1]))]) if len(R) < rows else R


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
