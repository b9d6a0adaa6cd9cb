"""Columns of frames as numbers and codes: by what they hold, or by a schema that was agreed before.

A frame is pandas's, or any that speaks Arrow's PyCapsule interface: of polars, pyarrow or DuckDB.

    numbers, nullable integers        numeric: as they are
    dates, times, text such as        date: days since 1970-01-01, UTC
      2024-05-31 or 2024-05-31 14:00
    text, booleans, categories        categorical: a code for every text

Missing values become NaN. The first frame decides what a column is; every frame after it is read by
the schema that came of it, so that a text means the same code whatever else its frame holds.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import FloatArray
from solera.core.errors import DataError, MissingExtra
from solera.core.schema import UNKNOWN, Feature, Schema, Unknown, numbered
from solera.data.files import require_pandas

_SHOWN = 6


def is_frame(X: Any) -> bool:
    """Whether it is a table with named columns, of whichever library."""
    if hasattr(X, "iloc"):
        return hasattr(X, "columns")
    return hasattr(X, "__arrow_c_stream__") and (hasattr(X, "columns") or hasattr(X, "schema"))


def to_pandas(frame: Any) -> Any:
    """The frame as pandas's own, its columns named by text."""
    pandas = require_pandas("a data frame")
    if not isinstance(frame, pandas.DataFrame):
        try:
            import pyarrow
        except ImportError:
            raise MissingExtra.of(f"a frame of {type(frame).__module__}", "arrow") from None
        frame = pyarrow.table(frame).to_pandas()
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    repeated = frame.columns[frame.columns.duplicated()].unique()
    if len(repeated):
        raise DataError(f"several columns are called {some_of(map(repr, repeated))}")
    return frame


# --- values and their texts ---


def typed(series: Any) -> Any:
    """A column of Python objects with the type its values share, if they do; a sparse one whole."""
    if hasattr(series.dtype, "fill_value"):
        series = series.sparse.to_dense()
    series = series.infer_objects()
    return series.convert_dtypes() if series.dtype == object else series


def category_text(value: Any) -> str:
    """How a category reads: 3, 3.0 and "3" are the same one."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return f"{value:.0f}"
    return str(value)


def category_texts(series: Any) -> NDArray[Any]:
    """Every value as the text of its category, None where missing."""
    codes, values = series.factorize()
    names = np.array([*(category_text(value) for value in values), None], dtype=object)
    texts: NDArray[Any] = names[np.asarray(codes)]
    return texts


# --- a column by what it was agreed to be ---


def encode_column(series: Any, feature: Feature, unknown: Unknown = "error") -> FloatArray:
    """A column as the numbers or codes of an agreed feature, NaN where missing."""
    if feature.kind == "categorical":
        return _codes(series, feature, unknown)
    return _days(series, feature.name) if feature.kind == "date" else _numbers(series, feature.name)


def _codes(series: Any, feature: Feature, unknown: Unknown) -> FloatArray:
    codes, values = typed(series).factorize()
    place = {name: code for code, name in enumerate(feature.categories)}
    texts = [category_text(value) for value in values]
    strangers = [text for text in texts if text not in place]
    if strangers and unknown == "error":
        raise DataError(
            f"column {feature.name!r} holds {some_of(map(repr, strangers))}, which was not there "
            f"in training; known are {some_of(map(repr, feature.categories)) or 'none'}",
            hint='with unknown="other" in so.simulate such a value counts as missing',
        )
    table = np.array([place.get(text, np.nan) for text in texts] + [np.nan], dtype=np.float64)
    found: FloatArray = table[np.asarray(codes)]
    return found


def _numbers(series: Any, name: str) -> FloatArray:
    from pandas import to_numeric
    from pandas.api import types

    series = typed(series)
    if _is_plain(series.dtype):
        return np.asarray(series.to_numpy(dtype=np.float64))
    if types.is_datetime64_any_dtype(series.dtype) or types.is_timedelta64_dtype(series.dtype):
        raise DataError(f"column {name!r} holds {series.dtype} values, numbers are needed")
    if not types.is_numeric_dtype(series.dtype):
        read = to_numeric(series.astype(object), errors="coerce")
        wrong = series[read.isna() & series.notna()]
        if len(wrong):
            raise DataError(f"column {name!r} holds {wrong.iloc[0]!r}, numbers are needed")
        series = read
    values: FloatArray = series.astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
    return values


def _days(series: Any, name: str) -> FloatArray:
    """Days since 1970-01-01 in UTC, with their fractions."""
    from pandas import to_datetime
    from pandas.api import types

    series = typed(series)
    if types.is_numeric_dtype(series.dtype) and series.notna().any():
        raise DataError(
            f"column {name!r} holds numbers, dates are needed",
            hint="write dates as 2024-05-31, or give the column a date dtype",
        )
    dates = to_datetime(series.astype(object), utc=True, errors="coerce", format="ISO8601")
    wrong = series[dates.isna() & series.notna()]
    if len(wrong):
        raise DataError(
            f"column {name!r} holds {wrong.iloc[0]!r}, dates are needed", hint="write 2024-05-31"
        )
    micros = dates.to_numpy(dtype="datetime64[us]")
    days: FloatArray = micros.astype(np.int64) / (24 * 3600 * 1e6)
    return np.where(np.isnat(micros), np.nan, days)


def encode_frame(frame: Any, schema: Schema) -> Any:
    """The rows of a frame as the columns of a schema, whatever their order in the frame.

    Sparse columns become a CSR matrix. Columns that the schema does not name are passed over. A
    frame for a schema without names, as that of arrays is, is read by position.
    """
    frame = to_pandas(frame)
    features = schema.features
    if features == numbered(len(features)) and not {f.name for f in features} & {*frame.columns}:
        features = tuple(Feature(name) for name in frame.columns)
    names = [feature.name for feature in features]
    check_columns(names, frame.columns)
    numeric = all(feature.kind == "numeric" for feature in features)
    if numeric and (sparse := sparse_rows(frame, names)) is not None:
        return sparse
    types = dict(frame.dtypes)
    plain = [f.name for f in features if f.kind == "numeric" and _is_plain(types[f.name])]
    if len(plain) == len(features):  # at once: many times faster than column by column
        return np.ascontiguousarray(frame[plain].to_numpy(dtype=np.float64))
    columns = [encode_column(frame[f.name], f, schema.unknown) for f in features]
    return np.column_stack(columns)


def sparse_rows(frame: Any, names: Sequence[str]) -> Any:
    """These columns as a CSR matrix, where all are sparse with 0 in between; None otherwise."""
    types = dict(frame.dtypes)
    if all(getattr(types[name], "fill_value", None) == 0 for name in names):
        return frame[list(names)].sparse.to_coo().tocsr()
    return None


def _is_plain(dtype: Any) -> bool:
    """Whether it is a type of numbers that NumPy itself has."""
    return isinstance(dtype, np.dtype) and dtype.kind in "iuf"


def check_columns(wanted: Sequence[str], known: Sequence[str]) -> None:
    """Raise :class:`DataError` for columns that are not there, each with the nearest name."""
    known = [str(name) for name in known]
    absent = [name for name in wanted if name not in known]
    if not absent:
        return
    nearest = {name: get_close_matches(name, known, n=1) for name in absent}
    meant = [f"{found[0]!r} for {name!r}" for name, found in nearest.items() if found]
    hint = f"there are {some_of(known, 20)}"
    if meant:
        hint = f"did you mean {some_of(meant)}? {hint}"
    raise DataError(f"there is no column {some_of(map(repr, absent))}", hint=hint)


def encode_target(y: Any, schema: Schema) -> NDArray[Any]:
    """y as an array that can be compared with predictions.

    One column of classes, or of one number, is a vector. Text where the classes are numbers, or
    numbers where they are text, is an error: nothing would ever match.
    """
    values = target_array(y)
    single = schema.target == "classes" or (schema.target, schema.outputs) == ("numbers", 1)
    if single and values.shape[1:] == (1,):
        values = values[:, 0]
    if schema.target == "labels" and (
        values.shape[1:] != (schema.outputs,) or not np.isin(values, (UNKNOWN, 0, 1)).all()
    ):
        raise DataError(
            f"y has the shape {values.shape}, {schema.outputs} labels per row are needed, each 0, "
            "1 or −1, which is unknown"
        )
    if schema.target != "classes" or not values.size:
        return values
    if values.ndim > 1:
        raise DataError(f"y has the shape {values.shape}, one class per row is needed")
    is_text = values.dtype.kind == "U"
    if is_text != (schema.classes.dtype.kind in "US"):
        raise DataError(
            f"y holds {values.flat[0].item()!r}, the classes are "
            f"{some_of(repr(c) for c in schema.classes.tolist())}",
            hint="so.simulate(dataset) and so.simulate(frame, target=…) keep the names of classes; "
            "dataset.with_class_names() has y and y_test with them",
        )
    return values


def target_array(y: Any, name: str = "y") -> NDArray[Any]:
    """A target (array, list, or column of a frame) as an array; labels are −1 where unknown."""
    if is_frame(y):
        y = to_pandas(y)
    values = np.asarray(y)
    if not values.ndim:
        raise DataError(
            f"{name} is {y!r}, a target has one value for every row",
            hint="so.simulate(frame, target=…) names the column of a frame",
        )
    if values.dtype.kind == "T":  # NumPy's strings of any length
        values = values.astype(object)
    missing = _missing(values)
    if missing.any() and values.ndim == 2 and _are_labels(values, missing):
        return np.where(missing, UNKNOWN, values).astype(np.int8)
    if missing.any():
        rows = np.flatnonzero(missing.reshape(len(missing), -1).any(axis=1))
        raise DataError(
            f"{name} is missing or infinite in {len(rows):,} of {len(missing):,} rows, "
            f"the first is row {rows[0]}",
            hint="leave these rows out",
        )
    if values.dtype.kind in "OS":
        kinds = {type(value) for value in values.flat}
        if kinds and all(issubclass(kind, numbers.Number) for kind in kinds):
            return np.array(values.tolist())  # as a nullable column of pandas holds them
        values = values.astype(str)
    if values.dtype.kind != "U" or values.ndim < 2:
        return values
    if values.shape[1:] != (1,):
        raise DataError(
            f"{name} holds text and has the shape {values.shape}, one class per row is needed",
            hint="several labels are a matrix of 0 and 1",
        )
    return values[:, 0]


def _are_labels(values: NDArray[Any], missing: NDArray[np.bool_]) -> bool:
    """Whether several columns hold 0, 1 and −1, and gaps that are not infinite."""
    infinite = values.dtype.kind == "f" and np.isinf(values).any()
    labels = np.isin(values[~missing], (UNKNOWN, 0, 1)).all()
    return bool(labels) and not infinite and values.shape[1] > 1


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind == "f":
        return np.asarray(~np.isfinite(values), dtype=np.bool_)
    if values.dtype.kind != "O":
        return np.zeros(values.shape, dtype=np.bool_)
    missing: list[bool] = [_is_missing(value) for value in values.flat]
    return np.array(missing, dtype=np.bool_).reshape(values.shape)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float | np.floating):
        return not np.isfinite(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def some_of(words: Any, most: int = _SHOWN) -> str:
    words = list(words)
    return ", ".join(words[:most]) + (", …" if len(words) > most else "")
