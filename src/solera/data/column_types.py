"""What columns of frames are, by what they hold: seen at once, or piece by piece.

A frame in memory is one piece. Of files larger than memory every piece is looked at once and only
what tells the kind of a column is kept: its type, and the texts of a category.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import FloatArray
from solera.core.errors import DataError
from solera.core.schema import UNKNOWN, Feature, Kind, Target, check_absent
from solera.data.frames import (
    category_text,
    category_texts,
    encode_column,
    sparse_rows,
    typed,
)

_FREE_TEXT = 100  # different texts a short column may have
_MANY_TEXTS = 10_000  # so many, and the rest of the rows is not waited for
_DATE = r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
_WORDS = {"bool": "truth values", "number": "numbers", "date": "dates", "text": "text"}


class Column:
    """One column, as the pieces that were added show it; ``kind`` where it does not go by itself.

    With ``values``, the distinct ones of whole numbers and labels are kept, as a target needs.
    """

    def __init__(self, name: str, kind: Kind | None = None, *, values: bool = False) -> None:
        self.name = name
        self.declared = kind
        self.whole = True
        """Whether all values are integers or truth values by their type."""
        self.complete = True
        """Whether no value is missing or infinite."""
        self.is_label = True
        """Whether all values are 0, 1 or −1, as far as they are known."""
        self.values: set[float] = set()
        self._keeps_values = values
        self._rows = 0
        self._what = ""
        self._seen_in = ""
        self._missing_as = "text"
        self._order: tuple[str, ...] | None = None
        self._texts: set[str] = set()

    def add(self, series: Any, where: str = "the frame") -> None:
        """Look at more values."""
        self._rows += len(series)
        dtype = series.dtype
        if isinstance(dtype, np.dtype) and dtype.kind in "iuf":  # most columns, without pandas
            values = series.to_numpy()
            what, known = "number", dtype.kind != "f" or not np.isnan(values).all()
            self.complete &= dtype.kind != "f" or bool(np.isfinite(values).all())
        else:
            series = typed(series)
            what, present = _what(self.name, series), series.notna()
            known = bool(present.any())
            self.complete &= bool(present.all())
        self.whole &= is_whole(series)
        if not known:
            self._missing_as = what
        elif not self._what or self._what == what:
            self._what, self._seen_in = what, self._seen_in or where
        elif self.declared is None:
            raise DataError(
                f"{where}: column {self.name!r} holds {_WORDS[what]}, "
                f"{_WORDS[self._what]} in {self._seen_in}",
                hint=f"kinds={{{self.name!r}: 'categorical'}} reads both as text",
            )
        if self._keeps_values and known:
            countable = what in ("number", "bool")
            values = set(series.dropna().astype(float).unique().tolist()) if countable else {np.nan}
            self.is_label &= values <= {float(UNKNOWN), 0.0, 1.0}
            if countable and (self.whole or self.is_label):
                self.values |= values
        if self.kind == "categorical":
            self._add_categories(series, what, known)

    @property
    def kind(self) -> Kind:
        """What the column is."""
        if self.declared is not None:
            return self.declared
        what = self._what or self._missing_as
        return {"number": "numeric", "date": "date"}.get(what, "categorical")  # type: ignore[return-value]

    def feature(self) -> Feature:
        """The column as a schema names it."""
        if self.kind != "categorical":
            return Feature(self.name, self.kind)
        self._check_texts(_FREE_TEXT)
        return Feature(self.name, "categorical", self._categories())

    def _add_categories(self, series: Any, what: str, known: bool) -> None:
        from pandas import CategoricalDtype

        order: tuple[str, ...] | None = None
        if isinstance(series.dtype, CategoricalDtype):
            order = tuple(dict.fromkeys(map(category_text, series.cat.categories)))
        elif what == "bool":
            order = ("False", "True")
        elif not known:
            return
        if not self._texts:
            self._order = order
        elif order != self._order:
            self._order = None
        self._texts.update(order if order is not None else set(category_texts(series)) - {None})
        self._check_texts(_MANY_TEXTS)

    def _categories(self) -> tuple[str, ...]:
        """In the order of a category dtype, of numbers, or of the alphabet."""
        if self._order is not None:
            return self._order
        by_number = self._what == "number"
        return tuple(sorted(self._texts, key=float) if by_number else sorted(self._texts))

    def _check_texts(self, few: int) -> None:
        texts = len(self._texts)
        free = self.declared is None and self._order is None and self._what == "text"
        if free and texts > max(few, self._rows // 2):
            raise DataError(
                f"column {self.name!r} holds {texts:,} different texts in {self._rows:,} rows",
                hint="leave free text and identifiers out, or make it a category dtype",
            )


def _what(name: str, series: Any) -> str:
    """Numbers, truth values, dates or text, whatever types pandas has for each."""
    from pandas import CategoricalDtype
    from pandas.api import types

    if types.is_bool_dtype(series.dtype):
        return "bool"
    if isinstance(series.dtype, CategoricalDtype):
        return "text"
    if types.is_numeric_dtype(series.dtype) and not types.is_complex_dtype(series.dtype):
        return "number"
    inferred = types.infer_dtype(series)
    if inferred == "decimal":
        return "number"
    if inferred in ("date", "datetime", "datetime64") or _reads_as_dates(series, inferred):
        return "date"
    if inferred not in ("string", "empty"):
        hint = "leave it out, or turn it into numbers, text or a category first"
        if inferred.startswith(("time", "period")):
            hint = "turn it into numbers first, such as days"
        raise DataError(f"column {name!r} holds {inferred} values", hint=hint)
    return "text"


def _reads_as_dates(series: Any, inferred: str) -> bool:
    """Whether it is text, and all of it dates as ISO 8601 writes them."""
    if inferred != "string":
        return False
    known = series.dropna().astype(str)
    return bool(len(known)) and bool(known.str.fullmatch(_DATE).all())


def is_whole(series: Any) -> bool:
    """Whether all its values are integers or truth values by their type."""
    from pandas.api import types

    return bool(types.is_integer_dtype(series.dtype) or types.is_bool_dtype(series.dtype))


def read_column(series: Any, kind: Kind | None = None) -> tuple[FloatArray, Feature]:
    """A column as numbers or codes, NaN where missing; ``kind`` where it does not go by itself."""
    column = Column(str(series.name), kind)
    column.add(series)
    feature = column.feature()
    return encode_column(series, feature), feature


def read_frame(
    frame: Any, names: Sequence[str], kinds: Mapping[str, Kind]
) -> tuple[Any, tuple[Feature, ...]]:
    """These columns of a pandas frame, and what they are."""
    if not kinds and (sparse := sparse_rows(frame, names)) is not None:
        return sparse, tuple(Feature(name) for name in names)
    columns = [read_column(frame[name], kinds.get(name)) for name in names]
    return np.column_stack([values for values, _ in columns]), tuple(f for _, f in columns)


# --- what is to be predicted ---


@dataclass(frozen=True)
class Answer:
    """How columns of a frame become y: codes of classes, labels (0, 1, −1), or numbers."""

    features: tuple[Feature, ...]
    kind: Target
    class_names: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    """The whole numbers that are the classes, where these are numbers."""
    single: bool = True

    @classmethod
    def of(cls, columns: Sequence[Column], *, single: bool) -> Answer:
        """What columns that were looked at with their ``values`` mean as a target.

        Text, categories, truth values and integers are classes, other numbers are numbers; several
        columns hold labels (0, 1, and −1 or nothing where it is not known) or numbers.
        """
        features = tuple(column.feature() for column in columns)
        if not columns:
            return cls((), "none", single=False)
        if not single:
            if all(c.is_label for c in columns):
                values = np.array([value for c in columns for value in c.values])
                if not (values >= 0).any():
                    raise DataError("no label of any row is known")
                check_absent(values)
                return cls(features, "labels", tuple(f.name for f in features), single=False)
            for feature in features:
                if feature.kind == "categorical":
                    raise DataError(
                        f"target column {feature.name!r} holds neither 0/1 labels nor numbers",
                        hint=f"true and false become 1.0 and 0.0 by df[{feature.name!r}]"
                        ".astype(float)",
                    )
            return cls(features, "numbers", single=False)
        (column,) = columns
        if features[0].kind == "categorical":
            return cls(features, "classes", features[0].categories)
        if column.declared is not None or not column.whole:
            return cls(features, "numbers")
        distinct = tuple(sorted(column.values))
        return cls(features, "classes", tuple(f"{value:.0f}" for value in distinct), distinct)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.features)

    @property
    def outputs(self) -> int:
        return len(self.class_names) or len(self.features)

    def read(self, frame: Any) -> NDArray[Any] | None:
        """y of the rows of a frame; a missing value is an unknown label, or an error."""
        if self.kind == "none":
            return None
        if self.kind == "labels":
            return np.column_stack([_labels(frame, feature) for feature in self.features])
        columns = [_complete(frame[feature.name], feature) for feature in self.features]
        y: NDArray[Any] = columns[0] if self.single else np.column_stack(columns)
        if self.kind == "numbers":
            return y
        if self.values:
            return np.searchsorted(np.array(self.values), y).astype(np.int64)
        return y.astype(np.int64)


def _labels(frame: Any, feature: Feature) -> NDArray[Any]:
    """A label of every row; it is unknown in a frame without the column."""
    if feature.name not in frame.columns:
        return np.full(len(frame), UNKNOWN, dtype=np.int8)
    values = encode_column(frame[feature.name], feature)
    return np.nan_to_num(values, nan=UNKNOWN).astype(np.int8)


def _complete(series: Any, feature: Feature) -> FloatArray:
    values = encode_column(series, feature)
    missing = int(np.isnan(values).sum())
    if missing:
        raise DataError(
            f"target column {feature.name!r} has {missing} missing values",
            hint="leave these rows out",
        )
    return values
