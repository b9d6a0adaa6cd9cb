"""What the rows of a federation look like: features, their kinds and categories, and the target."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from solera.core.errors import DataError, UsageError

Kind = Literal["numeric", "categorical", "date"]
_MOST_DAYS = 3_000_000  # about the year 10,000
_LARGE = 1e3  # from here on six digits are too few to tell neighbours apart
Unknown = Literal["error", "other"]
Target = Literal["classes", "labels", "numbers", "none"]
UNKNOWN = -1
"""In a matrix of labels: nobody knows whether the row has this one."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One column.

    A categorical column holds codes 0, 1, … into ``categories``, a date the days since 1970-01-01;
    NaN is missing. A numeric column with ``categories`` holds codes whose order counts.
    """

    name: str
    kind: Kind = "numeric"
    categories: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether it holds categories other than truth values, whose codes 0 and 1 are numbers."""
        return self.kind == "categorical" and self.categories != ("False", "True")

    @property
    def is_coded(self) -> bool:
        """Whether it holds codes of categories, which an encoder may have made numbers."""
        return self.kind == "categorical" or bool(self.categories)

    def text(self, value: float) -> str:
        """A value of the column in words: a date as such, a number in six digits or more."""
        if self.kind == "date" and abs(value) < _MOST_DAYS:
            return str(np.datetime64(int(np.floor(value)), "D"))
        return f"{value:.6g}" if abs(value) < _LARGE else f"{value:.12g}"


def numbered(width: int) -> tuple[Feature, ...]:
    """Numeric features x0, x1, … for data without names."""
    return tuple(Feature(f"x{i}") for i in range(width))


@dataclass(frozen=True)
class Schema:
    """Features and target that all clients of a federation share.

    ``target`` says how to read y: ``classes`` (one label per row, ``classes`` lists the values in
    the order of the model's outputs), ``labels`` (a 0/1 matrix, −1 where it is not known, one
    column per label), ``numbers`` (regression, ``outputs`` columns) or ``none``. ``target_names``
    are the columns of a frame that y was read from, where it was, and the names of labels.
    ``shape`` is that of a row which is no vector, such as an image.
    ``unknown`` says what a category that is not among those of its feature does in a frame: raise
    an ``error``, or count as an ``other`` one, which is to say as missing.
    """

    features: tuple[Feature, ...]
    target: Target = "none"
    classes: NDArray[Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    outputs: int = 0
    target_names: tuple[str, ...] = ()
    unknown: Unknown = "error"
    shape: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        return len(self.features)

    @property
    def label_names(self) -> tuple[str, ...]:
        """What labels are called: by their columns, or 0, 1, …"""
        return self.target_names or tuple(str(i) for i in range(self.outputs))

    @property
    def positive(self) -> str:
        """The class that counts as positive, the second of two; nothing where these are not two."""
        is_one_of_two = self.target == "classes" and len(self.classes) == 2
        return str(self.classes[1]) if is_one_of_two else ""

    def with_positive(self, positive: Any) -> Self:
        """The same with this one of two classes as the second; None leaves them as they are."""
        if positive is None or str(positive) == self.positive:
            return self
        names = [str(name) for name in self.classes.tolist()]
        if not self.positive or str(positive) not in names:
            raise UsageError(
                f"positive={positive!r} is not one of two classes: the target holds "
                f"{', '.join(names) if names else self.target}",
                hint=f"positive={names[0]!r}" if self.positive else "leave positive= out",
            )
        return replace(self, classes=self.classes[::-1].copy())

    def to_payload(self) -> dict[str, Any]:
        """The schema as plain data."""
        payload: dict[str, Any] = {
            "features": [[f.name, f.kind, list(f.categories)] for f in self.features],
            "target": self.target,
            "classes": self.classes,
            "outputs": self.outputs,
        }
        if self.target_names:
            payload["target_names"] = list(self.target_names)
        if self.unknown != "error":
            payload["unknown"] = self.unknown
        if self.shape:
            payload["shape"] = list(self.shape)
        return payload

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Self:
        features = tuple(Feature(n, k, tuple(c)) for n, k, c in payload["features"])
        return cls(
            features,
            payload["target"],
            np.asarray(payload["classes"]),
            payload["outputs"],
            tuple(payload.get("target_names", ())),
            payload.get("unknown", "error"),
            tuple(payload.get("shape", ())),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return self._plain() == other._plain() and np.array_equal(self.classes, other.classes)

    def _plain(self) -> tuple[Any, ...]:
        return self.features, self.target, self.outputs, self.target_names, self.unknown

    __hash__ = None  # type: ignore[assignment]


def class_codes(labels: Any, classes: NDArray[Any]) -> NDArray[np.int64]:
    """Positions of labels in the agreed list of classes; an unknown label is an error.

    The error does not say which label it is: the labels may be a client's own, and errors travel.
    """
    labels = np.asarray(labels)
    if _are_codes(labels, classes):
        return np.array(labels, dtype=np.int64)
    order = np.argsort(classes)
    places = np.searchsorted(classes, labels, sorter=order)
    codes = order[np.minimum(places, len(classes) - 1)] if len(classes) else places
    if len(labels) and (not len(classes) or (classes[codes] != labels).any()):
        raise DataError(
            f"a class of some row is not among the {len(classes)} agreed classes",
            hint="classes are agreed before training: fit all clients, or name them in a schema",
        )
    return np.asarray(codes, dtype=np.int64)


def class_values(names: tuple[str, ...]) -> NDArray[Any]:
    """What names of classes stand for: whole numbers, truth values or texts."""
    if {*names} <= {"False", "True"}:
        return np.array([name == "True" for name in names])
    whole = all(re.fullmatch(r"0|-?[1-9]\d{0,17}", name) for name in names)
    return np.array(names, dtype=np.int64 if whole else np.str_)


def _are_codes(labels: NDArray[Any], classes: NDArray[Any]) -> bool:
    """Whether classes are 0, 1, … and all labels among them, so that nothing is to be looked up."""
    whole = labels.dtype.kind in "iu" and classes.dtype.kind in "iu" and labels.size > 0
    if not whole or not np.array_equal(classes, np.arange(len(classes))):
        return False
    return bool(labels.min() >= 0 and labels.max() < len(classes))


def infer_target(y: Any) -> tuple[Target, NDArray[Any], int]:
    """Target kind, classes and number of outputs, read from y alone.

    Integers, booleans and text are class labels; floats are numbers, even when they are whole; an
    integer matrix of 0, 1 and −1 (unknown) holds labels.
    """
    if y is None:
        return "none", np.empty(0, dtype=np.int64), 0
    y = np.asarray(y)
    if y.ndim == 2:
        if y.dtype.kind in "bui" and y.size and y.min() >= UNKNOWN and y.max() <= 1:
            check_absent(y)
            return "labels", np.arange(y.shape[1]), y.shape[1]
        return "numbers", np.empty(0, dtype=np.int64), y.shape[1]
    if y.dtype.kind == "f":
        return "numbers", np.empty(0, dtype=np.int64), 1
    classes = np.unique(y)
    return "classes", classes, len(classes)


def check_absent(y: NDArray[Any]) -> None:
    """Refuse labels of 1 and −1 alone: −1 stands for absent there, and here for unknown."""
    if y.min() == UNKNOWN and y.max() == 1 and (y != 0).all():
        raise DataError(
            "labels are 1 and −1, and none is 0: −1 says that a label is unknown",
            hint="write 0 where a row does not have it: np.where(y < 0, 0, y)",
        )


def infer(X: Any, y: Any = None, *, features: Sequence[Feature | str] | None = None) -> Schema:
    """The schema of one data set in memory."""
    shape = tuple(map(int, X.shape[1:]))
    schema = Schema(numbered(math.prod(shape)), *infer_target(y), shape=shape_of(shape))
    if features is None:
        return schema
    named = (f if isinstance(f, Feature) else Feature(str(f)) for f in features)
    return replace(schema, features=tuple(named))


def shape_of(row: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a row that a schema says: nothing of a vector."""
    return row if len(row) > 1 else ()
