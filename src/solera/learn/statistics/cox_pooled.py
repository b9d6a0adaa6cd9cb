"""Cox's model of all rows together, whose times are put on the grid of a closed job.

Cells are rows that ended in the same interval, by an event or censored; the events of one interval
are tied. Sums of r = exp(xᵀβ) and r x over cells, cumulated from the last interval, are those over
risk sets. With these known, every row's weight in Σ S₂/S₀ is that of its cell, and the sum of
weighted x xᵀ over all rows is one Gram matrix: no cell's own is told.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import BoolArray, Client, FloatArray, IntArray
from solera.core.errors import DataError
from solera.core.task import task
from solera.learn.rows import dense
from solera.learn.statistics.risk_sets import EfronSums
from solera.learn.statistics.survival_grid import SurvivalGrid, ended_cells
from solera.trust.constructors import gram, sum_by
from solera.trust.members import symmetric


@task("cox.hazards")
def sum_hazards(client: Client, ask: Any) -> dict[str, Any]:
    """Σ r and Σ r x of every cell."""
    X, r, cell = _rows(client, ask)
    row = np.column_stack([r, r[:, None] * X])
    return {"sums": sum_by(cell, row, ask["count"])}


@task("cox.products")
def sum_products(client: Client, ask: Any) -> dict[str, Any]:
    """Σ w r x xᵀ, where w is the weight of the row's cell."""
    X, r, cell = _rows(client, ask)
    return {"products": gram(X, weights=ask["weights"][cell] * r)}


def _rows(client: Client, ask: Any) -> tuple[FloatArray, FloatArray, IntArray]:
    X = dense(client.data.part("train").X).astype(np.float64) - ask["center"]
    with np.errstate(over="ignore"):  # what is not finite is reported
        return X, np.exp(X @ ask["coef"]), ended_cells(client, ask)


class PooledRiskSets:
    """What :func:`.risk_sets.partial_likelihood` says of one client, of the rows of all owners.

    Events of an interval count at its end, ``times``; those of the last, which is open, count at
    infinity. ``censored``: of every cell of censored rows up to when it is, and at which of these
    times its rows count, the middle one's.
    """

    def __init__(self, grid: SurvivalGrid) -> None:
        (censored, interval), thin = grid.cells[0], bool(grid.thin[0])
        ends = np.append(grid.times(0), np.inf)
        events = np.arange(len(ends) - thin)  # none where others are in the cell of the last
        middles = [_middle(censored == cell, grid.by_atom[0, 0]) for cell in np.unique(censored)]
        until = interval[-1:] if thin else interval[middles]
        self.times = ends[events]
        self.censored = np.column_stack([np.append(grid.times(0, event=0), np.inf), ends[until]])
        self.counts = grid.counts
        self.ask = {**grid.ask, "count": len(grid.counts)}
        self._events = grid.counts[events]
        last = np.arange(len(ends)) if thin else np.append(np.arange(len(ends)), until)
        self._at_risk = last >= events[:, None]

    def sums(self, round: Any, coef: FloatArray) -> FloatArray:
        """Partial log-likelihood, gradient and the information's triangle."""
        times, width = len(self._events), len(coef)
        if "center" not in self.ask:
            self._look(round, width)
        ask = {**self.ask, "coef": coef}
        cells = self._told(round.ask(sum_hazards, ask))
        sums = EfronSums.of(self._at_risk @ cells, cells[:times], self._events)
        weights = sums.at_risk @ self._at_risk
        weights[:times] -= sums.tied
        total = round.ask(sum_products, {**ask, "weights": weights}).fold(Sum())
        information = symmetric(total["products"]) - sums.products
        likelihood = self._of_events @ coef - sums.log_hazards
        score = self._of_events - sums.means
        return np.concatenate([[likelihood], score, information[np.triu_indices(width)]])

    def _look(self, round: Any, width: int) -> None:
        """Where the middle of all rows is, and Σ x over events about it."""
        zero = np.zeros(width)
        cells = self._told(round.ask(sum_hazards, {**self.ask, "coef": zero, "center": zero}))
        center = cells[:, 1:].sum(axis=0) / self.counts.sum()
        events = cells[: len(self._events), 1:].sum(axis=0)
        self._of_events = events - self._events.sum() * center
        self.ask["center"] = center

    def _told(self, replies: Any) -> FloatArray:
        cells: FloatArray = replies.fold(Sum())["sums"]
        if np.any(replies.absent.get("sums", 0)):
            raise DataError("too few persons are behind a sum of Cox's model", hint="fewer times")
        return cells


def _middle(inside: BoolArray, rows: FloatArray) -> int:
    """The atom of the middle one of the rows that are inside."""
    passed = np.cumsum(np.where(inside, np.maximum(rows, 0.0), 0.0))
    return int(np.searchsorted(passed, passed[-1] / 2))
