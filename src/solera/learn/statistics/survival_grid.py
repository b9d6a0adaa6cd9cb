"""Ends of observation by time, in a closed job.

Times of the epoch are atoms. The intervals of a group are unions of these in which it has at least
ten events, and cells are its rows that ended in one, by an event or censored; the censored of
several intervals are one cell where they are fewer. Cells share no row, and their counts are exact.
Within a cell rows count as they do by atom, where counts carry noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Array, BoolArray, Client, FloatArray, IntArray
from solera.core.errors import DataError
from solera.core.federation import Federation
from solera.core.task import task
from solera.learn.rows import dense
from solera.trust.cells import as_cells, intervals
from solera.trust.constructors import count_by
from solera.trust.contributions import Supports

LEAST = 10
"""Rows that ended, behind a count."""
_MARGIN = 3
"""Deviations of the noise between what a run of cells seems to hold and what it needs."""

# --- the client's side ---


def times_and_events(y: Any) -> tuple[FloatArray, BoolArray]:
    """The two columns of a survival target, checked."""
    y = np.asarray(y, dtype=np.float64)
    if y.ndim != 2 or y.shape[1] != 2:
        raise DataError("a survival target has two columns of numbers: time and event")
    time, event = y.T
    if not (np.isfinite(time) & (time >= 0) & ((event == 0) | (event == 1))).all():
        raise DataError("a time is negative or missing, or an event is neither 0 nor 1")
    return time, event == 1


def ended_cells(client: Client, ask: Any) -> IntArray:
    """The number of every row's cell, of a table by group, event and interval of time."""
    rows, schema = client.data.part("train"), client.data.schema
    time, event = times_and_events(rows.y)
    group = np.zeros(len(time), dtype=np.int64)
    if ask["by"] is not None:
        names = [feature.name for feature in schema.features]
        code = dense(rows.X)[:, names.index(ask["by"])]
        known = code < len(ask["groups"]) - 1
        group = ask["groups"][np.where(known, code, -1).astype(np.int64)]
    cells: IntArray = ask["cells"][
        group, event.astype(np.int64), intervals(time, ask["edges"]).index
    ]
    return cells


@task("survival.counts", version=3)
def count_ended(client: Client, ask: Any) -> dict[str, Any]:
    """How many rows ended in each cell."""
    return {"counts": count_by(ended_cells(client, ask), int(ask["cells"].max()) + 1)}


@task("survival.estimates")
def estimate_ended(client: Client, ask: Any) -> dict[str, Any]:
    """How many persons ended in each cell, and in which way, with noise."""
    cell = ended_cells(client, ask)
    atoms = ask["cells"].shape[-1]
    kinds = Supports(as_cells(cell // atoms, ask["cells"].size // atoms), None, "train")
    return {"cells": Supports(as_cells(cell, ask["cells"].size), None, "train"), "kinds": kinds}


# --- the coordinator's side ---


@dataclass(frozen=True)
class SurvivalGrid:
    """Cells of all rows by time.

    Parameters
    ----------
    ask: what tasks take, with the cells.
    cells: groups × (censored, event) × atoms, the number of each one's cell; of a group those of
        events come first. One with few events is one cell.
    counts: the rows of every cell.
    by_atom: as ``cells``, about how many rows ended there.
    thin: the groups whose censored rows are so few that the cell of the last events holds them.
    """

    ask: dict[str, Any]
    cells: IntArray
    counts: IntArray
    by_atom: FloatArray
    thin: BoolArray

    def times(self, group: int, event: int = 1) -> FloatArray:
        """Where a group's cells of events, or of the censored, end, but for the last."""
        edges: FloatArray = self.ask["edges"]
        return edges[np.flatnonzero(np.diff(self.cells[group, event]))]


def find_grid(
    federation: Federation, time: str, by: str | None = None, groups: Array | None = None
) -> SurvivalGrid:
    """The grid of a column of times, for the groups of the categories of ``by``."""
    ask, persons, kinds = estimated(federation, federation.atoms.edges(time), by, groups)
    thin = kinds[:, 0] < LEAST
    for least in range(LEAST, 2 * LEAST, 2):
        cells = _cells_of(persons, thin, least)
        ask = {**ask, "cells": cells}
        replies = federation.ask(count_ended, ask)
        counts = replies.fold(Sum())["counts"]
        if not replies.noised and not replies.absent:
            break
    else:
        raise DataError("rows are too few for counts by group and time", hint="no by=; more rows")
    if not np.diff(cells[:, 1]).any():
        raise DataError(f"a curve or model needs {2 * LEAST} events or more", hint="more rows")
    shape = np.maximum(persons[:, 1], 0)
    few = np.maximum(kinds[:, :1], 0) * shape / shape.sum(axis=1, keepdims=True)
    persons = np.stack([np.where(thin[:, None], few, persons[:, 0]), persons[:, 1]], axis=1)
    # counts by atom are moved alike within a cell, so that they add up to its exact one
    total = np.bincount(cells.ravel(), weights=persons.ravel())
    by_atom = persons + ((counts - total) / np.bincount(cells.ravel()))[cells]
    return SurvivalGrid(ask, cells, counts, by_atom, thin)


def estimated(
    federation: Federation, edges: FloatArray, by: str | None = None, groups: Array | None = None
) -> tuple[dict[str, Any], FloatArray, FloatArray]:
    """What tasks take, the persons of groups × (censored, event) × atoms, and those of all atoms.

    Noise of deviation 1 is on each.
    """
    groups = np.zeros(2, dtype=np.int64) if groups is None else groups
    form = int(groups.max()) + 1, 2, len(edges) + 1
    ask = {"by": by, "groups": groups, "edges": edges}
    cells = np.arange(math.prod(form)).reshape(form)
    total = federation.ask(estimate_ended, {**ask, "cells": cells}).fold(Sum())
    return ask, total["cells"].reshape(form), total["kinds"].reshape(form[:2])


def _cells_of(persons: FloatArray, thin: BoolArray, least: float) -> IntArray:
    """Cells of groups × (censored, event) × atoms."""
    cells = np.empty(persons.shape, dtype=np.int64)
    first = 0
    for group, (censored, events) in enumerate(persons):
        interval = _runs(events, least)
        cells[group, 1] = first + interval
        first += int(interval[-1]) + 1
        if thin[group] or not interval[-1]:
            cells[group, 0] = first - 1
            continue
        runs = _runs(np.bincount(interval, weights=censored).astype(float), least)
        cells[group, 0] = first + runs[interval]
        first += int(runs[-1]) + 1
    return cells


def _runs(counts: FloatArray, least: float) -> IntArray:
    """The number of every cell's run of neighbours, begun anew once there is enough in one.

    What is left over is in the last run. Counts carry noise of deviation 1, and so does a run's
    when it is asked for.
    """
    runs = np.zeros(len(counts), dtype=np.int64)
    total, cells, run = 0.0, 0, 0
    for place, count in enumerate(counts.tolist()):
        runs[place] = run
        total, cells = total + count, cells + 1
        if total >= least + _MARGIN * math.sqrt(cells - 1):
            total, cells, run = 0.0, 0, run + 1
    return np.minimum(runs, max(run - 1, 0))
