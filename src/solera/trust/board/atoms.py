"""The built-in closed job that finds the atoms of an epoch, after all owners have signed its draft.

Every round is one sum: the persons of every cell, with cell-key noise. A person counts in one cell
of a column, whatever rows are its own, so that the persons of neighbouring cells add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Client, FloatArray, IntArray
from solera.core.federation import Federation
from solera.core.task import task
from solera.trust.board.text import JobText, canonical
from solera.trust.cells import Indexed
from solera.trust.contributions import Supports
from solera.trust.epoch.atoms import Atoms, ColumnCells, merged_categories, merged_cells
from solera.trust.epoch.dictionary import Dictionary

ROUNDS = 18
SPLIT = 4
"""A cell is halved that holds so many times ``min_count``."""
NAME = "Atoms"
_NOBODY = b"the owners keep it; it is sealed"
"""In the place of a researcher's key: nobody has the private one, the owners read the result."""


def atoms_text(repeat: int = 0) -> bytes:
    """The one text of this job, of all rows, folds and columns; a repeat follows a failure."""
    return canonical(JobText("atoms", None, target=(), repeat=repeat, researcher_key=_NOBODY))


@task("epoch.atoms")
def count_persons(client: Client, ask: Any) -> dict[str, Any]:
    """The persons in the cells between edges that are asked for, column after column."""
    columns, persons = client.data.X.T, client.data.units("train")
    index = np.full((len(client.data.X), len(columns)), -1, dtype=np.int64)
    cells = 0
    for j, (edges, asked) in enumerate(zip(ask["edges"], ask["asked"], strict=True)):
        number = np.where(asked, cells + np.cumsum(asked) - 1, -1)
        rows = _one_row_of_each(columns[j], persons)
        index[rows, j] = number[np.searchsorted(edges, columns[j][rows], side="right")]
        cells += int(asked.sum())
    return {"persons": Supports(Indexed(index, (cells,), distinct=True), None, "train")}


def find_atoms(federation: Federation, dictionary: Dictionary, min_count: int) -> Atoms:
    """The atoms of every column, from the sums of all owners.

    A grid is halved where a cell has at least 4 × ``min_count`` persons, at most 18 rounds long;
    every cell is asked for once. Then neighbours are merged until each atom has at least
    ``min_count`` + 5√k persons, for k cells.
    """
    columns = [ColumnCells(column) for column in dictionary.columns]
    for turn in range(ROUNDS):
        _count(federation, columns, turn)
        if turn < ROUNDS - 1:
            for column in columns:
                column.halve(SPLIT * min_count)
        if not any(column.uncounted.any() for column in columns):
            break
    intervals, categories = {}, {}
    for found in columns:
        name = found.column.name
        if found.column.kind == "categorical":
            categories[name] = merged_categories(found.supports, min_count)
        else:
            ends = merged_cells(found.supports, min_count)
            intervals[name] = tuple(found.edges[ends[:-1] - 1].tolist())
    return Atoms(intervals, categories)


def _count(federation: Federation, columns: Sequence[ColumnCells], turn: int) -> None:
    """Ask for the persons of all cells that were not counted yet, with noise."""
    asked = [column.uncounted for column in columns]
    payload = {"edges": [column.edges for column in columns], "asked": asked}
    supports = federation.ask(count_persons, payload, round=turn).fold(Sum())["persons"]
    ends = np.cumsum([cells.sum() for cells in asked])[:-1]
    for column, counted in zip(columns, np.split(supports, ends), strict=True):
        column.supports[column.uncounted] = counted


def _one_row_of_each(values: FloatArray, persons: IntArray | None) -> IntArray:
    """One row of every person who has a value."""
    rows = np.flatnonzero(~np.isnan(values))
    if persons is None:
        return rows
    return rows[np.unique(persons[rows], return_index=True)[1]]
