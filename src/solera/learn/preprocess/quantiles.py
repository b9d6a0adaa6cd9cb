"""Quantiles of columns from counts alone.

Clients count how many values lie between given edges; the counts are summed, the edges around each
quantile are drawn closer, and after a few rounds its place is known to a millionth of its size. The
sums can be masked or noised like any others. In a closed job quantiles lie between edges of atoms
(:mod:`.atom_counts`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solera.core.aggregation import Sum
from solera.core.clients import BoolArray, Client, FloatArray, IntArray
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.task import task
from solera.learn.rows import dense
from solera.trust.cells import intervals
from solera.trust.constructors import count_by
from solera.trust.contributions import Counts
from solera.trust.noise import SumNoise

_POWERS = 2.0 ** np.arange(-40, 64)
_FIRST = np.concatenate([[-np.inf], -_POWERS[::-1], [0.0], _POWERS, [np.inf]])
_CUTS = 16
ROUNDS = 5


@task("preprocess.count", many=True, version=2)
def count(client: Client, ask: Any) -> dict[str, Counts]:
    """How many known values of each column are up to its first edge, up to the second, …, beyond.

    A value x is in cell i when edge_{i−1} < x ≤ edge_i.
    """
    X, edges = dense(client.data.X), np.asarray(ask["edges"])
    if len(edges) != X.shape[1]:
        raise DataError(f"client {client.id} has {X.shape[1]} columns, {len(edges)} are asked")
    known = np.isfinite(X)
    values = X if known.all() else np.where(known, X, np.nan)
    return {"cells": count_by(intervals(values, np.nextafter(edges, np.inf)))}


@dataclass(frozen=True)
class ColumnCounts:
    """Values of every column between edges, columns × (edges + 1)."""

    edges: FloatArray
    cells: IntArray

    @property
    def below(self) -> IntArray:
        """Values that are at most each edge, columns × edges."""
        return np.cumsum(self.cells, axis=1)[:, :-1]

    @property
    def rows(self) -> IntArray:
        """Values of every column."""
        return np.asarray(self.cells.sum(axis=1))


def first_counts(federation: Federation, columns: int) -> ColumnCounts:
    """How many values of every column lie between powers of two, of either sign."""
    edges = np.broadcast_to(_FIRST[1:-1], (columns, len(_FIRST) - 2))
    counts = _counted(federation, edges, 0)
    if federation.noise is None:
        return counts
    return _without_mere_noise(counts, federation.noise.table, len(federation))


def _counted(federation: Federation, edges: FloatArray, round: int) -> ColumnCounts:
    """What clients count between edges, which only rounding puts out of order."""
    edges = np.maximum.accumulate(np.where(np.isfinite(edges), edges, 0.0), axis=1)
    cells = federation.ask(count, {"edges": edges}, round=round).fold(Sum())["cells"]
    return ColumnCounts(edges, cells)


def _without_mere_noise(counts: ColumnCounts, privacy: SumNoise, clients: int) -> ColumnCounts:
    """Counts between edges that may be noise alone, below three deviations, as 0.

    Most powers of two have no value between them, and their noise would add up.
    """
    columns = len(counts.cells)
    of_row = columns if privacy["mechanism"] == "laplace" else np.sqrt(columns)
    spread = privacy["noise"] * of_row * np.sqrt(clients / privacy["share"])
    cells = np.where(counts.cells > 3 * spread, counts.cells, 0)
    cells[:, -1] = 0
    return replace(counts, cells=cells)


def quantiles(
    federation: Federation,
    q: ArrayLike,
    columns: int,
    *,
    rounds: int = ROUNDS,
    first: ColumnCounts | None = None,
    only: BoolArray | None = None,
) -> FloatArray:
    """The quantiles ``q`` of every column over all clients: columns × len(q).

    ``q`` may have a row of its own for each column. Each of the ``rounds`` narrows the place of a
    quantile to a sixteenth. ``first`` are the :func:`first_counts`, where they were asked already.
    ``only``: the columns that are asked for; of the others nothing more is learned, and what stands
    for their quantiles means nothing.

    The quantile q of n values is the ⌈q n⌉-th smallest, as in NumPy's ``inverted_cdf``. Columns
    without a known value give NaN.
    """
    levels = np.atleast_1d(np.asarray(q, dtype=float))
    if not ((levels >= 0) & (levels <= 1)).all():
        raise UsageError(f"quantiles must be between 0 and 1, not {levels.tolist()}")
    first = first_counts(federation, columns) if first is None else first
    rank = np.maximum(np.ceil(levels * first.rows[:, None]), 1)
    cell = (first.below[:, None, :] < rank[:, :, None]).sum(axis=2)
    low, high = _FIRST[cell], _FIRST[cell + 1]
    low, high = np.where(np.isinf(low), 2 * high, low), np.where(np.isinf(high), 2 * low, high)
    if only is not None:
        low[~only] = high[~only] = 0.0
    for round in range(1, rounds + 1):
        steps = np.arange(1, _CUTS) / _CUTS
        cuts = low[:, :, None] + (high - low)[:, :, None] * steps
        edges, place = _in_one_list(cuts)
        counts = _counted(federation, edges, round)
        below = np.take_along_axis(counts.below, place, axis=1).reshape(cuts.shape)
        cell = (below < rank[:, :, None]).sum(axis=2)
        grid = np.concatenate([low[:, :, None], cuts, high[:, :, None]], axis=2)
        low = np.take_along_axis(grid, cell[:, :, None], axis=2)[:, :, 0]
        high = np.take_along_axis(grid, cell[:, :, None] + 1, axis=2)[:, :, 0]
    return np.where(first.rows[:, None] > 0, high, np.nan)


def _in_one_list(cuts: FloatArray) -> tuple[FloatArray, IntArray]:
    """The different cuts of every column in order, and the place of each; columns × numbers.

    A row is then in one cell of a column, however many quantiles are looked for.
    """
    flat = cuts.reshape(len(cuts), -1)
    found = [np.unique(column, return_inverse=True) for column in flat]
    most = max(len(edges) for edges, _ in found)
    edges = [np.pad(edges, (0, most - len(edges)), mode="edge") for edges, _ in found]
    return np.stack(edges), np.stack([place for _, place in found])


# --- many quantiles with noise ---

NOISED_ASKS = 2
"""Asks of :func:`noised_quantiles`."""
_FINER = 4
"""Counts between edges that are asked for each quantile."""


def noised_quantiles(federation: Federation, levels: FloatArray, columns: int) -> FloatArray:
    """About the quantiles of every column, from two asks with noise: columns × levels.

    Narrowing every quantile takes many asks. Here values between powers of two are counted, then
    those between finer edges that divide these counts evenly, and quantiles are read off in
    between. Columns whose values cannot be told from noise give NaN.
    """
    first = first_counts(federation, columns)
    finer = _FINER * (len(levels) + 1)
    edges = _read_off(first, np.arange(1, finer) / finer)
    counts = _counted(federation, edges, 1)
    return _read_off(counts, levels)


def _read_off(counts: ColumnCounts, levels: FloatArray) -> FloatArray:
    """Where these shares of the values of every column lie below, evenly between two edges."""
    edges, rows = counts.edges, counts.rows[:, None]
    below = np.maximum.accumulate(np.maximum(counts.below, 0), axis=1)
    rank = levels * rows
    found = [np.searchsorted(*column) for column in zip(below, rank, strict=True)]
    cell = np.stack(found).clip(1, below.shape[1] - 1)
    low, high = (np.take_along_axis(below, place, axis=1) for place in (cell - 1, cell))
    start, end = (np.take_along_axis(edges, place, axis=1) for place in (cell - 1, cell))
    share = np.clip((rank - low) / np.maximum(high - low, 1), 0.0, 1.0)
    return np.where(rows > 0, start + share * (end - start), np.nan)
