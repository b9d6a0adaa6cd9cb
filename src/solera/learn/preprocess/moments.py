"""Means and variances of columns over all clients, from two sums that lose no digits."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import BoolArray, Client, FloatArray
from solera.core.errors import DataError
from solera.core.federation import Federation
from solera.core.schema import Schema
from solera.core.task import task
from solera.learn.rows import dense
from solera.trust.constructors import sum_by


@task("preprocess.moments", many=True, version=2)
def column_moments(client: Client, ask: Any) -> dict[str, Any]:
    """Number and sum of the known values x of every column; with a centre c, of x − c and its
    square.

    Sparse rows stay sparse: of them Σx and Σ(x² − 2cx) are sent, and how many rows these are.
    """
    X = client.data.X
    if hasattr(X, "tocsr"):
        return _of_sparse(X, ask)
    X = np.asarray(dense(X), dtype=np.float64)
    known = np.isfinite(X)
    where = None if known.all() else known
    rows = sum_by(None, known, where=known)
    if ask is None:
        return {"rows": rows, "sum": sum_by(None, X, where=where)}
    apart = X - ask["centre"]
    return {
        "rows": rows,
        "sum": sum_by(None, apart, where=where),
        "squares": sum_by(None, apart**2, where=where),
        "uncentred": sum_by(None, np.zeros((len(X), 1), dtype=bool)),
    }


def _of_sparse(X: Any, ask: Any) -> dict[str, Any]:
    rows = sum_by(None, np.broadcast_to(np.True_, X.shape))
    if ask is None:
        return {"rows": rows, "sum": sum_by(None, X)}
    return {
        "rows": rows,
        "sum": sum_by(None, X),
        "squares": sum_by(None, (X.multiply(X) - X.multiply(2 * ask["centre"])).tocsr()),
        "uncentred": sum_by(None, np.ones((X.shape[0], 1), dtype=bool)),
    }


def pooled_means(federation: Federation, schema: Schema | None = None) -> FloatArray:
    """The mean of the known values of every column that clients tell; 0 where nobody has one.

    With a schema, a column of numbers of which nothing is told is an error that names it.
    """
    total = _ask_sums(federation, None, schema)
    return np.asarray(total["sum"] / np.maximum(total["rows"], 1))


def pooled_moments(federation: Federation, schema: Schema | None = None) -> dict[str, FloatArray]:
    """Number, mean and variance of the known values of every column that clients tell.

    With c the mean that the first ask gives, x̄ = c + Σ(x − c) / n and the variance is
    Σ(x − c)² / n − (x̄ − c)², of which the second term is next to nothing: unlike Σx² / n − x̄² it
    keeps its digits where columns are far from 0. All of it is of the rows of the second ask.
    """
    centre = pooled_means(federation, schema)
    total = _ask_sums(federation, {"centre": centre}, schema)
    n, uncentred = np.maximum(total["rows"], 1), total["uncentred"]
    apart = (total["sum"] - uncentred * centre) / n
    squares = (total["squares"] + uncentred * centre**2) / n
    return {
        "rows": total["rows"],
        "mean": centre + apart,
        "variance": np.maximum(squares - apart**2, 0.0),
    }


def _ask_sums(federation: Federation, ask: Any, schema: Schema | None) -> Any:
    replies = federation.ask(column_moments, ask)
    total = replies.fold(Sum())
    if schema is not None and "rows" in replies.absent:
        refuse_untold(schema, (replies.absent["rows"] > 0) & (total["rows"] == 0))
    return total


def refuse_untold(schema: Schema, untold: BoolArray, *, coded: bool = False) -> None:
    """Stop where nothing is told of columns: what is learned of them would be made up.

    Those of numbers count, or those of categories.
    """
    columns = zip(schema.features, untold, strict=True)
    names = [f.name for f, nothing in columns if nothing and f.is_coded == coded]
    if names:
        raise DataError(
            f"nothing is told of {', '.join(names)}: fewer than min_count persons of all owners "
            "together are behind it",
            hint="leave such columns out (so.FedSelect)",
        )
