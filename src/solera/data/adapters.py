"""Data that other libraries hold: pandas frames, PyTorch data sets, Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import FloatArray
from solera.core.constraints import Count, check_arguments
from solera.core.errors import DataError, UsageError
from solera.core.schema import Feature, Target, infer_target, numbered
from solera.data.dataset import Dataset, make_schema
from solera.data.files import require_pandas

_SHOW_PROGRESS = 10_000  # rows read one by one
_FREE_TEXT = 100  # different texts a short column may have


def from_pandas(frame: Any, *, target: str | Sequence[str] | None = None) -> Dataset:
    """A pandas frame as a :class:`Dataset` without test rows.

    Text, booleans and categories become codes, in alphabetical order or that of the category
    dtype; use the latter where several owners must agree on codes. Missing values become NaN.
    A target of text, booleans, categories or integers holds classes, one of floats holds numbers;
    several target columns hold labels (0/1) or numbers.
    """
    pandas = require_pandas("from_pandas")
    if not isinstance(frame, pandas.DataFrame):
        raise UsageError(f"from_pandas needs a pandas DataFrame, not {type(frame).__name__}")
    return _from_frame("pandas", frame, target)


def from_torch(dataset: Any, *, limit: Count | None = None, flat: bool = True) -> Dataset:
    """A map-style PyTorch data set of pairs (x, y), or its first ``limit`` rows.

    Each x becomes one row of X (``flat=False`` keeps its shape), each y a class (integer), a
    number (float), or a vector of labels (0/1 integers) or numbers.
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
        pairs = [dataset[i] for i in _tracked(range(rows))]
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise DataError("the rows of the data set are not pairs (x, y)")
        X = _stacked("x", (pair[0] for pair in pairs))
        y = _stacked("y", (pair[1] for pair in pairs))
    width = int(np.prod(X.shape[1:]))
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
    return _whole("torch", X, y, numbered(width), kind, outputs, class_names)


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
    answers = _listed(target)
    chosen = [n for n in known if n not in answers] if features is None else list(features)
    _check_names([*chosen, *answers], known)
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


def _from_frame(origin: str, frame: Any, target: str | Sequence[str] | None) -> Dataset:
    if not frame.columns.is_unique:
        raise DataError("the frame has several columns of one name")
    answers = _listed(target)
    _check_names(answers, frame.columns)
    columns = [_column(frame[name]) for name in frame.columns if name not in answers]
    if not columns:
        raise DataError("there is no column to learn from besides the target")
    X = np.column_stack([values for values, _ in columns])
    features = tuple(feature for _, feature in columns)
    if not answers:
        return _whole(origin, X, None, features, "none", 0, ())
    if isinstance(target, str):
        y, kind, class_names = _one_answer(frame[target])
    else:
        y, kind, class_names = _answers([frame[name] for name in answers])
    outputs = len(class_names) or (y.shape[1] if y.ndim == 2 else 1)
    return _whole(origin, X, y, features, kind, outputs, class_names)


def _column(series: Any) -> tuple[FloatArray, Feature]:
    """A column as numbers or codes, NaN where missing."""
    from pandas import CategoricalDtype
    from pandas.api import types

    name, series = str(series.name), _typed(series)
    if types.is_bool_dtype(series.dtype):
        codes = series.astype("boolean").to_numpy(dtype=np.float64, na_value=np.nan)
        return codes, Feature(name, "categorical", ("False", "True"))
    if types.is_numeric_dtype(series.dtype) and not types.is_complex_dtype(series.dtype):
        return series.to_numpy(dtype=np.float64, na_value=np.nan), Feature(name)
    if not isinstance(series.dtype, CategoricalDtype):
        series = _categories(name, series)
    codes = series.cat.codes.to_numpy().astype(np.float64)
    codes[codes < 0] = np.nan
    categories = tuple(str(category) for category in series.cat.categories)
    return codes, Feature(name, "categorical", categories)


def _typed(series: Any) -> Any:
    """A column of Python objects with the type its values share, if they do."""
    series = series.infer_objects()
    return series.convert_dtypes() if series.dtype == object else series


def _categories(name: str, series: Any) -> Any:
    from pandas.api import types

    what = types.infer_dtype(series)
    if what not in ("string", "empty"):
        hint = "leave it out, or turn it into numbers, text or a category first"
        if what.startswith(("date", "time", "period")):
            hint = "turn dates into numbers first, such as days since a fixed day"
        raise DataError(f"column {name!r} holds {what} values", hint=hint)
    series = series.astype("category")
    if len(series.cat.categories) > max(_FREE_TEXT, len(series) // 2):
        raise DataError(
            f"column {name!r} holds {len(series.cat.categories):,} different texts in "
            f"{len(series):,} rows",
            hint="leave free text and identifiers out, or make it a category dtype",
        )
    return series


def _one_answer(series: Any) -> tuple[NDArray[Any], Target, tuple[str, ...]]:
    from pandas.api import types

    values, feature = _complete(series)
    if feature.kind == "categorical":
        return values.astype(np.int64), "classes", feature.categories
    if not types.is_integer_dtype(_typed(series).dtype):
        return values, "numbers", ()
    distinct, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64), "classes", tuple(f"{value:.0f}" for value in distinct)


def _answers(columns: Sequence[Any]) -> tuple[NDArray[Any], Target, tuple[str, ...]]:
    from pandas.api import types

    read = [_complete(series) for series in columns]
    y = np.column_stack([values for values, _ in read])
    dtypes = [_typed(series).dtype for series in columns]
    whole = all(types.is_bool_dtype(d) or types.is_integer_dtype(d) for d in dtypes)
    if whole and np.isin(y, (0, 1)).all():
        return y.astype(np.uint8), "labels", tuple(feature.name for _, feature in read)
    for _, feature in read:
        if feature.kind == "categorical":
            raise DataError(f"target column {feature.name!r} holds neither 0/1 labels nor numbers")
    return y, "numbers", ()


def _complete(series: Any) -> tuple[FloatArray, Feature]:
    values, feature = _column(series)
    missing = int(np.isnan(values).sum())
    if missing:
        raise DataError(
            f"target column {feature.name!r} has {missing} missing values",
            hint="leave these rows out",
        )
    return values, feature


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


def _tracked(rows: range) -> Iterable[int]:
    if len(rows) < _SHOW_PROGRESS:
        return rows
    from rich.console import Console
    from rich.progress import track

    return track(rows, "Reading rows", console=Console(stderr=True), transient=True)


def _listed(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _check_names(wanted: Iterable[str], known: Iterable[Any]) -> None:
    names = list(known)
    for name in wanted:
        if name not in names:
            shown = ", ".join(map(str, names[:20]))
            raise DataError(f"there is no column {name!r}", hint=f"there are {shown}")


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
