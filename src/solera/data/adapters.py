"""Data that other libraries hold: pandas frames, PyTorch data sets, Hugging Face data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.constraints import Count, check_arguments, check_values, names_checked
from solera.core.errors import DataError, UsageError
from solera.core.schema import (
    Feature,
    Kind,
    Target,
    Unknown,
    infer_target,
    numbered,
    shape_of,
)
from solera.data.column_types import Answer, Column, read_frame
from solera.data.dataset import Dataset, make_schema
from solera.data.files import require_pandas
from solera.data.frames import check_columns, is_frame, target_array, to_pandas

_CHANNELS = (1, 3, 4)
_SHOW_PROGRESS = 2_000  # rows or files read one by one


@names_checked
def from_pandas(
    frame: Any,
    *,
    target: str | Sequence[str] | None = None,
    group: str | None = None,
    columns: Sequence[str] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    unknown: Unknown = "error",
) -> Dataset:
    """A frame of pandas, polars, pyarrow or DuckDB as a :class:`Dataset` without test rows.

    Text, booleans and categories become codes, in alphabetical order or that of the category
    dtype; use the latter where several owners must agree on codes. Dates become days since
    1970-01-01, missing values NaN. A target of text, booleans, categories or integers holds
    classes, one of floats holds numbers; several target columns hold labels or numbers. A label is
    1 where a row has it, 0 where it has not, and −1 or missing where nobody knows.

    Parameters
    ----------
    target: the column, or columns, to predict.
    group: the column that says whose row it is; it is no feature, but in ``groups``.
    columns: the features, in this order; all other columns by default.
    kinds: ``"numeric"``, ``"categorical"`` or ``"date"`` for columns that are not what they seem,
        such as numbers that are codes.
    unknown: what a category that is not in this frame does in a later one: raise an ``"error"``,
        or count as an ``"other"`` one, which is to say as missing.
    """
    require_pandas("from_pandas")
    if not is_frame(frame):
        raise UsageError(
            f"from_pandas needs a pandas DataFrame or another data frame, "
            f"not {type(frame).__name__}"
        )
    check_arguments(from_pandas, unknown=unknown)
    check_values("from_pandas", dict.fromkeys(kinds or {}, Kind), kinds or {})
    return _from_frame("pandas", to_pandas(frame), target, group, columns, kinds or {}, unknown)


def from_torch(dataset: Any, *, limit: Count | None = None, flat: bool = True) -> Dataset:
    """A map-style PyTorch data set of pairs (x, y), or its first ``limit`` rows.

    Each x becomes one row of X, an image height × width × channels as ``so.nn`` reads them
    (``flat=False`` keeps its shape), each y a class (integer), a number (float), or a vector of
    labels (0/1 integers) or numbers. Classes are in the order of the data set's ``classes``.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UsageError(
            f"from_torch needs a map-style data set, not {type(dataset).__name__}",
            hint="it must have a length and give its rows by number",
        )
    check_arguments(from_torch, limit=limit)
    rows = len(dataset) if limit is None else min(limit, len(dataset))
    if rows == 0:
        raise DataError("the data set has no rows")
    tensors = getattr(dataset, "tensors", None)
    if tensors is not None and len(tensors) == 2:
        X, y = (_array(tensor[:rows]) for tensor in tensors)
    else:
        pairs = [dataset[i] for i in tracked(range(rows), "Reading rows")]
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise DataError("the rows of the data set are not pairs (x, y)")
        X = _stacked("x", (pair[0] for pair in pairs))
        y = _stacked("y", (pair[1] for pair in pairs))
    width = int(np.prod(X.shape[1:]))
    if flat and X.ndim == 4 and X.shape[1] in _CHANNELS and X.shape[3] not in _CHANNELS:
        X = X.transpose(0, 2, 3, 1)  # PyTorch has channels first
    X = X.reshape(rows, width) if flat else X
    X = X if X.dtype == np.float64 else X.astype(np.float32)
    kind, values, outputs = infer_target(y)
    class_names: tuple[str, ...] = ()
    if kind == "classes":
        names = getattr(dataset, "classes", None)
        if names is None or y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= len(names):
            y, names = np.searchsorted(values, y), values.tolist()
        y, class_names, outputs = y.astype(np.int64), tuple(map(str, names)), len(names)
    elif kind == "labels":
        y, class_names = y.astype(np.uint8), tuple(str(i) for i in range(outputs))
    else:
        y = y.astype(np.float64)
    whole = _whole("torch", X, y, numbered(width), kind, outputs, class_names)
    schema = dataclasses.replace(whole.schema, shape=shape_of(X.shape[1:]))
    return dataclasses.replace(whole, schema=schema, ordered=True)


def from_huggingface(
    dataset: Any,
    *,
    features: Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
) -> Dataset:
    """One split of a Hugging Face data set; ``features`` are all columns but the target's.

    Columns are read as by :func:`from_pandas`, class labels by their names. A column of images,
    arrays or lists of one size becomes one feature per element.
    """
    pandas = require_pandas("from_huggingface")
    if isinstance(dataset, dict) or not hasattr(dataset, "to_pandas"):
        raise UsageError(
            f"from_huggingface needs one data set in memory, not {type(dataset).__name__}",
            hint="choose a split, such as dataset['train']",
        )
    known = dataset.features
    answers = listed(target)
    chosen = [n for n in known if n not in answers] if features is None else list(features)
    check_columns([*chosen, *answers], list(known))
    parts = {name: _part(pandas, dataset, name) for name in [*chosen, *answers]}
    if isinstance(target, str) and target in parts[target].columns:
        wanted: str | list[str] = target
    else:
        wanted = [column for name in answers for column in parts[name].columns]
    return _from_frame("huggingface", pandas.concat(parts.values(), axis=1), wanted)


def _part(pandas: Any, dataset: Any, name: str) -> Any:
    """One column as a frame: as it is, by the names of its classes, or one column per element."""
    kind = dataset.features[name]
    if type(kind).__name__ not in ("Value", "ClassLabel"):
        rows = _stacked(name, dataset[name])
        rows = rows.reshape(len(rows), -1)
        return pandas.DataFrame(rows, columns=[f"{name}[{i}]" for i in range(rows.shape[1])])
    frame = dataset.select_columns([name]).to_pandas()
    if type(kind).__name__ == "ClassLabel":
        codes = frame[name].fillna(-1).astype(int)
        frame[name] = pandas.Categorical.from_codes(codes, kind.names)
    return frame


def _from_frame(
    origin: str,
    frame: Any,
    target: str | Sequence[str] | None,
    group: str | None = None,
    columns: Sequence[str] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    unknown: Unknown = "error",
) -> Dataset:
    answers = listed(target)
    aside = {*answers, *listed(group)}
    kinds = kinds or {}
    check_columns([*answers, *listed(group), *(columns or ()), *kinds], frame.columns)
    chosen = [c for c in (columns or frame.columns) if c not in aside]
    if not chosen:
        raise DataError("there is no column to learn from besides the target")
    X, features = read_frame(frame, chosen, kinds)
    seen = [Column(name, kinds.get(name), values=True) for name in answers]
    for column in seen:
        column.add(frame[column.name])
    answer = Answer.of(seen, single=isinstance(target, str))
    y = answer.read(frame)
    whole = _whole(origin, X, y, features, answer.kind, answer.outputs, answer.class_names)
    groups = {} if group is None else {group: target_array(frame[group], f"column {group!r}")}
    named = answer.names if answer.kind == "labels" else ()
    schema = dataclasses.replace(whole.schema, unknown=unknown, target_names=named)
    return dataclasses.replace(whole, groups=groups, target_names=tuple(answers), schema=schema)


def _stacked(name: str, cells: Iterable[Any]) -> NDArray[Any]:
    arrays = [_array(cell) for cell in cells]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(f"{name} has rows of different shapes: {sorted(shapes)[:3]}")
    stacked = np.stack(arrays) if arrays else np.empty((0, 0))
    if stacked.dtype.kind not in "biuf":
        raise DataError(f"{name} holds {type(arrays[0]).__name__}s of {stacked.dtype}, not numbers")
    return stacked


def _array(value: Any) -> NDArray[Any]:
    """A tensor (from whatever device), picture, list or number as an array."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def tracked(rows: range, title: str) -> Iterable[int]:
    """The numbers, with a progress bar where they are many."""
    if len(rows) < _SHOW_PROGRESS:
        return rows
    from rich.console import Console
    from rich.progress import track

    return track(rows, title, console=Console(stderr=True), transient=True)


def listed(names: str | Sequence[str] | None) -> list[str]:
    """One name, several or none as a list."""
    return [names] if isinstance(names, str) else list(names or ())


def _whole(
    origin: str,
    X: Any,
    y: Any,
    features: tuple[Feature, ...],
    kind: Target,
    outputs: int,
    class_names: tuple[str, ...],
) -> Dataset:
    """A data set without test rows."""
    return Dataset(
        X=X,
        y=y,
        X_test=X[:0],
        y_test=None if y is None else y[:0],
        schema=make_schema(features, kind, outputs),
        name=origin,
        title=f"rows from {origin}",
        source=origin,
        class_names=class_names,
    )
