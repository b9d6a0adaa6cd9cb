"""Where an owner's rows come from: files, a query, or a function of the owner's own.

    patients.csv  patients.csv.gz  patients.parquet     one file; yeast.arff, too
    exports/                                            all such files of a folder, by name
    sql:postgresql://reader@db/cardio#SELECT age, …     a query; nothing is ever committed
    python:hospital.loader:rows                         a function that returns (X, y), a Dataset
                                                        or a FederatedData of one client

Columns that have other names, units or categories here than in the federation are translated first.
Text and categories become codes as in :func:`solera.from_pandas`. A class keeps its own value in y
rather than a code, so that owners who do not all have every class still mean the same by it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.errors import DataError, UsageError
from solera.core.schema import Schema, infer
from solera.data.adapters import from_pandas, listed
from solera.data.arrays import check_rows
from solera.data.dataset import Dataset
from solera.data.dictionary_tables import Table
from solera.data.dictionary_tables import read_table as read_by_dictionary
from solera.data.federated import FederatedData
from solera.data.files import require_pandas
from solera.data.frames import category_text, check_columns, to_pandas
from solera.data.own_tables import read_table, target_columns
from solera.data.vertical_data import fill_labels, identifier_texts
from solera.serve.agent.policy import Column, OwnerPolicy
from solera.serve.agent.withdrawn import Withdrawn, read_withdrawn
from solera.trust.epoch.dictionary import Dictionary


def owned_rows(
    url: str,
    folder: Path,
    policy: OwnerPolicy,
    *,
    target: str | Sequence[str] | None,
    id: str | None = None,
    test: float = 0.0,
) -> Callable[..., FederatedData]:
    """How the agent of a folder reads its owner's rows: as the policy says, without who withdrew.

    What comes back can be pickled, and takes other ``columns`` if need be.
    """
    return partial(
        open_source,
        url,
        target=target,
        columns=policy.data.columns or None,
        translate=policy.columns,
        unit=policy.data.unit,
        withdrawn=read_withdrawn(folder),
        id=id,
        test=test,
    )


def check_there(url: str) -> None:
    """An error for a file or folder that is not there; whether it can be read is not looked at."""
    if not url.startswith(("sql:", "python:")) and not Path(url).exists():
        raise DataError(f"there is no file {url}")


def owned_table(url: str, folder: Path, policy: OwnerPolicy, dictionary: Dictionary) -> Table:
    """The owner's rows by a dictionary: translated as the policy says, without who withdrew."""
    frame = owned_frame(url, folder, policy, dictionary.identifier)
    return read_by_dictionary(dictionary, frame)


def owned_frame(url: str, folder: Path, policy: OwnerPolicy, identifier: str) -> Any:
    """The owner's table, translated as the policy says, without the rows of who withdrew."""
    if url.startswith("python:"):
        raise UsageError(
            f"{url} returns arrays, which a dictionary does not describe",
            hint="a file, a folder or sql:…, whose columns have names",
        )
    frame = translated(to_pandas(read_table(url)), policy.columns)
    withdrawn = read_withdrawn(folder)
    if withdrawn is None:
        return frame
    check_columns([identifier], list(frame.columns))
    return frame[~np.array(withdrawn.of(map(category_text, frame[identifier])), dtype=bool)]


def open_source(
    url: str,
    *,
    target: str | Sequence[str] | None,
    columns: Sequence[str] | None = None,
    translate: Mapping[str, Column] | None = None,
    unit: str | None = None,
    withdrawn: Withdrawn | None = None,
    id: str | None = None,
    test: float = 0.0,
    validation: float = 0.0,
    seed: int = 0,
) -> FederatedData:
    """The rows of one owner, as data of one client.

    Parameters
    ----------
    url: a file, a folder, ``sql:…#SELECT …`` or ``python:module:function``.
    target: the column to predict, or several of labels or numbers, or an XML file of MULAN that
        names labels; a function says so itself. Labels that this owner has no column of are unknown
        in its rows.
    columns: the columns to show besides the target, in this order; all by default.
    translate: columns of other names, units or categories here, by the name they get.
    unit: the column that says whose row it is; it is not shown.
    withdrawn: whose rows are left out, by what that column says.
    id: the column of identifiers by which other owners, who hold other columns of the same people,
        know a row; it is not shown either. Rows may lack the target then.
    test, validation: shares of the rows set aside to judge by, drawn with ``seed``.
    """
    if withdrawn is not None and unit is None:
        raise UsageError(
            "persons have withdrawn, and nothing says whose row is whose",
            hint='name the column in the policy: [data] unit = "patient_id"',
        )
    kind, _, rest = url.partition(":")
    if kind == "python":
        if target is not None:
            raise UsageError(f"{url} returns the target itself", hint="leave the target out")
        if translate:
            raise UsageError(f"{url} returns its columns itself", hint="leave [columns] out")
        if id is not None:
            raise UsageError(f"{url} returns identifiers itself", hint="leave --id out")
        found = _from_function(rest)
        data = _only(_select(found, (*columns, *_named(unit)) if columns else ()))
    else:
        target = target_columns(url, target)
        frame = translated(to_pandas(read_table(url)), translate or {})
        if withdrawn is not None and unit in frame.columns:
            frame = frame[~np.array(withdrawn.of(map(category_text, frame[unit])), dtype=bool)]
        identifiers, labelled = None, None
        if id is not None:
            check_columns([id], list(frame.columns))
            identifiers, frame = identifier_texts(frame[id]), frame.drop(columns=[id])
            if isinstance(target, str) and target in frame.columns:
                frame, labelled = fill_labels(frame, target)
            columns = [c for c in columns or () if c != id]
        data = _from_dataset(_from_frame(frame, url, target, columns or (), unit))
        data.identifiers, data.labelled = identifiers, labelled
    if unit is not None:
        if withdrawn is not None and kind == "python":
            data = _without(data, unit, withdrawn)
        data = _with_persons(data, unit)
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
    check_columns(columns, names)
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


def translated(frame: Any, translate: Mapping[str, Column]) -> Any:
    """The frame with columns under the names, units and categories of the federation."""
    known = list(frame.columns)
    check_columns([column.source for column in translate.values()], known)
    sources = {column.source for column in translate.values()}
    for name in translate:
        if name in known and name not in sources:
            raise DataError(
                f"[columns] names {name!r}, and the data has a column of that name already",
                hint=f"write {name} = {{ from = {name!r} }} if that is the one meant",
            )
    made = {
        name: _one_translated(frame[column.source], column) for name, column in translate.items()
    }
    return frame.drop(columns=list(sources)).assign(**made)


def _one_translated(values: Any, column: Column) -> Any:
    pandas = require_pandas("a table of columns")
    if column.categories:
        names = list(dict.fromkeys(column.categories.values()))
        text = values.where(values.isna(), values.map(category_text)).map(column.categories)
        return pandas.Series(pandas.Categorical(text, categories=names), index=values.index)
    if (column.plus, column.times) == (0.0, 1.0):
        return values
    if not pandas.api.types.is_numeric_dtype(values.dtype):
        raise DataError(f"column {column.source!r} holds text, which has no unit to change")
    return (values + column.plus) * column.times


def _named(unit: str | None) -> tuple[str, ...]:
    return () if unit is None else (unit,)


def _with_persons(data: FederatedData, unit: str) -> FederatedData:
    """The data without the column that says whose row it is, and what that column says."""
    names = [feature.name for feature in data.schema.features]
    check_columns([unit], names)
    codes = data.X[:, names.index(unit)]
    codes = np.asarray(codes.toarray() if hasattr(codes, "toarray") else codes).reshape(-1)
    if np.isnan(codes).any():
        raise DataError(f"column {unit!r} is missing in some rows, which are then nobody's")
    rest = data.prepared([_Columns([i for i, name in enumerate(names) if name != unit])])
    rest.identifiers, rest.labelled = data.identifiers, data.labelled
    rest.persons = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return rest


def _without(data: FederatedData, unit: str, withdrawn: Withdrawn) -> FederatedData:
    """The data without the rows of persons who withdrew."""
    names = [feature.name for feature in data.schema.features]
    check_columns([unit], names)
    place = names.index(unit)
    known = np.array(data.schema.features[place].categories, dtype=object)
    codes = np.asarray(data.X[:, place], dtype=float).reshape(-1)
    whose = known[codes.astype(np.int64)] if len(known) else codes.tolist()
    kept = ~np.array(withdrawn.of([category_text(unit) for unit in whose]), dtype=bool)
    parts = [int(data.sizes(part)[0]) for part in ("train", "validation", "test")]
    ends = np.cumsum(parts)
    held = [np.array([int(kept[a:b].sum())]) for a, b in pairwise(ends)]
    if not kept.any():
        raise DataError("everybody has withdrawn: there are no rows")
    offsets = np.array([0, int(kept.sum())], dtype=np.int64)
    y = None if data.y is None else data.y[kept]
    return FederatedData(data.X[kept], y, offsets, schema=data.schema, held_out=(held[0], held[1]))


def _from_frame(
    frame: Any,
    url: str,
    target: str | Sequence[str] | None,
    columns: Sequence[str],
    unit: str | None,
) -> Dataset:
    known = list(frame.columns)
    answers = listed(target)
    absent = [name for name in answers if name not in known]
    if len(absent) == len(answers):
        check_columns(absent, known)
    frame = frame.assign(**dict.fromkeys(absent, np.nan))
    if unit is not None:
        check_columns([unit], known)
        whose = require_pandas("a table of columns").factorize(frame[unit])[0].astype(float)
        frame = frame.assign(**{unit: np.where(whose < 0, np.nan, whose)})
    if columns:
        check_columns(columns, known)
        kept = [c for c in columns if c not in (*answers, unit)]
        frame = frame[[*kept, *_named(unit), *answers]]
    if not len(frame):
        raise DataError(f"{'the query' if url.startswith('sql:') else url} has no rows")
    return from_pandas(frame, target=target)


def _from_dataset(dataset: Dataset) -> FederatedData:
    """Its rows, those to test on set aside, with the classes' own values instead of codes."""
    named = dataset.with_class_names()
    return _one(*named.all, named.schema, named.X_test.shape[0])


def _one(X: Any, y: Any, schema: Schema, test: int = 0) -> FederatedData:
    aside = (np.zeros(1, dtype=np.int64), np.array([test])) if test else None
    offsets = np.array([0, X.shape[0]], dtype=np.int64)
    return FederatedData(X, y, offsets, schema=schema, held_out=aside)
