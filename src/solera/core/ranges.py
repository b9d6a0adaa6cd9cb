"""What plain parameters of a payload may be: the ranges of policies and of plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any, Self

import msgspec
import numpy as np

from solera.core.constraints import NonNegativeInt


@dataclass(frozen=True, slots=True)
class Range:
    """What one parameter may be; no limits: anything. Limits hold for every element of a list."""

    min: float | None = None
    max: float | None = None
    among: tuple[str | int | float | bool, ...] | None = None
    max_length: NonNegativeInt | None = None
    optional: bool = False

    def allows(self, value: Any) -> bool:
        if value is None:
            return self.optional
        items = _items(value)
        length = len(value if isinstance(value, str | bytes | Mapping) else items)
        if self.max_length is not None and length > self.max_length:
            return False
        if self.among is not None:
            return all(any(_same(item, known) for known in self.among) for item in items)
        return (self.min is None and self.max is None) or all(map(self._in_range, items))

    def within(self, other: Range) -> bool:
        """Whether the other allows all that this one does."""
        if self.optional and not other.optional:
            return False
        if self.max_length is not None:  # lists, whose elements have no length
            if other.max_length is not None and self.max_length > other.max_length:
                return False
            other = replace(other, max_length=None)
        if self.among is not None:
            return all(map(other.allows, self.among))
        if other.among is not None:
            return self.min is not None and self.min == self.max and other.allows(self.min)
        return (other.min is None or (self.min is not None and self.min >= other.min)) and (
            other.max is None or (self.max is not None and self.max <= other.max)
        )

    def _in_range(self, item: Any) -> bool:
        if isinstance(item, bool | np.bool_) or not isinstance(item, int | float | np.number):
            return False
        if self.min is not None and not item >= self.min:  # NaN is in no range
            return False
        return self.max is None or bool(item <= self.max)

    @property
    def is_open(self) -> bool:
        """Whether there is no limit."""
        return all(x is None for x in (self.min, self.max, self.among, self.max_length))

    def to_table(self) -> dict[str, Any]:
        """The range as a policy writes it."""
        among = None if self.among is None else list(self.among)
        table = {"min": self.min, "max": self.max, "in": among, "max_length": self.max_length}
        said = {name: limit for name, limit in table.items() if limit is not None}
        return said | {"optional": True} if self.optional else said

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """What :meth:`to_table` wrote, checked; a TypeError if it has a limit that is none."""
        given = {("among" if name == "in" else name): limit for name, limit in table.items()}
        return msgspec.convert(asdict(cls(**given)), cls)

    def __str__(self) -> str:
        if self.among == () and self.optional:
            return "absent"
        exact = self.min is not None and self.min == self.max
        said = [
            f"{self.min:g}" if exact else None,
            None if exact or self.min is None else f"at least {self.min:g}",
            None if exact or self.max is None else f"at most {self.max:g}",
            None if self.among is None else f"one of {', '.join(map(repr, self.among))}",
            None if self.max_length is None else f"no longer than {self.max_length}",
            "or absent" if self.optional else None,
        ]
        return " ".join(filter(None, ["anything" if self.is_open else None, *said]))


def ranges_of(*payloads: Any) -> dict[str, Range]:
    """The ranges that plain parameters of these payloads span; ``a.b`` is one of a table in it.

    Numbers give a smallest and a largest, text and truth values the choices there were. A
    parameter that is None in some payload is optional. Arrays and bytes are open: the task itself
    says what they may be.
    """
    plain = [dict(_parameters(payload)) for payload in payloads]
    spanned = {}
    for name in dict.fromkeys(name for parameters in plain for name in parameters):
        values = _distinct([parameters.get(name) for parameters in plain])
        if _TABLE not in values:
            spanned[name] = reduce(hull, map(_range_of, values))
    return spanned


def unplanned(where: Mapping[str, Range], payload: Any) -> str | None:
    """The first plain parameter of a payload that has no range, in words, or None.

    What lies in a table whose range is open needs none.
    """
    if payload is not None and not isinstance(payload, Mapping) and _plain(payload) is not _ARRAY:
        return f"the payload {_short(payload)}, which is not planned"
    for name, value in _parameters(payload):
        if name in where or value in (None, _ARRAY, _TABLE) or isinstance(value, Range):
            continue
        above = [where.get(name[:end]) for end, letter in enumerate(name) if letter == "."]
        if not any(allowed is not None and allowed.is_open for allowed in above):
            return f"{name} = {_short(value)}, which is not planned"
    return None


def hull(a: Range, b: Range) -> Range:
    """A range that allows what either of the two does, an open one where none is so simple."""
    optional = a.optional or b.optional
    if a.among == () or b.among == ():
        return replace(b if a.among == () else a, optional=optional)
    if a.is_open or b.is_open or (a.among is None) != (b.among is None):
        return OPEN
    longest = _wider(max, a.max_length, b.max_length)
    if a.among is not None and b.among is not None:
        return Range(among=_distinct([*a.among, *b.among]), max_length=longest, optional=optional)
    low, high = _wider(min, a.min, b.min), _wider(max, a.max, b.max)
    return Range(low, high, max_length=longest, optional=optional)


def _wider(choose: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    return None if a is None or b is None else choose(a, b)


def _parameters(payload: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every parameter by its name: its value if that is plain, or what it is instead."""
    for key, value in payload.items() if isinstance(payload, Mapping) else ():
        name = f"{prefix}{key}"
        if not isinstance(key, str) or "." in key:
            continue
        if isinstance(value, Mapping):
            yield name, _TABLE
            yield from _parameters(value, f"{name}.")
        elif isinstance(value, list | tuple) and any(isinstance(v, Mapping) for v in value):
            yield name, Range(max_length=len(value))
            yield from _parameters({str(i): v for i, v in enumerate(value)}, f"{name}.")
        else:
            yield name, _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        items = tuple(map(_plain, value))
        plain = all(isinstance(item, bool | str | int | float) for item in items)
        return items if plain else _ARRAY
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, bool | str | int | float | None) else _ARRAY


def _range_of(value: Any) -> Range:
    if value is None:
        return ABSENT
    if isinstance(value, Range):
        return value
    if value is _ARRAY:
        return OPEN
    items = value if isinstance(value, tuple) else (value,)
    longest = len(items) if isinstance(value, tuple) else None
    if items and all(isinstance(v, int | float) and not isinstance(v, bool) for v in items):
        return Range(min(items), max(items), max_length=longest)
    return Range(among=_distinct(items), max_length=longest)


def _distinct(values: Sequence[Any]) -> tuple[Any, ...]:
    """Each once; 1, 1.0 and true are three."""
    return tuple({repr(value): value for value in values}.values())


def range_objection(where: Mapping[str, Range], payload: Any) -> str | None:
    """The first parameter of a payload that is outside its range, in words, or None."""
    for name, allowed in where.items():
        value = value_at(payload, name)
        if not allowed.allows(value):
            return f"{name} = {_short(value)}, which must be {allowed}"
    return None


OPEN = Range(optional=True)
ABSENT = Range(among=(), optional=True)
_ARRAY, _TABLE = object(), object()
"""Arrays, and whatever else is not plain; tables, whose parameters are ranged one by one."""


def value_at(tree: Any, name: str, default: Any = None) -> Any:
    """What lies at ``"a.b"`` in nested tables; ``"a.0"`` is the first element of a list."""
    for key in name.split("."):
        if isinstance(tree, Mapping) and key in tree:
            tree = tree[key]
        elif isinstance(tree, list | tuple) and key.isdecimal() and int(key) < len(tree):
            tree = tree[int(key)]
        else:
            return default
    return tree


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, np.ndarray):
        return list(value.flat)
    return value if isinstance(value, list | tuple) else (value,)


def _same(item: Any, known: Any) -> bool:
    return isinstance(item, bool | np.bool_) == isinstance(known, bool) and bool(item == known)


def _short(value: Any) -> str:
    text = "nothing" if value is None else " ".join(repr(value).split())
    return text if len(text) <= 40 else f"{text[:39]}…"
