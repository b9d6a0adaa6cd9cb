"""Other transformers for other columns, in the manner of scikit-learn's ``ColumnTransformer``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np

from solera.core.clients import IntArray
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.schema import Feature, Schema
from solera.data.frames import check_columns
from solera.learn.base import Transformer
from solera.learn.conditions import Condition
from solera.learn.named_steps import as_tuples, set_named, with_named

Columns = Sequence[str] | Sequence[int] | str
"""Names or numbers of columns, or a kind: all columns that are ``"numeric"``, say."""
_KINDS = ("numeric", "categorical", "date")


class FedSelect(Transformer):
    """Some of the columns, in this order.

    ``columns`` are names or numbers, or ``"numeric"``, ``"categorical"`` or ``"date"`` for all
    columns of that kind.
    """

    keeps_atoms = True
    chosen_: IntArray

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def train(self, federation: Federation) -> None:
        """The columns are in the schema."""
        self.chosen_ = positions(self.columns, self.schema_)

    def planned_schema(self, schema: Schema) -> Schema:
        return _planned(self.columns, schema)

    def transform(self, X: Any) -> Any:
        X = self.check_rows(X)
        return X[:, self.chosen_]

    def condition_before(self, condition: Condition) -> Condition:
        return replace(condition, column=int(self.chosen_[condition.column]))

    def transform_schema(self, schema: Schema) -> Schema:
        return replace(schema, features=tuple(schema.features[j] for j in self.chosen_))


def positions(columns: Columns, schema: Schema) -> IntArray:
    """The numbers of the columns that are meant."""
    names = [feature.name for feature in schema.features]
    if isinstance(columns, str) and columns in _KINDS:
        found = [j for j, feature in enumerate(schema.features) if feature.kind == columns]
        return np.array(found, dtype=np.int64)
    listed: list[Any] = [columns] if isinstance(columns, str) else [*columns]
    check_columns([name for name in listed if isinstance(name, str)], names)
    found = [names.index(c) if isinstance(c, str) else int(c) for c in listed]
    for j in found:
        if not 0 <= j < len(names):
            raise UsageError(f"there is no column {j}, X has {len(names)}")
    return np.array(found, dtype=np.int64)


class FedColumns(Transformer):
    """Every part of the columns through a transformer of its own, side by side.

        so.FedColumns(
            ("numbers", so.FedScaler(), ["age", "bmi"]),
            ("texts", so.FedEncoder(), "categorical"),
        )

    A part is a transformer and its columns, as in :class:`FedSelect`, with a name before them where
    ``get_params`` shall show one. Columns of no part come after the others, or are dropped.
    """

    parts_: list[Transformer]
    chosen_: list[IntArray]
    rest_: IntArray

    def __init__(self, *parts: Any, remainder: Literal["passthrough", "drop"] = "passthrough"):
        self.parts = parts
        self.remainder = remainder

    @classmethod
    def make(cls, params: Mapping[str, Any]) -> Self:
        return super().make({**params, "parts": as_tuples(params["parts"])})

    def check_params(self) -> None:
        super().check_params()
        if not self.parts:
            raise UsageError("FedColumns() has no parts", hint="give (transformer, columns)")
        for part in self.parts:
            if not _is_part(part):
                raise UsageError(
                    f"FedColumns: {part!r} is not a part",
                    hint="give (transformer, columns) or (name, transformer, columns)",
                )
            part[-2].check_params()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        params = super().get_params(deep=False)
        return with_named(params, self._named()) if deep else params

    def set_params(self, **params: Any) -> Self:
        rest = set_named(self._named(), params, self._replace)
        return super().set_params(**rest)

    def _named(self) -> dict[str, Any]:
        return {part[0]: part[1] for part in self.parts if len(part) == 3}

    def _replace(self, name: str, transformer: Any) -> None:
        self.parts = tuple(
            (name, transformer, part[2]) if len(part) == 3 and part[0] == name else part
            for part in self.parts
        )

    def train(self, federation: Federation) -> None:
        self.parts_, self.chosen_ = [], []
        for *_, transformer, columns in self.parts:
            select = FedSelect(columns).fit(federation)
            self.chosen_.append(select.chosen_)
            self.parts_.append(transformer.clone().fit(federation.prepared(select)))
        taken = np.concatenate(self.chosen_)
        rest = np.setdiff1d(np.arange(self.schema_.width), taken)
        self.rest_ = rest if self.remainder == "passthrough" else rest[:0]

    def planned_schema(self, schema: Schema) -> Schema:
        features: list[Feature] = []
        for *_, transformer, columns in self.parts:
            features += transformer.planned_schema(_planned(columns, schema)).features
        taken = {f.name for part in self.parts for f in _planned(part[-1], schema).features}
        if self.remainder == "passthrough":
            features += [f for f in schema.features if f.name not in taken]
        return replace(schema, features=tuple(features))

    def transform(self, X: Any) -> Any:
        X = self.check_rows(X)
        return self.transform_rows(X, self.schema_)

    def transform_rows(self, X: Any, schema: Schema) -> Any:
        made = [
            part.transform_rows(X[:, chosen], _some(schema, chosen))
            for part, chosen in zip(self.parts_, self.chosen_, strict=True)
        ]
        return _side_by_side([*made, X[:, self.rest_]])

    def condition_before(self, condition: Condition) -> Condition:
        first = 0
        for part, chosen in zip(self.parts_, self.chosen_, strict=True):
            after = first + part.transform_schema(part.schema_).width
            if condition.column < after:
                here = replace(condition, column=condition.column - first)
                before = part.condition_before(here)
                return replace(before, column=int(chosen[before.column]))
            first = after
        return replace(condition, column=int(self.rest_[condition.column - first]))

    def transform_schema(self, schema: Schema) -> Schema:
        made = [
            part.transform_schema(_some(schema, chosen)).features
            for part, chosen in zip(self.parts_, self.chosen_, strict=True)
        ]
        rest = _some(schema, self.rest_).features
        return replace(schema, features=tuple(f for features in (*made, rest) for f in features))


def _is_part(part: Any) -> bool:
    if not isinstance(part, tuple | list) or len(part) not in (2, 3):
        return False
    return isinstance(part[-2], Transformer) and (len(part) == 2 or isinstance(part[0], str))


def _planned(columns: Columns, schema: Schema) -> Schema:
    """What chosen columns look like, as far as the schema tells; others pass for numbers."""
    try:
        return _some(schema, positions(columns, schema))
    except (DataError, UsageError):
        names = [columns] if isinstance(columns, str) else columns
        return replace(schema, features=tuple(Feature(str(name)) for name in names))


def _some(schema: Schema, chosen: IntArray) -> Schema:
    return replace(schema, features=tuple(schema.features[j] for j in chosen))


def _side_by_side(parts: Sequence[Any]) -> Any:
    parts = [part for part in parts if part.shape[1]]
    if any(hasattr(part, "tocsr") for part in parts):
        from scipy import sparse

        return sparse.hstack(parts, format="csr")
    return np.concatenate(parts, axis=1)
