"""Where an owner's rows come from: files, a query, or a function of the owner's own.

    patients.csv  patients.csv.gz  patients.parquet     one file
    exports/                                            all such files of a folder, by name
    sql:postgresql://reader@db/cardio#SELECT age, …     a query; nothing is ever committed
    python:hospital.loader:rows                         a function that returns (X, y), a Dataset
                                                        or a FederatedData of one client

Text and categories become codes as in :func:`solera.from_pandas`. A class keeps its own value in y
rather than a code, so that owners who do not all have every class still mean the same by it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from solera.core.errors import DataError, UsageError
from solera.core.schema import Schema, infer
from solera.data.adapters import from_pandas
from solera.data.dataset import Dataset
from solera.data.federated import FederatedData, check_rows
from solera.data.own_tables import read_table


def open_source(
    url: str,
    *,
    target: str | None,
    columns: Sequence[str] | None = None,
    test: float = 0.0,
    validation: float = 0.0,
    seed: int = 0,
) -> FederatedData:
    """The rows of one owner, as data of one client.

    Parameters
    ----------
    url: a file, a folder, ``sql:…#SELECT …`` or ``python:module:function``.
    target: the column to predict; a function says so itself.
    columns: the columns to show besides the target, in this order; all by default.
    test, validation: shares of the rows set aside to judge by, drawn with ``seed``.
    """
    kind, _, rest = url.partition(":")
    if kind == "python":
        if target is not None:
            raise UsageError(f"{url} returns the target itself", hint="leave the target out")
        data = _only(_select(_from_function(rest), columns or ()))
    else:
        data = _from_dataset(_from_frame(read_table(url), url, target, columns or ()))
    return data.split(test=test, validation=validation, seed=seed) if test or validation else data


# --- a function ---


def _from_function(place: str) -> FederatedData:
    module, _, name = place.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise DataError(
            f"python:{place} cannot be found: {error}", hint="write python:package.module:function"
        ) from None
    made = function()
    if isinstance(made, FederatedData):
        return made
    if isinstance(made, Dataset):
        return _from_dataset(made)
    if not isinstance(made, tuple) or len(made) != 2:
        raise DataError(
            f"python:{place} returned {type(made).__name__}",
            hint="return (X, y), a Dataset or a FederatedData of one client",
        )
    X, y = check_rows(*made)
    return _one(X, y, infer(X, y))


def _select(data: FederatedData, columns: Sequence[str]) -> FederatedData:
    """The data with these columns only."""
    if not columns:
        return data
    names = [feature.name for feature in data.schema.features]
    _check_columns(columns, names)
    chosen = [names.index(name) for name in columns]
    return data.prepared([_Columns(chosen)])


class _Columns:
    """Keeps some columns; the smallest transformer."""

    def __init__(self, chosen: list[int]) -> None:
        self.chosen = chosen

    def transform_rows(self, X: Any, schema: Schema) -> Any:
        return X[:, self.chosen]

    def transform_schema(self, schema: Schema) -> Schema:
        return replace(schema, features=tuple(schema.features[i] for i in self.chosen))


def _only(data: FederatedData) -> FederatedData:
    if data.clients != 1:
        raise DataError(f"the data is of {data.clients:,} clients, an owner is one")
    if not data.X.shape[0]:
        raise DataError("the data source has no rows")
    return data


# --- what all have in common ---


def _from_frame(frame: Any, url: str, target: str | None, columns: Sequence[str]) -> Dataset:
    known = [str(name) for name in frame.columns]
    frame = frame.set_axis(known, axis=1)
    if target is not None and target not in known:
        raise DataError(f"there is no target column {target!r}", hint=_there_are(known))
    if columns:
        _check_columns(columns, known)
        frame = frame[[*(c for c in columns if c != target), *([target] if target else [])]]
    if not len(frame):
        raise DataError(f"{'the query' if url.startswith('sql:') else url} has no rows")
    return from_pandas(frame, target=target)


def _from_dataset(dataset: Dataset) -> FederatedData:
    """Its rows, those to test on set aside, with the classes' own values instead of codes."""
    X, y = dataset.all
    schema, held = dataset.schema, dataset.X_test.shape[0]
    if schema.target == "classes" and dataset.class_names:
        names = dataset.class_names
        whole = all(re.fullmatch(r"0|-?[1-9]\d{0,17}", name) for name in names)
        values = np.array(names, dtype=np.int64 if whole else np.str_)
        y, schema = values[y], replace(schema, classes=np.unique(values))
    return _one(X, y, schema, held)


def _one(X: Any, y: Any, schema: Schema, test: int = 0) -> FederatedData:
    aside = (np.zeros(1, dtype=np.int64), np.array([test])) if test else None
    offsets = np.array([0, X.shape[0]], dtype=np.int64)
    return FederatedData(X, y, offsets, schema=schema, held_out=aside)


def _check_columns(wanted: Sequence[str], known: Sequence[str]) -> None:
    for name in wanted:
        if name not in known:
            raise DataError(f"there is no column {name!r}", hint=_there_are(known))


def _there_are(names: Sequence[str]) -> str:
    return f"there are {', '.join(names[:20])}{', …' if len(names) > 20 else ''}"
