"""Axes of a grid: parameters that are given as lists or ranges in a file, to be multiplied.

lr = [0.1, 0.01]                                    # a list, where one value is wanted
lam = { values = [0.1, [0.1, 1.0]] }                # the same for parameters that take lists
lr = { from = 1e-4, to = 1, steps = 5, scale = "log" }
rounds = { from = 10, to = 50, step = 10 }
lr = { from = 1e-4, to = 1, scale = "log" }         # any value between: random search only
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from solera.core.component import Component
from solera.core.config import Problem, Where, family, fits, registered_name
from solera.core.constraints import declared_types

_RANGE = ("from", "to", "step", "steps", "scale")


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


def points(axes: Sequence[Axis]) -> Iterator[tuple[Any, ...]]:
    """All combinations of the axes' values; ranges must be gone."""
    for axis in axes:
        if isinstance(axis.values, Range):
            raise Problem(
                axis.where,
                f"{axis.where[-1]} has no end of values between its bounds, which makes no grid",
                hint='add steps = 5, or [search] kind = "random"',
            )
    return product(*(axis.values for axis in axes))  # type: ignore[arg-type]


def put(table: Any, inside: Where, value: Any) -> None:
    """Write a value where an axis stands in a table."""
    for key in inside[:-1]:
        table = table[key]
    table[inside[-1]] = value


def tables_of(base: type[Any], table: Mapping[str, Any], where: Where) -> Iterator[dict[str, Any]]:
    """The tables of single components that a table with axes stands for."""
    axes = list(component_axes(base, table, where))
    for values in points(axes):
        single = deepcopy(dict(table))
        for axis, value in zip(axes, values, strict=True):
            put(single, axis.where[len(where) :], value)
        yield single


def component_axes(base: type[Any], table: Mapping[str, Any], where: Where) -> Iterator[Axis]:
    """The axes among the parameters of a component."""
    cls = family(base).get(registered_name(table.get("kind")))
    hints = {} if cls is None else declared_types(cls)
    for key, value in table.items():
        name = "kind" if key == "kind_" else key
        if key != "kind":
            yield from axes_of(value, hints.get(name, Any), (*where, key))


def axes_of(value: Any, hint: Any, where: Where) -> Iterator[Axis]:
    """The axes of one entry: itself, or those inside the components it holds."""
    if isinstance(value, dict) and "kind" in value:
        yield from component_axes(Component, value, where)
    elif isinstance(value, dict) and (value.keys() & {"values", *_RANGE}):
        yield Axis(where, _values(value, hint, where))
    elif isinstance(value, list) and not fits(value, hint):
        if not value:
            raise Problem(where, f"{where[-1]} = [] is a grid without points")
        yield Axis(where, tuple(value))
    elif isinstance(value, list):
        for i, element in enumerate(value):
            if isinstance(element, dict):
                yield from axes_of(element, hint, (*where, i))


def _values(table: Mapping[str, Any], hint: Any, where: Where) -> Values:
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


def span(table: Mapping[str, Any], where: Where, *, whole: bool) -> Values:
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
