"""Bins of closed jobs: unions of the epoch's atoms, each with enough persons of all owners.

Counts of merged atoms (:class:`solera.trust.merging.Neighbours`) say where edges may lie; those
are taken that leave about as many rows in every bin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.aggregation import Sum
from solera.core.clients import BoolArray, Client, FloatArray, IntArray
from solera.core.federation import Federation
from solera.core.schema import Feature, Schema
from solera.core.task import task
from solera.learn.closed import is_closed
from solera.learn.rows import dense
from solera.trust.board.engine import NotClosed
from solera.trust.cells import Indexed
from solera.trust.constructors import count_by
from solera.trust.merging import Neighbours


@task("preprocess.count_atoms")
def count_atoms(client: Client, ask: Any) -> dict[str, Any]:
    """Rows by the atoms of every column, merged where they hold few persons.

    A value x is in cell i of its column when edge_{i−1} < x ≤ edge_i; the last cell is for missing
    values.
    """
    X = dense(client.data.X)
    cells = cells_between(X, ask["edges"], ask["starts"])
    atoms = Indexed(cells.astype(np.int64), (int(ask["starts"][-1]),), distinct=True)
    return {"rows": count_by(Neighbours(atoms, ask["lines"]))}


def cells_between(X: Any, edges: list[FloatArray], starts: IntArray) -> NDArray[np.int32]:
    """The cell of every value, rows × columns; column j owns those from ``starts[j]`` on."""
    cells = np.empty(X.shape, dtype=np.int32)
    for j, of_column in enumerate(edges):
        known = np.isfinite(X[:, j])
        column = np.searchsorted(of_column, X[:, j], side="left")
        cells[:, j] = starts[j] + np.where(known, column, len(of_column) + 1)
    return cells


def starts_between(edges: list[FloatArray]) -> IntArray:
    """Where the cells of each column begin: those between its edges, and one for missing values."""
    return np.concatenate([[0], np.cumsum([len(of_column) + 2 for of_column in edges])])


def lines_of(starts: IntArray, gaps: BoolArray) -> IntArray:
    """The line of every cell: its column, within which neighbours merge.

    Missing values of columns that have none are no neighbours of any cell.
    """
    lines = 2 * np.repeat(np.arange(len(gaps)), np.diff(starts))
    lines[starts[1:] - 1] += ~gaps
    return lines


def gaps_of(federation: Federation, schema: Schema) -> BoolArray:
    """In which columns the dictionary allows values to be missing."""
    return np.array([feature.name in federation.gaps for feature in schema.features], dtype=bool)


def atom_bins(federation: Federation, schema: Schema, bins: int) -> list[FloatArray]:
    """The edges between at most so many bins of every column; a value at an edge goes left."""
    edges = [_edges_of(federation, feature) for feature in schema.features]
    groups = told_groups(federation, schema, edges)
    return [_even(of_column, rows, bins) for of_column, rows in groups]


def told_groups(
    federation: Federation, schema: Schema, edges: list[FloatArray]
) -> list[tuple[FloatArray, IntArray]]:
    """Of every column the edges between groups of atoms that are told, and the rows of each group.

    Missing values are left out where they are a group of their own.
    """
    starts = starts_between(edges)
    lines = lines_of(starts, gaps_of(federation, schema))
    replies = federation.ask(count_atoms, {"edges": edges, "starts": starts, "lines": lines})
    rows = replies.fold(Sum())["rows"]
    told = np.asarray(replies.absent.get("rows", np.zeros_like(rows))) == 0
    groups = []
    for of_column, first, after in zip(edges, starts[:-1], starts[1:], strict=True):
        ends = np.flatnonzero(told[first:after])
        if len(ends) > 1 and ends[-2] == len(of_column):
            ends = ends[:-1]
        groups.append((of_column[ends[:-1]], rows[first + ends]))
    return groups


def check_atoms(federation: Federation, edges: list[FloatArray], schema: Schema) -> None:
    """Refuse bins of a model that divide an atom of the epoch, in a closed job."""
    if not is_closed(federation):
        return
    for of_column, feature in zip(edges, schema.features, strict=True):
        if not np.isin(of_column, _edges_of(federation, feature)).all():
            raise NotClosed(
                f"the bins of the model to start from divide atoms of {feature.name!r}",
                hint="start from a model of a closed job in the same epoch",
            )


def _edges_of(federation: Federation, feature: Feature) -> FloatArray:
    """The edges between the atoms of a column; of categories, those that divide no atom."""
    atoms = atoms_of(federation)
    if not feature.is_coded:
        return np.nextafter(np.asarray(atoms.edges(feature.name), dtype=np.float64), -np.inf)
    groups = category_atoms(federation, feature)
    codes = np.arange(len(groups))
    last = np.array([codes[groups == group].max() for group in groups])
    reach = np.maximum.accumulate(last)[:-1]
    return np.flatnonzero(reach == codes[:-1]).astype(np.float64)


def category_atoms(federation: Federation, feature: Feature) -> IntArray:
    """The atom of each category of a column; bins are unions of atoms already."""
    schema = federation.engine.schema
    assert schema is not None  # the dictionary's
    raw = {column.name: column for column in schema.features}
    if raw[feature.name].is_coded:
        return np.asarray(atoms_of(federation).groups(feature.name))
    return np.arange(len(feature.categories))


def atoms_of(federation: Federation) -> Any:
    """The atoms of the epoch."""
    if federation.atoms is None:
        raise NotClosed(
            "the epoch has no atoms, of which bins are made",
            hint="a new epoch, which finds them; or the policy 'trusted'",
        )
    return federation.atoms


def _even(edges: FloatArray, rows: IntArray, bins: int) -> FloatArray:
    """Edges between groups, so that bins hold about as many rows.

    The edge at level q is the first below which there are at least so many rows.
    """
    levels = np.arange(1, bins) / bins * rows.sum()
    chosen = np.unique(np.searchsorted(rows.cumsum()[:-1], levels))
    return np.asarray(edges[chosen[chosen < len(edges)]])
