"""The dictionary of a federation: what its columns are, agreed before anything is asked of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import Array, BoolArray, FloatArray, Rows
from solera.core.config import Problem, nearest
from solera.core.errors import UsageError
from solera.core.schema import UNKNOWN, Feature, Kind, Schema, class_values
from solera.trust.epoch.bases import Base
from solera.trust.epoch.populations import EVERYONE, Population

LABELS = (("0", "1"), ("False", "True"))
"""Categories of a column that can be one label of several."""


@dataclass(frozen=True, slots=True)
class DictionaryColumn:
    """One column: its kind, and what its values may be.

    ``bounds`` are the smallest and the largest value, of a date in days since 1970-01-01; ``grid``
    is the smallest step between two values that matters; ``missing`` says that rows may lack it.
    """

    name: str
    kind: Kind = "numeric"
    unit: str = ""
    categories: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
    grid: float | None = None
    missing: bool = False

    @property
    def feature(self) -> Feature:
        """The column as a schema names it."""
        return Feature(self.name, self.kind, self.categories)

    def check(self) -> None:
        """Raise a :class:`Problem` for an entry that makes no sense."""
        where, name = ("columns", self.name), repr(self.name)
        if not self.name.strip() or not self.name.isprintable():
            raise Problem(where, f"column {name} has no name that can be printed")
        if self.kind == "categorical":
            if not self.categories or len(set(self.categories)) < len(self.categories):
                raise Problem(where, f"column {name} needs categories, each once")
            if self.bounds is not None or self.grid is not None or self.unit:
                raise Problem(where, f"column {name} is categorical: no unit, bounds or grid")
            return
        if self.categories:
            raise Problem(
                (*where, "categories"),
                f"column {name} is {self.kind} and lists categories",
                hint='kind = "categorical"',
            )
        if self.bounds is None or not -math.inf < self.bounds[0] <= self.bounds[1] < math.inf:
            raise Problem((*where, "bounds"), f"column {name} needs bounds = [low, high], finite")
        if self.kind == "date" and not all(end.is_integer() for end in self.bounds):
            raise Problem((*where, "bounds"), f"column {name}: bounds of dates are whole days")
        if self.grid is not None and not 0 < self.grid < math.inf:
            raise Problem((*where, "grid"), f"column {name}: the grid must be above 0")


@dataclass(frozen=True)
class Dictionary:
    """Columns, target, identifier, time axis, populations and base models, the same for all owners.

    Examples
    --------
    >>> from solera.epochs import Dictionary
    >>> dictionary = Dictionary.parse('''
    ... target = "died"
    ... [columns]
    ... age = { kind = "numeric", unit = "years", bounds = [18, 110] }
    ... died = { kind = "categorical", categories = ["no", "yes"] }
    ... [populations.elderly]
    ... age = { min = 65 }
    ... ''')
    >>> dictionary.schema().classes.tolist()
    ['no', 'yes']
    """

    columns: tuple[DictionaryColumn, ...]
    target: tuple[str, ...] = ()
    identifier: str = ""
    time: str = ""
    populations: tuple[Population, ...] = ()
    bases: tuple[Base, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise Problem(("columns",), "a dictionary needs columns", hint="[columns]")
        for column in self.columns:
            column.check()
        if len(self.by_name) < len(self.columns):
            raise Problem(("columns",), "several columns have the same name")
        if self.identifier in self.by_name:
            raise Problem(
                ("identifier",),
                f"the identifier {self.identifier!r} is a column as well",
                hint="an identifier is never shown: take it out of [columns]",
            )
        if self.time and self.column(self.time, ("time",)).kind == "categorical":
            raise Problem(("time",), f"the time axis {self.time!r} is categorical")
        self._target_kind(self.target)
        for population in self.populations:
            population.check(self.by_name)
        names = [population.name for population in self.populations]
        if len(set(names)) < len(names):
            raise Problem(("populations",), "several populations have the same name")
        for base in self.bases:
            base.check()

    @classmethod
    def read(cls, path: Any) -> Self:
        """The dictionary of a TOML file."""
        from solera.trust.epoch.dictionary_file import read_dictionary

        return read_dictionary(cls, path)

    @classmethod
    def parse(cls, text: str, *, file: str = "dictionary.toml") -> Self:
        """The dictionary that TOML text declares; ``file`` is named in errors."""
        from solera.trust.epoch.dictionary_file import parse_dictionary

        return parse_dictionary(cls, text, file)

    def toml(self) -> str:
        """The dictionary as its file has it, one line for a column: equal ones have equal text."""
        from solera.trust.epoch.dictionary_file import dictionary_text

        return dictionary_text(self)

    @cached_property
    def by_name(self) -> Mapping[str, DictionaryColumn]:
        """The columns by their names."""
        return {column.name: column for column in self.columns}

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """All columns as a schema names them, the target among them."""
        return tuple(column.feature for column in self.columns)

    def column(self, name: str, where: tuple[str, ...] = ("columns",)) -> DictionaryColumn:
        """A column by its name, or an error with the nearest name."""
        if name not in self.by_name:
            hint = nearest(name, self.by_name)
            raise Problem(where, f"the dictionary has no column {name!r}", hint=hint)
        return self.by_name[name]

    def schema(
        self,
        columns: Sequence[str] = (),
        target: str | Sequence[str] | None = None,
    ) -> Schema:
        """What rows look like to a learner that sees these columns and predicts this target.

        By default all columns but the target, and the dictionary's own target.
        """
        names = self._target_names(target)
        kind, classes = self._target_kind(names)
        features = tuple(self.column(name).feature for name in self._shown(columns, names))
        outputs = len(classes) if kind in ("classes", "labels") else len(names)
        return Schema(features, kind, classes, outputs, () if kind == "classes" else names)

    def rows(
        self,
        values: FloatArray,
        columns: Sequence[str] = (),
        target: str | Sequence[str] | None = None,
    ) -> tuple[Rows, BoolArray]:
        """Features and target of a table of all columns, and which rows have a target.

        ``values`` has one column for each of the dictionary's, codes for categories, NaN where
        missing. Of several labels one that is missing is unknown, and the row stays.
        """
        names = self._target_names(target)
        kind, _ = self._target_kind(names)
        place = {column.name: i for i, column in enumerate(self.columns)}
        X = np.ascontiguousarray(values[:, [place[n] for n in self._shown(columns, names)]])
        answers = values[:, [place[name] for name in names]]
        has_target: BoolArray = np.ones(len(X), dtype=bool)
        if kind == "none":
            return Rows(X, None), has_target
        if kind == "labels":
            return Rows(X, np.nan_to_num(answers, nan=UNKNOWN).astype(np.int8)), has_target
        has_target = np.asarray(~np.isnan(answers).any(axis=1))
        answers = answers[has_target]
        y: Array = answers[:, 0] if len(names) == 1 else answers
        if kind == "classes":
            y = class_values(self.column(names[0]).categories)[y.astype(np.int64)]
        return Rows(X[has_target], y), has_target

    def marks(self, values: FloatArray) -> BoolArray:
        """Which rows are in which population, rows × populations; in the first one all are."""
        inside = [np.ones(len(values), dtype=bool)]
        inside += [population.includes(self.features, values) for population in self.populations]
        return np.column_stack(inside)

    def gaps(
        self, columns: Sequence[str] = (), target: str | Sequence[str] | None = None
    ) -> tuple[str, ...]:
        """The features of :meth:`schema` that rows may lack."""
        shown = self._shown(columns, self._target_names(target))
        return tuple(name for name in shown if self.by_name[name].missing)

    @property
    def population_names(self) -> tuple[str, ...]:
        """The populations, all rows the first."""
        return (EVERYONE, *(population.name for population in self.populations))

    def check_population(self, name: str) -> None:
        """An error unless there is a population of this name."""
        if name not in self.population_names:
            hint = nearest(name, self.population_names)
            raise UsageError(f"the dictionary has no population {name!r}", hint=hint)

    def _shown(self, columns: Sequence[str], target: Sequence[str]) -> list[str]:
        if not columns:
            return [column.name for column in self.columns if column.name not in target]
        for name in columns:
            if name in target:
                raise UsageError(f"column {name!r} is the target, and cannot be learned from")
            self.column(name)
        return list(columns)

    def _target_names(self, target: str | Sequence[str] | None) -> tuple[str, ...]:
        if target is None:
            return self.target
        return (target,) if isinstance(target, str) else tuple(target)

    def _target_kind(self, names: tuple[str, ...]) -> tuple[Any, NDArray[Any]]:
        """How to read these columns as a target, and the classes."""
        none = np.empty(0, dtype=np.int64)
        if not names:
            return "none", none
        columns = [self.column(name, ("target",)) for name in names]
        kinds = [column.kind for column in columns]
        survival = kinds == ["numeric", "categorical"] and columns[1].categories == LABELS[0]
        if survival or {*kinds} == {"numeric"}:
            return "numbers", none
        if len(columns) == 1 and columns[0].kind == "categorical":
            return "classes", np.unique(class_values(columns[0].categories))
        if all(column.categories in LABELS for column in columns):
            return "labels", np.arange(len(columns))
        raise Problem(
            ("target",),
            f"{', '.join(names)}: a target is one categorical column, numeric columns, several "
            'labels with categories = ["0", "1"], or a time and a label',
        )
