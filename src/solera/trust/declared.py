"""What a task takes, declared as a type and compared with the client's own rows.

A task names a ``TypedDict`` (or None) as its ``ask``:

    class Train(TypedDict):
        coef: Annotated[FloatArray, Shape("columns", "outputs")]
        lr: Positive
        classes: Annotated[Array, Classes()]

Plain values are declared as constructor parameters are (:mod:`solera.core.constraints`). Arrays
name their axes: "columns", "outputs" and "classes" are those of the client's schema, a number is a
length, any other name is the same length wherever the payload names it. Fitted components, be
they in a payload (:class:`Fitted`) or prepare rows, declare the shape of their state in the same
way, in the annotations of their class, and may say more in ``check_state(schema)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NotRequired,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np

from solera.core.component import Component, build_fitted
from solera.core.constraints import is_list, is_union, violation
from solera.core.errors import GateRefusal, Refusal, SoleraError
from solera.core.schema import Schema

if TYPE_CHECKING:
    from solera.core.task import Task

LONGEST = 100_000
"""The most entries of an axis that nothing else bounds."""
FREE = "*"
MOST_CLASSES = 1000
"""The most classes of a fitted component: a confusion matrix has their square."""


@dataclass(frozen=True)
class Shape:
    """An array of finite numbers with these axes, each between ``least`` and ``most``.

    The axis "*" may have another length wherever it is named, up to ``longest``.

    ``kind``: "f" numbers, "i" whole numbers, "b" marks. Numbers of an "f" may be whole.
    """

    axes: tuple[str | int, ...]
    kind: str = "f"
    least: float = -np.inf
    most: float = np.inf
    longest: int = LONGEST
    finite: bool = True

    def __init__(
        self,
        *axes: str | int,
        kind: str = "f",
        least: float = -np.inf,
        most: float = np.inf,
        longest: int = LONGEST,
        finite: bool = True,
    ) -> None:
        for name, value in (
            ("axes", axes), ("kind", kind), ("least", least), ("most", most),
            ("longest", longest), ("finite", finite),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    def objection(self, value: Any, lengths: dict[str, int]) -> str | None:
        if not isinstance(value, np.ndarray):
            return "is no array"
        kinds = {"f": "fiub", "i": "iu", "b": "b"}[self.kind]
        if value.dtype.kind not in kinds:
            return f"holds {value.dtype}"
        if value.ndim != len(self.axes):
            return f"has {value.ndim} axes, {len(self.axes)} are declared"
        for axis, length in zip(self.axes, value.shape, strict=True):
            wanted = axis if isinstance(axis, int) else lengths.setdefault(axis, length)
            if axis != FREE and length != wanted:
                return f"has {length} where the {axis} are {wanted}"
            if length > self.longest and axis not in _OF_SCHEMA:
                return f"has {length} {axis}, at most {self.longest}"
        if value.size and value.dtype.kind == "f" and self.finite and not np.isfinite(value).all():
            return "holds numbers that are not finite"
        if value.size and not (value.min() >= self.least and value.max() <= self.most):
            return f"holds numbers outside {self.least:g} to {self.most:g}"
        return None


_OF_SCHEMA = ("columns", "outputs", "classes")


@dataclass(frozen=True)
class Classes:
    """The agreed classes: sorted, different, of the kind of the client's own."""

    def objection(self, value: Any, schema: Schema) -> str | None:
        classes = np.asarray(value)
        if classes.ndim != 1 or len(classes) > LONGEST:
            return "is no list of classes"
        if len(classes) and len(np.unique(classes)) != len(classes):
            return "holds a class twice"
        return None


@dataclass(frozen=True)
class Fitted:
    """The description of a fitted component of this class, for rows of the client's schema."""

    of: type[Any] = Component

    def objection(self, value: Any, schema: Schema) -> str | None:
        try:
            component = build_checked(value, schema)
        except SoleraError as error:
            return f"is no fitted component: {error.message}"
        return None if isinstance(component, self.of) else f"is no {self.of.__name__}"


@dataclass(frozen=True)
class States:
    """What fitted components as that in the entry ``of`` know otherwise, a table for each."""

    of: str

    def objection(self, value: Any, payload: Mapping[str, Any], schema: Schema) -> str | None:
        if not isinstance(value, list) or len(value) > LONGEST:
            return " is no list of states"
        made, learned = payload[self.of]["made"], payload[self.of]["learned"]
        for i, state in enumerate(value):
            if not isinstance(state, Mapping):
                return f"[{i}] is no table"
            found = Fitted().objection({"made": made, "learned": {**learned, **state}}, schema)
            if found is not None:
                return f"[{i}] {found}"
        return None


@dataclass(frozen=True)
class Checked:
    """Something that a type does not say; ``by`` tells what is wrong with a value, or None."""

    by: Callable[[Any, Schema], str | None]

    def objection(self, value: Any, schema: Schema) -> str | None:
        return self.by(value, schema)


# --- payloads ---


def check_payload(task: Task, payload: Any, schema: Schema) -> None:
    """Refuse a payload that is not what the task declares, for rows of that schema."""
    if task.ask is None:
        return
    objection = _objection(payload, task.ask, lengths_of(schema), schema)
    if objection is not None:
        raise GateRefusal(f"the payload of {task.name!r}{objection}")


def lengths_of(schema: Schema) -> dict[str, int]:
    """The axes that follow from a schema."""
    return {
        "columns": schema.width,
        "outputs": schema.outputs,
        "classes": len(schema.classes),
    }


def _objection(value: Any, hint: Any, lengths: dict[str, int], schema: Schema) -> str | None:
    """What is wrong with a value, from the name of the entry on; None when nothing is."""
    if hint is None:
        return None if value is None else " is not empty"
    if is_typeddict(hint):
        return _table_objection(value, hint, lengths, schema)
    origin = get_origin(hint)
    if origin is Annotated:
        plain, *rules = get_args(hint)
        found = None
        for rule in rules:
            if isinstance(rule, Shape):
                found = found or rule.objection(value, lengths)
            elif isinstance(rule, Classes | Fitted | Checked):
                found = found or rule.objection(value, schema)
        if any(isinstance(rule, Shape | Classes | Fitted | States | Checked) for rule in rules):
            return None if found is None else f" {found}"
        if is_typeddict(plain):
            return _table_objection(value, plain, lengths, schema)
    if is_union(hint):
        parts = [_objection(value, part, dict(lengths), schema) for part in get_args(hint)]
        return None if any(part is None for part in parts) else parts[0]
    if hint is type(None):
        return None if value is None else " is not empty"
    if is_list(hint) or origin is list:
        if not isinstance(value, list | tuple):
            return " is no list"
        if len(value) > LONGEST:
            return f" has {len(value)} entries"
        (element, *_) = get_args(hint) or (Any,)
        for i, item in enumerate(value):
            found_in = _objection(item, element, lengths, schema)
            if found_in is not None:
                return f"[{i}]{found_in}"
        return None
    if hint is Any:
        raise TypeError("a task declares every entry of its payload; Any declares nothing")
    broken = violation(_plain(value), hint)
    if broken is not None:
        return f" {broken}"
    if isinstance(value, float | np.floating) and not np.isfinite(value):
        return " is not finite"
    return None


def _table_objection(value: Any, hint: Any, lengths: dict[str, int], schema: Schema) -> str | None:
    if not isinstance(value, Mapping):
        return " is no table"
    declared = _entries(hint)
    lengths = lengths | _agreed(value, declared, schema)
    for name in value:
        if name not in declared:
            return f": {str(name)[:40]!r} is not declared"
    for name, (inner, needed) in declared.items():
        if name not in value:
            if needed:
                return f": {name!r} is missing"
            continue
        found = _objection(value[name], inner, lengths, schema)
        for rule in getattr(inner, "__metadata__", ()):
            if found is None and isinstance(rule, States):
                found = rule.objection(value[name], value, schema)
        if found is not None:
            return f": {name}{found}"
    return None


def _agreed(value: Any, declared: Any, schema: Schema) -> dict[str, int]:
    """Axes that follow from the classes that an ask names as agreed, if it does."""
    for name, (inner, _) in declared.items():
        rules = getattr(inner, "__metadata__", ())
        if name in value and any(isinstance(rule, Classes) for rule in rules):
            return _axes_of(np.asarray(value[name]), schema)
    return {}


def _axes_of(classes: Any, schema: Schema) -> dict[str, int]:
    """The axes of agreed classes, of which a client may hold only some; none of other classes."""
    if schema.target != "classes" or classes.ndim != 1 or len(classes) > MOST_CLASSES:
        return {}
    if not np.isin(schema.classes, classes).all():
        return {}
    return {"outputs": len(classes), "classes": len(classes)}


@cache
def _entries(hint: Any) -> dict[str, tuple[Any, bool]]:
    """The entries of a TypedDict: type, and whether it must be there."""
    found = {}
    for name, inner in get_type_hints(hint, include_extras=True).items():
        optional = get_origin(inner) is NotRequired or name in hint.__optional_keys__
        found[name] = (
            get_args(inner)[0] if get_origin(inner) is NotRequired else inner,
            not optional,
        )
    return found


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


# --- fitted components ---


def build_checked(description: Any, schema: Schema) -> Any:
    """The fitted component of a description, if its state fits rows of that schema."""
    if not isinstance(description, Mapping) or set(description) != {"made", "learned"}:
        raise GateRefusal("a fitted component is what it was made of and what it learned")
    component = build_fitted(description)
    check_state(component, schema)
    return component


def check_state(component: Any, schema: Schema) -> None:
    """Refuse a component whose state is not declared, or not as declared for that schema."""
    own = type(component).__name__
    known = getattr(component, "schema_", None)
    agreed = {} if known is None else _axes_of(np.asarray(known.classes), schema)
    lengths = lengths_of(schema) | agreed
    declared = _state_hints(component.__class__)
    for name, value in vars(component).items():
        if not name.endswith("_") or name.startswith("_") or name in ("schema_", "history_"):
            continue
        if name not in declared:
            raise GateRefusal(f"{own} does not declare its {name}")
        hint = declared[name]
        if isinstance(value, Component):
            check_state(value, schema)
            continue
        found = _objection(value, hint, lengths, schema)
        if found is not None:
            raise GateRefusal(f"{own}: {name}{found}")
    if known is not None and (known.width, known.target) != (schema.width, schema.target):
        raise GateRefusal(f"{own} was fitted on other columns or another target")
    if known is not None and known.target == "classes" and len(known.classes) > MOST_CLASSES:
        raise GateRefusal(f"{own} knows {len(known.classes):,} classes, at most {MOST_CLASSES:,}")
    more = getattr(component, "check_state", None)
    if more is not None:
        try:
            more(schema)
        except Refusal as refusal:  # it knows the state that came and the schema, and no rows
            raise GateRefusal(refusal.message, hint=refusal.hint) from None


@cache
def _state_hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)
