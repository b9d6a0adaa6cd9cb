"""Means and variances of columns, folded without losing digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import Client, ClientGroup
from solera.core.disclosure.evidence import Sums
from solera.core.release import Cells
from solera.core.replies import Batch, Reply, Stacked
from solera.core.task import group_task
from solera.learn.rows import dense


def _behind(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    """Known values of every column; mean and m2 change by about these when a row is left out."""
    X = dense(client.data.X)
    known = np.isfinite(X)
    apart = np.where(known, X - reply["mean"], 0.0)
    return {
        "rows": Sums(known),
        "mean": Sums(apart, what="means"),
        "m2": Sums(apart**2, what="squares"),
    }


@group_task(
    "preprocess.moments",
    ask=None,
    release=[Cells("rows", "mean", "m2", behind=_behind, whole=True)],
)
def column_moments(group: ClientGroup, ask: Any) -> Stacked:
    """Number, mean and sum of squared deviations of the known values of every column."""
    data = group.data
    if hasattr(data.X, "tocsr"):
        replies = [_of_sparse(data[i].X) for i in range(len(group))]
        return Stacked({key: np.stack([reply[key] for reply in replies]) for key in replies[0]})
    width = int(np.prod(data.X.shape[1:]))
    of_all = {key: np.empty((len(group), width)) for key in ("rows", "mean", "m2")}
    for at, X in data.by_size():
        for key, values in _of(X.reshape(*X.shape[:2], width)).items():
            of_all[key][at] = values
    return Stacked(of_all)


def _of_sparse(X: Any) -> dict[str, Any]:
    mean = np.asarray(X.mean(axis=0)).ravel()
    squares = np.asarray(X.multiply(X).sum(axis=0)).ravel()
    rows = np.full(X.shape[1], X.shape[0], dtype=np.float64)
    return {"rows": rows, "mean": mean, "m2": squares - rows * mean**2}


def _of(X: Any) -> dict[str, Any]:
    """Of clients × rows × columns."""
    X = X.astype(np.float64, copy=False)
    known = np.isfinite(X)
    rows = known.sum(axis=1).astype(np.float64)
    values = np.where(known, X, 0.0)
    mean = values.sum(axis=1) / np.maximum(rows, 1)
    m2 = (np.where(known, X - mean[:, None], 0.0) ** 2).sum(axis=1)
    return {"rows": rows, "mean": mean, "m2": m2}


class Moments(Aggregation):
    """Number, mean and M2 = Σ(x − x̄)² of the union of two sets of values.

    With δ = x̄_b − x̄_a and n = n_a + n_b: x̄ = x̄_a + δ n_b/n, M2 = M2_a + M2_b + δ² n_a n_b / n
    (Chan, Golub & LeVeque 1983), which cancels nothing, unlike Σx² − (Σx)²/n.
    """

    def lift(self, reply: Reply) -> Any:
        return {key: np.asarray(reply.payload[key], dtype=float) for key in ("rows", "mean", "m2")}

    def combine(self, a: Any, b: Any) -> Any:
        n = a["rows"] + b["rows"]
        share = np.divide(b["rows"], n, out=np.zeros_like(n), where=n > 0)
        delta = b["mean"] - a["mean"]
        return {
            "rows": n,
            "mean": a["mean"] + delta * share,
            "m2": a["m2"] + b["m2"] + delta**2 * a["rows"] * share,
        }

    def fold_blocks(self, batch: Batch, bounds: Sequence[int]) -> list[Any]:
        """Client after client of all blocks side by side."""
        replies = batch.payloads
        sizes = np.diff(bounds)
        if not isinstance(replies, Stacked) or not sizes.all():
            return super().fold_blocks(batch, bounds)
        entries = {key: np.asarray(replies.fields[key], float) for key in ("rows", "mean", "m2")}
        first = np.asarray(bounds[:-1])
        total = {key: values[first] for key, values in entries.items()}
        for place in range(1, int(sizes.max())):
            there = np.flatnonzero(sizes > place)
            here = {key: values[there] for key, values in total.items()}
            more = {key: values[first[there] + place] for key, values in entries.items()}
            for key, values in self.combine(here, more).items():
                total[key][there] = values
        return [{key: values[i] for key, values in total.items()} for i in range(len(first))]

    additive = True

    def terms(self, partial: Any) -> Any:
        """n, Σx and Σx²: these add up, and lose the digits that the mean has of the deviation."""
        n, mean = partial["rows"], partial["mean"]
        return {"rows": n, "sum": n * mean, "squares": partial["m2"] + n * mean**2}

    def from_terms(self, total: Any) -> Any:
        n = total["rows"]
        mean = total["sum"] / np.maximum(n, 1)
        return {"rows": n, "mean": mean, "m2": np.maximum(total["squares"] - n * mean**2, 0.0)}

    def finish(self, partial: Any) -> dict[str, Any]:
        n = np.maximum(partial["rows"], 1)
        return {"rows": partial["rows"], "mean": partial["mean"], "variance": partial["m2"] / n}
