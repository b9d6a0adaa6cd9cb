"""Entries of a TOML file, checked against what they build.

What may be written follows from the constructors and functions it is for: their parameters' names
and types. Errors name line, key and the nearest valid name.
"""

from __future__ import annotations

import inspect
import re
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from solera.core.component import Component, installed_components
from solera.core.errors import UsageError

T = TypeVar("T")
Where = tuple[str | int, ...]
"""Keys and positions that lead to an entry: ``("learner", "steps", 0, "kind")``."""


class Problem(UsageError):
    """Something is wrong with the entry at ``where``."""

    def __init__(self, where: Where, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.where = where


def component(base: type[Any], table: Mapping[str, Any], where: Where = ()) -> Any:
    """The component that a table describes: ``kind`` names its class, the rest are parameters."""
    known, what = family(base), base.__name__.lower()
    if "kind" not in table:
        raise Problem(where, f"the {what} has no kind", hint=f"one of {', '.join(known)}")
    cls = choose(known, table["kind"], what, (*where, "kind"))
    given = {("kind" if key == "kind_" else key): v for key, v in table.items() if key != "kind"}
    hints = check_call(cls, cls.__name__, given, where)
    built = {key: _nested(v, hints.get(key), (*where, key)) for key, v in given.items()}
    return cls.make(built)


def family(base: type[Any]) -> dict[str, type[Component]]:
    """Installed subclasses by name, those of packages with a ``solera.learners`` entry included."""
    found = {n: cls for n, cls in installed_components().items() if issubclass(cls, base)}
    return dict(sorted(found.items()))


def line_of(text: str, where: Where) -> int:
    """The line of the entry at ``where`` or, failing that, of the table or array it belongs to."""
    table: Where = ()
    nearest, line = 0, 1
    elements: Counter[Where] = Counter()
    for number, content in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)([^\[\]]+)\]", content):
            table = _keys(header[2])
            if header[1] == "[[":
                elements[table] += 1
                table = (*table, elements[table] - 1)
            here = table
        elif entry := re.match(r"\s*([\w\s\"'.-]+)=", content):
            here = (*table, *_keys(entry[1]))
        else:
            continue
        if len(here) > nearest and here == where[: len(here)]:
            nearest, line = len(here), number
    return line


def _keys(dotted: str) -> Where:
    return tuple(key.strip(" \t\"'") for key in dotted.split("."))


def _nested(value: Any, hint: Any, where: Where) -> Any:
    """Tables with a ``kind`` become components, wherever they are."""
    if isinstance(value, list):
        return [_nested(v, hint, (*where, i)) for i, v in enumerate(value)]
    if isinstance(value, dict) and "kind" in value:
        bases = [t for t in _alternatives(hint) if _is_component(t)]
        return component(bases[0] if bases else Component, value, where)
    return value


# --- checking entries against what they are for ---


def check_call(
    function: Callable[..., Any],
    owner: str,
    given: Mapping[str, Any],
    where: Where,
    *,
    also: Sequence[str] = (),
    without: Sequence[str] = (),
) -> dict[str, Any]:
    """Check names and types of arguments before a call; returns the types by name.

    ``also`` are other names that would be right in the same table, ``without`` those that are not.
    """
    parameters = {
        name: p
        for name, p in inspect.signature(function).parameters.items()
        if name not in ("self", *without)
    }
    hints = type_hints(function)
    for name, value in given.items():
        if name not in parameters:
            near = nearest(name, [*parameters, *also])
            raise Problem((*where, name), f"{owner} has no {name!r}", hint=near)
        hint = hints.get(name, Any)
        if not fits(value, hint):
            raise Problem((*where, name), f"{owner}: {name} = {value!r} is not {_words(hint)}")
    for name, p in parameters.items():
        if name not in given and p.default is p.empty and p.kind is not p.VAR_POSITIONAL:
            is_table = _TABLE in _words(hints.get(name))
            raise Problem(
                where,
                f"{owner} needs {name}",
                hint=f"add [{name}]" if is_table else f"add {name} = …",
            )
    return hints


def build_table(cls: type[T], owner: str, given: Mapping[str, Any], where: Where) -> T:
    """The dataclass that a table describes; its types may have bounds (:class:`msgspec.Meta`)."""
    check_call(cls, owner, given, where)
    try:
        return msgspec.convert(given, cls)
    except msgspec.ValidationError as error:
        rule, _, path = str(error).rpartition(" - at `$.")
        name = path.rstrip("`")
        bound = rule.split("`")[-1].strip()
        raise Problem(
            (*where, name), f"{owner}: {name} = {given[name]!r} must be {bound}"
        ) from None


def choose(known: Mapping[str, Any], name: Any, what: str, where: Where) -> Any:
    if not isinstance(name, str) or name not in known:
        hint = nearest(str(name), known)
        raise Problem(where, f"there is no {what} {name!r}", hint=hint)
    return known[name]


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint: the name that was probably meant, or all of them."""
    spelled = {known.lower(): known for known in names}
    near = get_close_matches(name.lower(), spelled, n=1, cutoff=0.5)
    if near:
        return f"did you mean {spelled[near[0]]!r}?"
    return f"known: {', '.join(spelled.values())}" if spelled else "it takes none"


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Types of the parameters by name; ``*name`` is a list."""
    called = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        hints = get_type_hints(called)
    except NameError:  # names that exist for type checkers only
        hints = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            hints[name] = types.GenericAlias(list, (hints.get(name, Any),))
    return hints


def _alternatives(hint: Any) -> list[Any]:
    """The types of a union, the element types of a sequence, or the type itself."""
    if get_origin(hint) in (Union, types.UnionType):
        return [t for part in get_args(hint) for t in _alternatives(part)]
    if _is_sequence(hint):
        return [t for part in get_args(hint) for t in _alternatives(part)]
    return [hint]


def _is_component(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Component)


def _is_sequence(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Sequence)


_TABLE = "a table"
_PLAIN: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    str: (str, "text"),
}


def fits(value: Any, hint: Any) -> bool:
    """Whether a TOML value can be of a type; of types that TOML does not know anything can."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is types.NoneType:
        return False
    if hint in _PLAIN:
        return isinstance(value, _PLAIN[hint][0]) and (hint is bool) == isinstance(value, bool)
    if _is_component(hint) or is_dataclass(hint):
        return isinstance(value, dict)
    if _is_sequence(hint):
        return isinstance(value, list) and all(fits(v, get_args(hint)[0]) for v in value)
    return True


def _words(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_words(part) for part in get_args(hint) if part is not types.NoneType]
        return " or ".join(dict.fromkeys(parts))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    if _is_sequence(hint):
        return f"a list, each {_words(get_args(hint)[0])}"
    if hint in _PLAIN:
        return _PLAIN[hint][1]
    return _TABLE if _is_component(hint) or is_dataclass(hint) else "of the right type"
