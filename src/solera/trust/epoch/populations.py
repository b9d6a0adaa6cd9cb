"""Populations: inclusion criteria over the columns of a dictionary, each with a name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from solera.core.clients import BoolArray, FloatArray
from solera.core.config import Problem, nearest
from solera.core.schema import Feature

if TYPE_CHECKING:
    from solera.trust.epoch.dictionary import DictionaryColumn

EVERYONE = "all"
"""The population of all rows, which every epoch has."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """What the value of one column must be; where it is missing, the row is not included."""

    column: str
    low: float = -math.inf
    high: float = math.inf
    categories: tuple[str, ...] = ()

    def includes(self, feature: Feature, values: FloatArray) -> BoolArray:
        """Which values of its column it includes."""
        if self.categories:
            return np.isin(values, [feature.categories.index(name) for name in self.categories])
        return np.asarray((values >= self.low) & (values <= self.high))

    def check(self, column: DictionaryColumn, where: tuple[str, ...]) -> None:
        """Raise a :class:`Problem` for a criterion that its column cannot meet."""
        for name in self.categories:
            if name not in column.categories:
                raise Problem(
                    where,
                    f"column {self.column!r} has no category {name!r}",
                    hint=nearest(name, column.categories),
                )
        if column.kind == "categorical" and not self.categories:
            raise Problem(where, f"column {self.column!r} is categorical", hint="{ in = […] }")
        if not self.low <= self.high:
            raise Problem(where, f"column {self.column!r}: min is above max")
        if not (self.categories or math.isfinite(self.low) or math.isfinite(self.high)):
            raise Problem(where, f"column {self.column!r}: min or max is a finite value")


@dataclass(frozen=True, slots=True)
class Population:
    """The rows that meet all criteria."""

    name: str
    criteria: tuple[Criterion, ...]

    def includes(self, features: Sequence[Feature], values: FloatArray) -> BoolArray:
        """Which rows of a table of all columns it includes."""
        place = {feature.name: i for i, feature in enumerate(features)}
        included = np.ones(len(values), dtype=bool)
        for criterion in self.criteria:
            i = place[criterion.column]
            included &= criterion.includes(features[i], values[:, i])
        return included

    def check(self, columns: Mapping[str, DictionaryColumn]) -> None:
        """Raise a :class:`Problem` for criteria that the columns cannot meet."""
        where = ("populations", self.name)
        if not is_plain_name(self.name) or self.name == EVERYONE:
            raise Problem(
                where,
                f"a population cannot be called {self.name!r}",
                hint=f"letters, digits, - and _; {EVERYONE!r} is the name of all rows",
            )
        if not self.criteria:
            raise Problem(where, f"population {self.name!r} has no criteria")
        for criterion in self.criteria:
            here = (*where, criterion.column)
            if criterion.column not in columns:
                hint = nearest(criterion.column, columns)
                raise Problem(here, f"the dictionary has no column {criterion.column!r}", hint=hint)
            criterion.check(columns[criterion.column], here)


def is_plain_name(name: str) -> bool:
    """Whether it can be written without quotes, in a file and on a command line."""
    return re.fullmatch(r"[A-Za-z0-9_-]+", name) is not None
