"""The variants of a study: lists and ranges of a study file, multiplied.

A parameter becomes an axis as :mod:`solera.core.grids` says.
``kind`` and the data set's ``name`` may be lists too, and ``[[learner]]``, ``[[data]]``,
``[[partition]]`` and ``[[attack]]`` may be written several times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from solera.core.config import Problem, Where
from solera.core.constraints import declared_types
from solera.core.grids import Axis, Range, axes_of, component_axes, points, put
from solera.data import datasets
from solera.data.own_tables import own
from solera.data.partition import Partition
from solera.learn.base import Learner
from solera.robust.attacks import Attack
from solera.study.files.tables import (
    SECTIONS,
    DataSpec,
    TomlTable,
    Variant,
    build_variant,
    without_label,
)

MOST_CELLS = 1_000_000


@dataclass(frozen=True)
class Grid:
    """One choice of data, partition and learner, whose parameters may still vary along axes."""

    tables: dict[str, Any]
    places: dict[str, Where]
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        return math.prod(len(a.values) for a in self.axes if isinstance(a.values, tuple))

    @property
    def ranges(self) -> list[Axis]:
        return [axis for axis in self.axes if isinstance(axis.values, Range)]

    def at(self, values: Sequence[Any]) -> Variant:
        """The variant with these values on the axes."""
        tables, params = deepcopy(self.tables), {}
        for axis, value in zip(self.axes, values, strict=True):
            section = str(axis.where[0])
            inside = axis.where[len(self.places[section]) :]
            put(tables[section], inside, value)
            params[".".join(map(str, (section, *inside)))] = _label(value)
        return build_variant(tables, self.places, params)

    def variants(self) -> Iterator[Variant]:
        """All of them; ranges must be gone."""
        for values in points(self.axes):
            yield self.at(values)

    def draw(self, rng: np.random.Generator) -> Variant:
        """A variant at random."""
        return self.at(
            [
                a.values.draw(rng)
                if isinstance(a.values, Range)
                else a.values[int(rng.integers(len(a.values)))]
                for a in self.axes
            ]
        )


def grids_of(content: TomlTable) -> list[Grid]:
    """A grid for every choice of data, partition and learner in the content of a file."""
    choices = [list(_choices(content, section)) for section in SECTIONS]
    whole = {"engine": content.get("engine", {}), "secure": content.get("secure", False)}
    grids = []
    for chosen in product(*choices):
        tables = dict(zip(SECTIONS, (table for table, _ in chosen), strict=True))
        places = dict(zip(SECTIONS, (place for _, place in chosen), strict=True))
        axes = tuple(
            axis for section in SECTIONS for axis in _axes(section, tables[section], places)
        )
        grids.append(Grid({**whole, **tables}, places, axes))
    total = sum(grid.size for grid in grids)
    if total > MOST_CELLS:
        raise Problem((), f"the grid has {total:,} points", hint="take values away from its axes")
    return grids


def _choices(content: TomlTable, section: str) -> Iterator[tuple[TomlTable | None, Where]]:
    """The tables of a section, one for each ``kind`` or ``name`` in a list of them."""
    if section == "attack" and section not in content:
        yield None, (section,)
        return
    given = content.get(section, {"kind": "IID"} if section == "partition" else {})
    several = isinstance(given, list)
    if given == []:
        raise Problem((section,), f"{section} = [] leaves nothing to run")
    for i, table in enumerate(given if several else [given]):
        place: Where = (section, i) if several else (section,)
        if not isinstance(table, dict):
            raise Problem(place, f"{section} = {table!r} is not a table")
        key = "name" if section == "data" else "kind"
        names = table.get(key)
        if names == []:
            raise Problem((*place, key), f"{key} = [] leaves nothing to run")
        for name in names if isinstance(names, list) else [names]:
            yield (table if name is None else {**table, key: name}), place


_KINDS: dict[str, type[Any]] = {"learner": Learner, "partition": Partition, "attack": Attack}


def _axes(section: str, table: TomlTable | None, places: Mapping[str, Where]) -> Iterator[Axis]:
    where = places[section]
    if table is None:
        return
    if section in _KINDS:
        yield from component_axes(_KINDS[section], without_label(table), where)
        return
    loader = own if "file" in table else getattr(datasets, str(table.get("name")), None)
    hints = {**(declared_types(loader) if loader else {}), **declared_types(DataSpec)}
    for key, value in table.items():
        if key != "kinds":  # a table of columns
            yield from axes_of(value, hints.get(key, Any), (*where, key))


def _label(value: Any) -> Any:
    """A value as tables show it."""
    if isinstance(value, dict) and "kind" in value:
        rest = ", ".join(f"{key}={v!r}" for key, v in value.items() if key != "kind")
        return f"{value['kind']}({rest})"
    return value if isinstance(value, str | int | float) else repr(value)


# --- the resource that halving gives out ---


def resource_of(learner: Learner, name: str) -> Any:
    """A parameter of a learner, ``steps.1.rounds`` say; None where there is none."""
    value: Any = learner
    for key in name.split("."):
        value = value[int(key)] if key.isdigit() else getattr(value, key, None)
    return value


def with_resource(variant: Variant, name: str, amount: int) -> Variant:
    """The variant with another number for that parameter of its learner."""
    learner = variant.learner.clone()
    path, _, last = name.rpartition(".")
    holder = resource_of(learner, path) if path else learner
    holder.set_params(**{last: amount})
    return replace(variant, learner=learner, params={**variant.params, f"learner.{name}": amount})
