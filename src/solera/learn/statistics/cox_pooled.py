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
from solera.core.rounds import Round
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

    def __init__(self, grid: SurvivalGrid, width: int) -> None:
        (censored, interval), thin = grid.cells[0], bool(grid.thin[0])
        ends = np.append(grid.times(0), np.inf)
        events = np.arange(len(ends) - thin)  # none where others are in the cell of the last
        middles = [_middle(censored == cell, grid.by_atom[0, 0]) for cell in np.unique(censored)]
        until = interval[-1:] if thin else interval[middles]
        last = np.arange(len(ends)) if thin else np.append(np.arange(len(ends)), until)
        self.times = ends[events]
        self.censored = np.column_stack([np.append(grid.times(0, event=0), np.inf), ends[until]])
        self.rows = int(grid.counts.sum())
        self.events = grid.counts[events]
        self._at_risk = last >= events[:, None]
        self._ask = {**grid.ask, "count": len(last), "center": np.zeros(width)}

    def sums(self, round: Round, coef: FloatArray) -> FloatArray:
        """Partial log-likelihood, gradient and the information's triangle; first for coef = 0."""
        times = len(self.times)
        cells = round.ask(sum_hazards, {**self._ask, "coef": coef}).fold(Sum())["sums"]
        if not coef.any():  # from now on about the mean of all rows
            center = cells[:, 1:].sum(axis=0) / self.rows
            cells = cells - cells[:, :1] * np.append(0.0, center)
            self._ask["center"] = center
            self._of_events = cells[:times, 1:].sum(axis=0)
        sums = EfronSums.of(self._at_risk @ cells, cells[:times], self.events)
        weights = sums.at_risk @ self._at_risk
        weights[:times] -= sums.tied
        ask = {**self._ask, "coef": coef, "weights": weights}
        products = symmetric(round.ask(sum_products, ask).fold(Sum())["products"])
        information = (products - sums.products)[np.triu_indices(len(coef))]
        likelihood = self._of_events @ coef - sums.log_hazards
        return np.concatenate([[likelihood], self._of_events - sums.means, information])


def _middle(inside: BoolArray, rows: FloatArray) -> int:
    """The atom of the middle one of the rows that are inside."""
    passed = np.cumsum(np.where(inside, np.maximum(rows, 0.0), 0.0))
    return int(np.searchsorted(passed, passed[-1] / 2))
