"""Trees that clients grow on their own rows with scikit-learn, and how their replies are folded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core.aggregation import Collect
from solera.core.clients import Client, FloatArray, IntArray, Rows
from solera.core.errors import DataError, PayloadError
from solera.core.replies import Reply
from solera.core.schema import class_codes
from solera.learn.rows import check_shape, dense
from solera.learn.trees.tree import Tree


def checked_rows(client: Client, rows: Rows, width: int) -> FloatArray:
    """The columns of rows to train on; see :func:`with_missing`."""
    check_shape(client.id, len(rows), rows.X, width)
    return with_missing(rows.X)


def rows_and_codes(
    client: Client, rows: Rows, ask: Mapping[str, Any]
) -> tuple[FloatArray, IntArray]:
    """The columns of rows to train on, and the codes of their classes."""
    return checked_rows(client, rows, ask["width"]), class_codes(rows.y, ask["classes"])


def columns_and_codes(rows: Rows, ask: Mapping[str, Any]) -> tuple[FloatArray, IntArray]:
    """The same of rows that need not be one client's; of none there is nothing to count."""
    X = with_missing(rows.X)
    if X.shape[1] != ask["width"]:
        raise DataError(f"the client has {X.shape[1]} columns, the model {ask['width']}")
    return X, class_codes(rows.y, ask["classes"])


def with_missing(X: Any) -> FloatArray:
    """Rows as float64 in which NaN alone stands for a missing value."""
    X = np.asarray(dense(X), dtype=np.float64)
    finite = np.isfinite(X)
    return X if finite.all() else np.where(finite, X, np.nan)


class CollectTrees(Collect):
    """Every client's trees; a reply whose arrays make no tree counts as a failure of that client.

    A reply holds one ``tree`` or several ``trees``.
    """

    def __init__(self, width: int, outputs: int) -> None:
        self.width = width
        self.outputs = outputs

    def lift(self, reply: Reply) -> Any:
        if not _payloads(reply.payload):
            raise PayloadError("a forest without trees")
        for tree in _payloads(reply.payload):
            Tree.from_payload(tree, self.width, self.outputs)
        return super().lift(reply)

    def fold(self, batch: Any) -> Any:
        for reply in batch:
            self.lift(reply)
        return super().fold(batch)

    def finish(self, partial: Any) -> dict[int, list[Tree]]:
        return {client: [Tree(**tree) for tree in _payloads(reply)] for client, reply in partial}


def _payloads(reply: Any) -> list[Any]:
    return list(reply["trees"]) if "trees" in reply else [reply["tree"]]
