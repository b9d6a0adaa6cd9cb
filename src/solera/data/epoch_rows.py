"""The rows of an epoch as one job sees them: those of one owner, or in a simulation of all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solera.core.errors import DataError
from solera.data.dictionary_tables import Table
from solera.data.federated import FederatedData
from solera.trust.board.cell_keys import row_keys
from solera.trust.epoch.dictionary import Dictionary
from solera.trust.epoch.selection import Selection
from solera.trust.epoch.snapshot import Snapshot


def snapshot_of(secret: bytes, dictionary: Dictionary, table: Table) -> Snapshot:
    """What an owner's table is bound to, and the folds and populations of its rows."""
    return Snapshot.of(secret, dictionary, table.values, table.persons)


def selected_rows(
    dictionary: Dictionary,
    owners: Sequence[tuple[Table, Snapshot]],
    selection: Selection,
    *,
    names: Sequence[str] = (),
) -> FederatedData:
    """The rows of a job, each owner's in the order of its snapshot.

    Rows that lack the target are left out; of several labels one may be missing.
    """
    dictionary.check_population(selection.population)
    parts = (selection.training, selection.validation, selection.test)
    sizes = np.zeros((len(parts), len(owners)), dtype=np.int64)
    X, y, persons = [], [], []
    for i, (table, snapshot) in enumerate(owners):
        for part, folds in enumerate(parts):
            places = snapshot.chosen(folds, selection.population)
            rows, has_target = dictionary.rows(
                table.values[places], selection.columns, selection.target
            )
            whose = np.empty(len(table), dtype=snapshot.persons.dtype)
            whose[snapshot.order] = snapshot.persons
            sizes[part, i] = len(rows)
            X.append(rows.X)
            y.append(rows.y)
            persons.append(whose[places][has_target])
    counts = sizes.sum(axis=0)
    if not counts.any():
        raise DataError(f"no owner has rows of the population {selection.population!r}")
    data = FederatedData(
        np.concatenate(X),
        None if y[0] is None else np.concatenate(y),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        schema=dictionary.schema(selection.columns, selection.target),
        held_out=(sizes[1], sizes[2]),
        names=tuple(names),
    )
    marks = np.concatenate(persons)
    data.keys = row_keys(marks)
    codes = np.unique(marks, return_inverse=True)[1].astype(np.int64)
    data.persons = codes if codes.max(initial=-1) + 1 < len(codes) else None
    return data
