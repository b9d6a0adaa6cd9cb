"""The variants of a study: lists and ranges of a study file, multiplied.

A parameter becomes an axis of the grid when it is given

    lr = [0.1, 0.01]                                    # a list, where one value is wanted
    lam = { values = [0.1, [0.1, 1.0]] }                # the same for parameters that take lists
    lr = { from = 1e-4, to = 1, steps = 5, scale = "log" }
    rounds = { from = 10, to = 50, step = 10 }
    lr = { from = 1e-4, to = 1, scale = "log" }         # any value between: random search only

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

from solera.core.component import Component
from solera.core.config import Problem, Where, family, fits, registered_name
from solera.core.constraints import declared_types
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

_RANGE = ("from", "to", "step", "steps", "scale")
MOST_CELLS = 1_000_000


@dataclass(frozen=True)
class Range:
    """Any value between two, for random search; ``whole`` ones where the parameter wants them."""

    low: float
    high: float
    log: bool
    whole: bool

    def draw(self, rng: np.random.Generator) -> float | int:
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = float(rng.uniform(self.low, self.high))
        return round(value) if self.whole else value


Values = tuple[Any, ...] | Range


@dataclass(frozen=True)
class Axis:
    """A parameter that varies: where it stands in the file, and its values."""

    where: Where
    values: Values


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
            holder = tables[section]
            for key in inside[:-1]:
                holder = holder[key]
            holder[inside[-1]] = value
            params[".".join(map(str, (section, *inside)))] = _label(value)
        return build_variant(tables, self.places, params)

    def variants(self) -> Iterator[Variant]:
        """All of them; ranges must be gone."""
        for axis in self.ranges:
            raise Problem(
                axis.where,
                f"{axis.where[-1]} has no end of values between its bounds, which makes no grid",
                hint='add steps = 5, or [search] kind = "random"',
            )
        for values in product(*(a.values for a in self.axes)):  # type: ignore[arg-type]
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
        yield from _component_axes(_KINDS[section], without_label(table), where)
        return
    loader = own if "file" in table else getattr(datasets, str(table.get("name")), None)
    hints = {**(declared_types(loader) if loader else {}), **declared_types(DataSpec)}
    for key, value in table.items():
        if key != "kinds":  # a table of columns
            yield from _axis(value, hints.get(key, Any), (*where, key))


def _component_axes(base: type[Any], table: TomlTable, where: Where) -> Iterator[Axis]:
    cls = family(base).get(registered_name(table.get("kind")))
    hints = {} if cls is None else declared_types(cls)
    for key, value in table.items():
        name = "kind" if key == "kind_" else key
        if key != "kind":
            yield from _axis(value, hints.get(name, Any), (*where, key))


def _axis(value: Any, hint: Any, where: Where) -> Iterator[Axis]:
    """The axes of one entry: itself, or those inside the components it holds."""
    if isinstance(value, dict) and "kind" in value:
        yield from _component_axes(Component, value, where)
    elif isinstance(value, dict) and (value.keys() & {"values", *_RANGE}):
        yield Axis(where, _values(value, hint, where))
    elif isinstance(value, list) and not fits(value, hint):
        if not value:
            raise Problem(where, f"{where[-1]} = [] is a grid without points")
        yield Axis(where, tuple(value))
    elif isinstance(value, list):
        for i, element in enumerate(value):
            if isinstance(element, dict):
                yield from _axis(element, hint, (*where, i))


def _values(table: TomlTable, hint: Any, where: Where) -> Values:
    unknown = table.keys() - {"values", *_RANGE}
    if unknown or ("values" in table and len(table) > 1):
        raise Problem(
            where,
            f"{where[-1]} = {dict(table)!r} is no list of values",
            hint='{ values = […] } or { from = …, to = …, steps = …, scale = "log" }',
        )
    if "values" in table:
        if not isinstance(table["values"], list) or not table["values"]:
            raise Problem(where, f"{where[-1]}: values must be a list with something in it")
        return tuple(table["values"])
    return span(table, where, whole=not fits(0.5, hint))


def span(table: TomlTable, where: Where, *, whole: bool) -> Values:
    """The values from one number to another, both included."""
    low: Any = table.get("from")
    high: Any = table.get("to")
    scale = table.get("scale", "linear")
    numbers = isinstance(low, int | float) and isinstance(high, int | float)
    if not numbers or low >= high or scale not in ("linear", "log"):
        raise Problem(
            where,
            f"{where[-1]} = {dict(table)!r} goes from nowhere to nowhere",
            hint='from must be below to, scale "linear" or "log"',
        )
    log = scale == "log"
    if log and low <= 0:
        raise Problem(where, f'{where[-1]}: from = {low} has no place on scale = "log"')
    if "steps" in table:
        steps = table["steps"]
        if not isinstance(steps, int) or steps < 2 or "step" in table:
            raise Problem(where, f"{where[-1]}: give steps of at least 2, or a step, not both")
        points = (np.geomspace if log else np.linspace)(low, high, steps)
    elif "step" in table or (whole and not log):
        step = table.get("step", 1)
        if not step > 0 or log:
            raise Problem(where, f"{where[-1]}: step = {step} must be > 0, and not on a log scale")
        points = low + step * np.arange(math.floor((high - low) / step + 1e-9) + 1)
    else:
        return Range(float(low), float(high), log, whole)
    values = [round(v) if whole else float(f"{v:.12g}") for v in points.tolist()]
    return tuple(dict.fromkeys(values))


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
