"""What plain parameters of a payload may be: the ranges of policies and of plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

    def _in_range(self, item: Any) -> bool:
        if isinstance(item, bool | np.bool_) or not isinstance(item, int | float | np.number):
            return False
        if self.min is not None and not item >= self.min:  # NaN is in no range
            return False
        return self.max is None or bool(item <= self.max)

    def __str__(self) -> str:
        said = [
            None if self.min is None else f"at least {self.min:g}",
            None if self.max is None else f"at most {self.max:g}",
            None if self.among is None else f"one of {', '.join(map(repr, self.among))}",
            None if self.max_length is None else f"no longer than {self.max_length}",
            "or absent" if self.optional else None,
        ]
        return " ".join(filter(None, said)) or "anything"


def range_objection(where: Mapping[str, Range], payload: Any) -> str | None:
    """The first parameter of a payload that is outside its range, in words, or None."""
    for name, allowed in where.items():
        value = value_at(payload, name)
        if not allowed.allows(value):
            return f"{name} = {_short(value)}, which must be {allowed}"
    return None


def value_at(tree: Any, name: str, default: Any = None) -> Any:
    """What lies at ``"a.b"`` in nested tables."""
    for key in name.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return default
        tree = tree[key]
    return tree


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, np.ndarray):
        return list(value.flat)
    return value if isinstance(value, list | tuple) else (value,)


def _same(item: Any, known: Any) -> bool:
    return isinstance(item, bool | np.bool_) == isinstance(known, bool) and bool(item == known)


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
