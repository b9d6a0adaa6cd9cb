"""Tables and dictionaries: a dictionary drafted from a table, and a table read by a dictionary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import Array, FloatArray
from solera.core.errors import DataError
from solera.core.schema import UNKNOWN, Schema, class_codes, infer
from solera.data.adapters import from_pandas
from solera.data.arrays import check_rows
from solera.data.dataset import Dataset
from solera.data.frames import (
    category_text,
    check_columns,
    encode_column,
    is_frame,
    target_array,
    to_pandas,
    typed,
)
from solera.trust.epoch.dictionary import LABELS, Dictionary, DictionaryColumn


@dataclass(frozen=True)
class Table:
    """Rows as a dictionary has them: all its columns, and whose each row is.

    ``values`` holds codes for categories, days for dates and NaN where a value is missing.
    """

    values: FloatArray
    persons: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Any) -> Table:
        """Some of the rows."""
        persons = None if self.persons is None else tuple(np.array(self.persons, object)[rows])
        return Table(self.values[rows], persons)


def draft(
    X: Any,
    y: Any = None,
    *,
    target: str | Sequence[str] | None = None,
    identifier: str = "",
    time: str = "",
    columns: Sequence[str] | None = None,
    kinds: Any = None,
) -> Dictionary:
    """A dictionary of what a table holds, to be read and changed before others see it.

    ``X`` is a frame, a :class:`Dataset` or an array with its target ``y``; the other parameters
    are those of :func:`solera.from_pandas`. Bounds are rounded outwards to a digit, since the
    extremes of a column are two persons' values.

    Examples
    --------
    >>> import pandas, solera as so
    >>> table = pandas.DataFrame({"age": [41, 58], "sex": ["f", "m"], "died": ["no", "yes"]})
    >>> print(so.epochs.draft(table, target="died").toml())
    target = "died"
    <BLANKLINE>
    [columns]
    age = { kind = "numeric", bounds = [40, 60], grid = 1 }
    sex = { kind = "categorical", categories = ["f", "m"] }
    died = { kind = "categorical", categories = ["no", "yes"] }
    <BLANKLINE>
    """
    if is_frame(X) and y is None:
        frame = to_pandas(X)
        check_columns([name for name in (identifier, time) if name], frame.columns)
        X = from_pandas(
            frame.drop(columns=[identifier] if identifier else []),
            target=target,
            columns=columns,
            kinds=kinds,
        )
    elif is_frame(X):
        X, y = from_pandas(X, columns=columns, kinds=kinds).X, target_array(y)
    schema, X, y = opened(X, y)
    return draft_of(schema, X, y, identifier=identifier, time=time)


def opened(X: Any, y: Any = None) -> tuple[Schema, Any, Any]:
    """Schema, rows and target of a data set or arrays; classes by their names."""
    if isinstance(X, Dataset):
        named = X.with_class_names()
        schema = named.schema
        names = schema.target_names or named.target_names
        return Schema(
            schema.features, schema.target, schema.classes, schema.outputs, names
        ), *named.all
    X, y = check_rows(X, y)
    return infer(X, y), X, y


def draft_of(schema: Schema, X: Any, y: Any, *, identifier: str = "", time: str = "") -> Dictionary:
    """The dictionary of rows in memory."""
    X = _dense(X)
    columns = [
        DictionaryColumn(f.name, "categorical", categories=f.categories, missing=_gaps(X[:, i]))
        if f.kind == "categorical"
        else _numbers(f.name, f.kind, X[:, i])
        for i, f in enumerate(schema.features)
    ]
    names = _target_names(schema)
    if schema.target == "classes":
        texts = tuple(map(str, schema.classes.tolist()))
        columns.append(DictionaryColumn(names[0], "categorical", categories=texts))
    elif schema.target == "labels":
        unknown = (np.asarray(y) == UNKNOWN).any(axis=0).tolist()
        columns += [
            DictionaryColumn(name, "categorical", categories=LABELS[0], missing=missing)
            for name, missing in zip(names, unknown, strict=True)
        ]
    elif schema.target == "numbers":
        values = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        columns += [_numbers(name, "numeric", v) for name, v in zip(names, values.T, strict=True)]
    return Dictionary(tuple(columns), tuple(names), identifier, time)


def read_table(dictionary: Dictionary, frame: Any) -> Table:
    """The rows of a frame by a dictionary; what does not fit is an error.

    Columns that the dictionary does not name are passed over. :func:`misfits` says of every column
    what is wrong with it.
    """
    from solera.data.misfits import first_misfit

    frame = to_pandas(frame)
    if wrong := first_misfit(dictionary, frame):
        raise DataError(
            f"column {wrong.column!r} {wrong.what}",
            hint=wrong.mend or "`solera dictionary check` lists what else does not fit",
        )
    values = [encode_column(frame[c.name], c.feature) for c in dictionary.columns]
    persons = None
    if dictionary.identifier:
        persons = tuple(map(category_text, typed(frame[dictionary.identifier]).tolist()))
    return Table(np.column_stack(values), persons)


def table_of(
    dictionary: Dictionary, schema: Schema, X: Any, y: Any, persons: Array | None = None
) -> Table:
    """Rows in memory by a dictionary that names the same columns."""
    X = _dense(X)
    known: dict[str, FloatArray] = {}
    for i, feature in enumerate(schema.features):
        known[feature.name] = _recoded(dictionary, feature.name, feature.categories, X[:, i])
    names = _target_names(schema)
    if schema.target == "classes":
        texts = tuple(map(str, schema.classes.tolist()))
        found = class_codes(y, schema.classes).astype(np.float64)
        known[names[0]] = _recoded(dictionary, names[0], texts, found)
    elif schema.target != "none":
        values = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        values = (
            np.where(values == UNKNOWN, np.nan, values) if schema.target == "labels" else values
        )
        known.update(zip(names, values.T, strict=True))
    check_columns([column.name for column in dictionary.columns], list(known))
    values = np.column_stack([known[column.name] for column in dictionary.columns])
    _check_bounds(dictionary, values)
    return Table(values, None if persons is None else tuple(map(str, persons.tolist())))


def _recoded(
    dictionary: Dictionary, name: str, categories: tuple[str, ...], codes: Array
) -> FloatArray:
    """Codes of these categories as those of the dictionary's."""
    column = dictionary.by_name.get(name)
    if column is None or column.kind != "categorical" or column.categories == categories:
        return np.asarray(codes, dtype=np.float64)
    place = {text: i for i, text in enumerate(column.categories)}
    used = np.unique(codes[np.isfinite(codes)]).astype(int)
    strangers = [categories[i] for i in used if categories[i] not in place]
    if strangers:
        raise DataError(
            f"column {name!r} holds {strangers[0]!r}, which the dictionary does not list"
        )
    new = np.array([*(place.get(text, np.nan) for text in categories), np.nan])
    return new[np.where(np.isfinite(codes), codes, -1).astype(np.int64)]


def _check_bounds(dictionary: Dictionary, values: FloatArray) -> None:
    for column, found in zip(dictionary.columns, values.T, strict=True):
        if not column.missing and np.isnan(found).any():
            raise DataError(f"column {column.name!r} has missing values", hint="missing = true")
        if column.bounds is not None:
            low, high = column.bounds
            if ((found < low) | (found > high)).any():
                raise DataError(f"column {column.name!r} has values outside {low:g} … {high:g}")


def _target_names(schema: Schema) -> tuple[str, ...]:
    """The columns of the target: as they were called, or y, y0, y1, …"""
    if schema.target == "none":
        return ()
    wanted = 1 if schema.target == "classes" else schema.outputs
    names = schema.target_names
    if len(names) != wanted:
        names = ("y",) if wanted == 1 else tuple(f"y{i}" for i in range(wanted))
    taken = {feature.name for feature in schema.features}
    return tuple(f"{name}_" if name in taken else name for name in names)


def _numbers(name: str, kind: Any, values: Array) -> DictionaryColumn:
    """A column of numbers or dates, with bounds that are rounded outwards."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    missing = len(known) < len(values)
    low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    step = 10.0 ** math.floor(math.log10(high - low)) if high > low else 1.0
    if kind == "date":
        step = max(step, 1.0)
    bounds = (_rounded(math.floor(low / step), step), _rounded(math.ceil(high / step), step))
    whole = bool((known == np.floor(known)).all())
    grid = 1.0 if whole or kind == "date" else float(f"{step / 100:.0e}")
    return DictionaryColumn(name, kind, bounds=bounds, grid=grid, missing=missing)


def _rounded(steps: int, step: float) -> float:
    return float(f"{steps * step:.12g}")


def _gaps(values: Array) -> bool:
    return not bool(np.isfinite(values).all())


def _dense(X: Any) -> FloatArray:
    if X.ndim != 2:
        raise DataError(
            f"X has the shape {X.shape}, a dictionary describes columns",
            hint="X.reshape(len(X), -1)",
        )
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)
