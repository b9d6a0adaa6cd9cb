"""Clients that hold different columns of the same people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from solera.core.clients import Array, BoolArray, IntArray, Part, Segments
from solera.core.errors import DataError, UsageError
from solera.core.schema import Schema
from solera.data.adapters import from_pandas
from solera.data.dataset import Dataset
from solera.data.federated import FederatedData
from solera.data.files import require_pandas


class VerticalData:
    """The rows of clients that hold different columns, each client's as data of its own.

    Tasks see one client at a time: rows of different columns do not lie in one array.
    """

    def __init__(self, parties: Mapping[str, FederatedData]) -> None:
        for name, data in parties.items():
            if data.clients != 1:
                raise DataError(f"the data of {name!r} is of {data.clients} clients, not of one")
        self.names = tuple(parties)
        self.parties = tuple(parties.values())
        self.resources: Any = None

    @property
    def clients(self) -> int:
        return len(self.parties)

    @property
    def schema(self) -> Schema:
        """All columns, client after client, and the target of the first that has one."""
        features = tuple(f for party in self.parties for f in party.schema.features)
        target = next((p.schema for p in self.parties if p.y is not None), self.parties[0].schema)
        names = target.target_names
        return Schema(features, target.target, target.classes, target.outputs, names)

    def schema_of(self, client: int) -> Schema:
        """What the rows of one client look like."""
        return self.parties[client].schema

    def segments(self, clients: IntArray, part: Part = "train") -> Segments:
        if len(clients) != 1:
            raise DataError("clients that hold different columns are asked one by one")
        return self.parties[int(clients[0])].segments(np.zeros_like(clients), part)

    def sizes(self, part: Part = "train") -> IntArray:
        return np.concatenate([party.sizes(part) for party in self.parties])

    def identifiers_of(self, client: int, part: Part) -> Array | None:
        """The identifiers of a client's rows."""
        return self.parties[client].identifiers_of(0, part)

    def labelled_of(self, client: int, part: Part) -> BoolArray | None:
        """Which of a client's rows have a target, where not all have."""
        return self.parties[client].labelled_of(0, part)

    def prepared(self, steps: Sequence[Any]) -> VerticalData:
        raise UsageError(
            "clients that hold different columns have no transformer in common",
            hint="vertical learners standardise the columns of each client by themselves",
        )

    def __repr__(self) -> str:
        columns = ", ".join(
            f"{name}: {party.schema.width}"
            for name, party in zip(self.names, self.parties, strict=True)
        )
        return f"VerticalData(columns of {columns})"


def party_data(frame: Any, *, target: str | None, id: str | None) -> FederatedData:
    """A client's own table: columns, the target where it holds one, and identifiers as text.

    Classes keep their own values, and the identifiers are no column of the rows. Rows whose target
    is missing stay, as rows without a label: several label owners may know different people's.
    """
    identifiers = None
    if id is not None:
        if id not in frame.columns:
            raise DataError(f"there is no column {id!r} of identifiers")
        identifiers = identifier_texts(frame[id])
        frame = frame.drop(columns=[id])
    labelled = None
    if target is not None:
        frame, labelled = fill_labels(frame, target)
    read = from_pandas(frame, target=target)
    dataset = read.with_class_names()
    schema = replace(dataset.schema, target_names=read.target_names)
    offsets = np.array([0, dataset.X.shape[0]], dtype=np.int64)
    data = FederatedData(dataset.X, dataset.y, offsets, schema=schema)
    data.identifiers, data.labelled = identifiers, labelled
    return data


def frame_of(dataset: Dataset, *, target: str, id: str | None) -> Any:
    """All rows of a data set as a table, categories by their names, with a column to know them by.

    Rows are called ``row 0``, ``row 1``, … where ``id`` is no column.
    """
    pandas = require_pandas("a table of columns")
    named = dataset.with_class_names()
    X, y = named.all
    columns: dict[str, Any] = {}
    for i, feature in enumerate(named.schema.features):
        values = X[:, i]
        if feature.kind == "categorical":
            codes = np.where(np.isfinite(values), values, -1).astype(int)
            values = pandas.Categorical.from_codes(codes, list(feature.categories))
        columns[feature.name] = values
    if y is None or np.ndim(y) > 1:
        raise DataError(f"{dataset.name} has no single target to divide")
    columns[target] = y
    if id is not None and id not in columns:
        columns[id] = [f"row {i}" for i in range(len(y))]
    return pandas.DataFrame(columns)


def fill_labels(frame: Any, target: str) -> tuple[Any, BoolArray | None]:
    """The table with a label in every row, and which of them are known, if not all are.

    Whole numbers that a gap made into fractions are whole again, and so classes.
    """
    if not frame[target].isna().any():
        return frame, None
    labelled = np.asarray(frame[target].notna())
    if not labelled.any():
        raise DataError(f"the target {target!r} is missing in all rows")
    known = frame.loc[labelled, target]
    whole = known.dtype.kind == "f" and (known == known.round()).all()
    filled = frame[target].where(frame[target].notna(), known.iloc[0])
    return frame.assign(**{target: filled.astype("int64") if whole else filled}), labelled


def identifier_texts(values: Any) -> Array:
    """A column of identifiers as text, "" where one is missing; 12.0 reads 12 and a date its day.

    A table with a gap holds whole numbers as 12.0, and a clock at midnight is not part of a date.
    """
    pandas = require_pandas("identifiers")
    values = pandas.Series(values)
    if pandas.api.types.is_float_dtype(values.dtype):
        known = values.dropna()
        if (known == known.round()).all():
            values = values.astype("Int64")
    if pandas.api.types.is_datetime64_any_dtype(values.dtype):
        whole = (values.dropna() == values.dropna().dt.normalize()).all()
        values = values.dt.strftime("%Y-%m-%d" if whole else "%Y-%m-%d %H:%M:%S")
    return np.array(["" if pandas.isna(v) else str(v) for v in values], dtype=np.str_)
