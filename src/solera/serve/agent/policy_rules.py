"""The parts of a policy, each as a file may write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import time
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class Range:
    """What one parameter may be; no limits: anything. Limits hold for every element of a list."""

    min: float | None = None
    max: float | None = None
    among: tuple[str | int | float | bool, ...] | None = None
    max_length: Count | None = None
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


@dataclass(frozen=True, slots=True)
class TaskRule:
    """[[task]]"""

    name: str
    version: int | None = None
    where: Mapping[str, Range] = field(default_factory=dict)
    counts: tuple[str, ...] = ()
    small: Literal["refuse", "zero"] = "refuse"
    only: bool = False

    def covers(self, task: str) -> bool:
        if self.name.endswith("*"):
            return task.startswith(self.name[:-1])
        return task == self.name

    def objection(self, version: int, payload: Any) -> str | None:
        """What this entry has against a task, or None."""
        if self.version not in (None, version):
            return f"version {version}, only with version {self.version}"
        for name, allowed in self.where.items():
            value = value_at(payload, name)
            if not allowed.allows(value):
                return f"{name} = {_short(value)}, which must be {allowed}"
        given = payload if isinstance(payload, Mapping) else {"payload": payload}
        known = {name.partition(".")[0] for name in self.where}
        if self.only and payload is not None and (others := [n for n in given if n not in known]):
            return f"{others[0]!r}, which it does not name"
        return None

    def __str__(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        said = [f"{name} {allowed}" for name, allowed in self.where.items()]
        said += ["nothing else"] if self.only else []
        done = "refused" if self.small == "refuse" else "set to 0"
        said += [f"small counts in {', '.join(self.counts)} {done}"] if self.counts else []
        return f"{self.name}{version}" + (f": {'; '.join(said)}" if said else "")


@dataclass(frozen=True, slots=True)
class DataRules:
    """[data]"""

    min_rows: Count = 0
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """[approval]"""

    mode: Literal["auto", "ask"] = "auto"
    approvers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hours:
    """[hours]: from ``start`` until just before ``end``, perhaps of the next day."""

    start: time
    end: time

    def __contains__(self, moment: time) -> bool:
        if self.start < self.end:
            return self.start <= moment < self.end
        return moment >= self.start or moment < self.end

    def __str__(self) -> str:
        return f"from {self.start:%H:%M} to {self.end:%H:%M}"


@dataclass(frozen=True, slots=True)
class OutputRules:
    """[output]"""

    max_bytes: Count | None = None
    min_count: Count = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """[privacy]"""

    epsilon: Annotated[float, msgspec.Meta(gt=0)]
    delta: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0


# --- looking at values ---


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
