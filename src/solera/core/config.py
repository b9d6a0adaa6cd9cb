"""Entries of a TOML file, checked against what they build.

What may be written follows from the constructors and functions it is for: their parameters' names
and types. Errors name line, key and the nearest valid name.
"""

from __future__ import annotations

import os
import re
import tomllib
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from solera.core.component import Component, full_name, installed_components
from solera.core.constraints import (
    declared_types,
    is_list,
    is_union,
    parameters_of,
    violation,
)
from solera.core.constraints import (
    nearest as nearest,
)
from solera.core.errors import UsageError

T = TypeVar("T")
Where = tuple[str | int, ...]
"""Keys and positions that lead to an entry: ``("learner", "steps", 0, "kind")``."""


class Problem(UsageError):
    """Something is wrong with the entry at ``where``."""

    def __init__(self, where: Where, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.where = where


def read_text(path: str | os.PathLike[str], *, hint: str | None = None) -> str:
    """The text of a file, or an error that says why it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}", hint=hint) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error.reason}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


@contextmanager
def errors_located(text: str, file: str) -> Iterator[None]:
    """Errors about entries of the TOML ``text`` name file and line."""
    try:
        yield
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        where = f"{file}:{at[1]}" if at else file
        raise UsageError(f"{where}: this is not TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{file}: this is nested too deeply") from None
    except Problem as problem:
        line = line_of(text, problem.where)
        raise UsageError(f"{file}:{line}: {problem.message}", hint=problem.hint) from None


def component(base: type[Any], table: Mapping[str, Any], where: Where = ()) -> Any:
    """The component that a table describes: ``kind`` names its class, the rest are parameters."""
    known, what = family(base), base.__name__.lower()
    if "kind" not in table:
        raise Problem(where, f"the {what} has no kind", hint=f"one of {', '.join(known)}")
    cls = choose(known, registered_name(table["kind"]), what, (*where, "kind"))
    given = {("kind" if key == "kind_" else key): v for key, v in table.items() if key != "kind"}
    hints = check_call(cls, cls.__name__, given, where)
    built = {key: _nested(v, hints.get(key), (*where, key)) for key, v in given.items()}
    try:
        return cls.make(built)
    except Problem:
        raise
    except UsageError as error:  # a value that its declaration does not allow
        raise Problem(where, error.message, hint=error.hint) from None


def registered_name(kind: Any) -> Any:
    """The registered name of a component that goes by its bare name, if there is one."""
    try:
        return full_name(kind) if isinstance(kind, str) else kind
    except UsageError:
        return kind


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
            *parents, name = _keys(header[2])
            table = ()
            for key in parents:  # [task.where] belongs to the last [[task]] above it
                table = (*table, key)
                if table in elements:
                    table = (*table, elements[table] - 1)
            table = (*table, name)
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
    """Tables become components, wherever they are, and ``false`` may be None.

    ``kind`` names the class, unless the parameter takes one alone.
    """
    if _means_none(value, hint):
        return None
    if isinstance(value, list):
        return [_nested(v, hint, (*where, i)) for i, v in enumerate(value)]
    if not isinstance(value, dict):
        return value
    bases = [t for t in _alternatives(hint) if _is_component(t)]
    if "kind" not in value and len(bases) == 1 and list(family(bases[0]).values()) == bases:
        value = {"kind": bases[0].__name__, **value}
    if "kind" in value:
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
    passed: Sequence[str] = (),
) -> dict[str, Any]:
    """Check names and types of arguments before a call; returns the types by name.

    ``also`` are other names that would be right in the same table, ``passed`` are arguments that
    do not come from it.
    """
    hints = {n: hint for n, hint in declared_types(function).items() if n not in passed}
    for name, value in given.items():
        if name not in hints:
            near = nearest(name, [*hints, *also])
            raise Problem((*where, name), f"{owner} has no {name!r}", hint=near)
        if rule := _rule_broken(value, hints[name]):
            raise Problem((*where, name), f"{owner}: {name} = {value!r} is not {rule}")
    for p in parameters_of(function):
        if p.name in passed:
            continue
        if p.name not in given and p.default is p.empty and p.kind is not p.VAR_POSITIONAL:
            is_table = any(map(_is_table, _alternatives(hints[p.name])))
            entry = f"[{p.name}]" if is_table else f"{p.name} = …"
            raise Problem(where, f"{owner} needs {p.name}", hint=f"add {entry}")
    return hints


def build_table(cls: type[T], owner: str, given: Mapping[str, Any], where: Where) -> T:
    """The dataclass that a table describes."""
    check_call(cls, owner, given, where)
    return cls(**given)


def choose(known: Mapping[str, Any], name: Any, what: str, where: Where) -> Any:
    if not isinstance(name, str) or name not in known:
        hint = nearest(str(name), known)
        raise Problem(where, f"there is no {what} {name!r}", hint=hint)
    return known[name]


def _alternatives(hint: Any) -> list[Any]:
    """The types of a union, the element types of a sequence, or the type itself."""
    if is_union(hint) or is_list(hint):
        return [t for part in get_args(hint) for t in _alternatives(part)]
    return [hint]


def _is_component(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Component)


def _is_table(hint: Any) -> bool:
    return _is_component(hint) or is_dataclass(hint)


def fits(value: Any, hint: Any) -> bool:
    """Whether a TOML value can be of a type; of types that TOML does not know anything can."""
    return _rule_broken(value, hint) is None


def _means_none(value: Any, hint: Any) -> bool:
    """Whether it is a ``false`` that stands for None, for which TOML has no word."""
    options = get_args(hint) if is_union(hint) else ()
    may_be = hint is Any or (types.NoneType in options and bool not in options)
    return value is False and may_be


def _rule_broken(value: Any, hint: Any) -> str | None:
    """What a TOML value must be to be of a type, or None when it can be."""
    if _means_none(value, hint):
        return None
    rules = []
    for option in get_args(hint) if is_union(hint) else (hint,):
        if option is types.NoneType:
            continue
        if is_list(option):
            rule = _list_rule_broken(value, get_args(option)[0])
        elif _is_table(option):
            rule = None if isinstance(value, dict) else "a table"
        else:
            rule = violation(value, option)
        if rule is None:
            return None
        rules.append(rule.removeprefix("must be "))
    return " or ".join(dict.fromkeys(rules))


def _list_rule_broken(value: Any, element: Any) -> str | None:
    if not isinstance(value, list):
        return "a list"
    rules = filter(None, (_rule_broken(each, element) for each in value))
    return next((f"a list, each {rule}" for rule in rules), None)
