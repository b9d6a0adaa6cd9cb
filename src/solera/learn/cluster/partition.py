"""Groups of rows from which k-means starts: a k-d partition, told by sums alone.

All rows are halved by a column, the halves again, as long as both hold enough of them. In a closed
job a half behind which too few persons stand is not told, and its group stays whole. Groups are
nested, so whatever is worked out from all these sums treats the persons of a group alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Client, FloatArray
from solera.core.federation import Federation
from solera.core.task import task
from solera.learn.closed import is_closed, persons_in
from solera.learn.preprocess.moments import pooled_moments
from solera.learn.rows import dense
from solera.trust.board.judge import SHARE
from solera.trust.cells import as_cells
from solera.trust.constructors import gram, sum_by
from solera.trust.members import symmetric
from solera.trust.merging import Neighbours

_FEWEST = 10
"""Rows of a group."""
_GROUPS = 32
"""Groups of a cluster."""
_COLUMNS = 2
"""By how many columns it is tried to halve a group."""

Edges = Sequence[FloatArray | None]


def partition(
    federation: Federation, k: int, edges: Edges | None = None
) -> tuple[FloatArray, FloatArray]:
    """The rows and the means of up to 32 groups for each of k clusters.

    A group is halved at the edge of a column that is next to its mean, or at that where the column
    has none. It is the column j that explains most of its variance, Σ_i r_ij² v_i with the
    correlations r of all rows and the variances v of the group (of which alone Su & Dy 2007 take
    the largest). The halves of node i of the tree are child_i and child_i + 1.
    """
    moments = pooled_moments(federation)
    centre, rows = moments["mean"], float(moments["rows"].max())
    width = len(centre)
    edges = edges or [None] * width
    squared = _squared_correlations(federation, moments)
    fixed = [one is not None and not len(one) for one in edges]
    totals = np.concatenate([[rows], np.zeros(width), rows * moments["variance"]])[None]
    tried = np.zeros((1, width), dtype=bool)
    child, column, edge = np.array([-1]), np.array([0]), np.array([0.0])
    for level in range(_GROUPS * k):
        means, squares = np.split(totals[:, 1:] / totals[:, :1], 2, axis=1)
        variance = np.maximum(squares - means**2, 0)
        explained = np.einsum("gi,ij->gj", variance, squared)
        explained[tried | fixed | (variance <= 1e-12 * moments["variance"])] = 0
        open_ = (child < 0) & (totals[:, 0] >= 2 * _FEWEST) & (tried.sum(axis=1) < _COLUMNS)
        chosen = np.flatnonzero(open_ & explained.any(axis=1))
        if not len(chosen) or (child < 0).sum() >= _GROUPS * k:
            break
        column, edge, place = column.copy(), edge.copy(), np.full(len(child), -1)
        column[chosen] = explained[chosen].argmax(axis=1)
        edge[chosen] = [_nearest(edges[column[i]], means[i, column[i]]) for i in chosen.tolist()]
        place[chosen] = np.arange(len(chosen))
        tried[chosen, column[chosen]] = True
        order = {"child": child, "column": column, "edge": edge, "place": place, "centre": centre}
        replies = federation.ask(halves, order, round=level)
        sums = replies.fold(Sum())["halves"]
        absent = np.asarray(replies.absent.get("halves", np.zeros(sums.shape)))
        whole = ~absent.any(axis=(1, 2)) & (sums[:, :, 0] >= _FEWEST).all(axis=1)
        grown = sums[whole].reshape(-1, totals.shape[1])
        child, column, edge, tried = (
            np.concatenate([nodes, np.full((len(grown), *nodes.shape[1:]), start, nodes.dtype)])
            for nodes, start in ((child, -1), (column, 0), (edge, 0), (tried, False))
        )
        child[chosen[whole]] = len(totals) + np.arange(0, len(grown), 2)
        totals = np.concatenate([totals, grown])
    leaves = totals[child < 0]
    return leaves[:, 0], centre + leaves[:, 1 : 1 + width] / leaves[:, :1]


@task("kmeans.halves", many=True)
def halves(client: Client, ask: Any) -> dict[str, Any]:
    """Rows, and Σ (x − c) and Σ (x − c)² of every column, of both halves of some groups."""
    X = dense(client.data.X)
    node, rows = np.zeros(len(X), dtype=np.int64), np.arange(len(X))
    while True:
        upper = X[rows, ask["column"][node]] >= ask["edge"][node]
        inside = ask["child"][node] >= 0
        if not inside.any():
            break
        node = np.where(inside, ask["child"][node] + upper, node)
    groups = int(ask["place"].max()) + 1
    cells = as_cells((ask["place"][node], 1 * upper), (groups, 2))
    apart = X - ask["centre"]
    values = np.concatenate([np.ones((len(X), 1)), apart, apart**2], axis=1)
    return {"halves": sum_by(Neighbours(cells), values)}


def _squared_correlations(federation: Federation, moments: dict[str, Any]) -> FloatArray:
    """r_ij² over all rows; those of a column with itself where there are too few persons."""
    width = len(moments["mean"])
    if is_closed(federation) and SHARE * width > persons_in(federation)["train"]:
        return np.eye(width)
    spread = np.sqrt(moments["variance"])
    order = {"centre": moments["mean"], "scale": np.where(spread > 0, spread, 1.0)}
    total = symmetric(federation.ask(products, order).fold(Sum())["products"])
    return np.asarray((total / moments["rows"].max()) ** 2)


@task("kmeans.products")
def products(client: Client, ask: Any) -> dict[str, Any]:
    """Σ z zᵀ of the rows z, in units of the deviation from the mean."""
    return {"products": gram((dense(client.data.X) - ask["centre"]) / ask["scale"])}


def _nearest(edges: FloatArray | None, value: float) -> float:
    return value if edges is None else float(edges[np.abs(edges - value).argmin()])
