"""Counts of clients, folded into one total or kept by client."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import IntArray
from solera.core.replies import Batch, Reply, Stacked, map_leaves


class Totals(Aggregation, abstract=True):
    """The sum of what follows from all clients' counts, of each by itself."""

    additive = True

    @abstractmethod
    def settle(self, counts: dict[str, Any]) -> dict[str, Any]:
        """What adds up of counts of clients, which come first."""

    def lift(self, reply: Reply) -> Any:
        return map_leaves(lambda leaf: leaf[0], self.settle(_stacked(reply)))

    def combine(self, a: Any, b: Any) -> Any:
        return map_leaves(lambda x, y: x + y, a, b)

    def fold(self, batch: Batch) -> Any:
        if isinstance(batch.payloads, Stacked) and len(batch):
            settled = self.settle(dict(batch.payloads.fields))
            return map_leaves(lambda leaf: leaf.sum(axis=0), settled)
        return self.fold_one_by_one(batch)


class Gather(Aggregation):
    """All replies as stacked arrays: ids in order, and a tree whose first axis is the client.

    With ``totals`` the tree is what :meth:`Totals.settle` leaves of them.
    """

    def __init__(self, totals: Totals | None = None) -> None:
        self.totals = totals

    def lift(self, reply: Reply) -> Any:
        return {"clients": np.array([reply.client]), "stacked": self._settled(_stacked(reply))}

    def combine(self, a: Any, b: Any) -> Any:
        joined = map_leaves(lambda x, y: np.concatenate([x, y]), a, b)
        order = np.argsort(joined["clients"], kind="stable")
        return map_leaves(lambda x: x[order], joined)

    def fold(self, batch: Batch) -> Any:
        if isinstance(batch.payloads, Stacked) and len(batch):
            settled = self._settled(dict(batch.payloads.fields))
            return {"clients": batch.clients, "stacked": settled}
        return self.fold_one_by_one(batch)

    def finish(self, partial: Any) -> tuple[IntArray, Any]:
        return partial["clients"], partial["stacked"]

    def _settled(self, counts: dict[str, Any]) -> Any:
        return counts if self.totals is None else self.totals.settle(counts)


def _stacked(reply: Reply) -> dict[str, Any]:
    """The counts of one client as those of several."""
    counts: dict[str, Any] = map_leaves(lambda leaf: np.asarray(leaf)[None], reply.payload)
    return counts
