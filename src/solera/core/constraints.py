"""What a parameter may be, declared once: in the annotation of the constructor that takes it.

    def __init__(self, *, rounds: Count = 10, lr: Positive = 0.1, mode: Literal["min", "max"]): …

:meth:`solera.core.component.Component.check_params` compares every parameter with its annotation.
Numbers, text, choices, functions, components, and lists and unions of these are compared; any
value passes for a type that is none of them, such as an array.
"""

from __future__ import annotations

import inspect
import numbers
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, wraps
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from msgspec import Meta

from solera.core.errors import UnknownArgument, UsageError

P = ParamSpec("P")
T = TypeVar("T")
Count = Annotated[int, Meta(ge=1)]
"""A whole number of at least one."""
NonNegativeInt = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
"""A share, none and all included."""
PositiveFraction = Annotated[float, Meta(gt=0, le=1)]
"""A share above none, all included."""
ProperFraction = Annotated[float, Meta(ge=0, lt=1)]
"""A share below all, none included."""

_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool, np.bool_), "true or false"),
    int: ((numbers.Integral,), "a whole number"),
    float: ((numbers.Real,), "a number"),
    str: ((str,), "text"),
    types.NoneType: ((types.NoneType,), "None"),
}


@cache
def parameters_of(function: Any) -> tuple[inspect.Parameter, ...]:
    """The parameters of a function, or of a class's constructor without ``self``."""
    called = _called(function)
    if called is object.__init__:
        return ()
    parameters = inspect.signature(called).parameters.values()
    return tuple(parameter for parameter in parameters if parameter.name != "self")


@cache
def declared_types(function: Any) -> dict[str, Any]:
    """The annotations of the :func:`parameters_of` a function, those of ``*name`` as a list."""
    hints = _hints(_called(function))
    declared = {}
    for parameter in parameters_of(function):
        hint = hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_POSITIONAL:
            hint = types.GenericAlias(list, (hint,))
        declared[parameter.name] = hint
    return declared


def _called(function: Any) -> Any:
    return function.__init__ if isinstance(function, type) else function  # type: ignore[misc]


def check_arguments(function: Callable[..., Any], *, owner: object = None, **given: Any) -> None:
    """Raise :class:`UsageError` for an argument that the function's annotation does not allow.

    The error names ``owner``, or the function.
    """
    check_values(function.__name__ if owner is None else owner, _hints(function), given)


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(function, include_extras=True)


def check_values(owner: object, hints: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise :class:`UsageError` for a value that is not of the type of its name."""
    for name, value in values.items():
        rule = violation(value, hints[name])
        if rule is not None:
            raise UsageError.of(owner, name, value, rule, hint=_object_meant(value, hints[name]))


def _object_meant(value: Any, hint: Any) -> str | None:
    """The object to give instead of a component's class, or of its name as text."""
    if isinstance(value, type) and _is_component(value):
        return f"that is a class: give an object, {value.__name__}(…)"
    bases = [
        part for part in (get_args(hint) if is_union(hint) else (hint,)) if _is_component(part)
    ]
    if not isinstance(value, str) or not bases:
        return None
    known = {cls.__name__.lower(): cls.__name__ for base in bases for cls in _below(base)}
    near = get_close_matches(value.lower(), known, n=1, cutoff=0.5)
    return f"did you mean an object, {known[near[0]]}(…)?" if near else None


def _below(cls: type[Any]) -> Iterator[type[Any]]:
    for child in cls.__subclasses__():
        yield child
        yield from _below(child)


def names_checked(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which names the nearest argument when it is given one it does not have."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        check_names(function.__name__, [p.name for p in parameters_of(function)], kwargs)
        return function(*args, **kwargs)

    return called


def check_names(owner: str, known: Sequence[str], given: Iterable[str]) -> None:
    """Raise :class:`UnknownArgument` for a name that is not among those that are known."""
    for name in given:
        if name not in known:
            raise UnknownArgument(f"{owner} has no argument {name!r}", hint=nearest(name, known))


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint: the name that was probably meant, or all of them."""
    spelled = {known.lower(): known for known in names}
    near = get_close_matches(name.lower(), spelled, n=1, cutoff=0.5)
    if near:
        return f"did you mean {spelled[near[0]]!r}?"
    return f"known: {', '.join(spelled.values())}" if spelled else "it takes none"


def violation(value: Any, hint: Any) -> str | None:
    """What ``value`` must be to be of the type ``hint``, or None when it is."""
    return None if _fits(value, hint) else f"must be {_words(hint)}"


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if isinstance(hint, type) and hint in _PLAIN:
        kinds, _ = _PLAIN[hint]
        return isinstance(value, kinds) and (hint is bool or not isinstance(value, bool))
    origin = get_origin(hint)
    if origin is Annotated:
        plain, *extra = get_args(hint)
        return _fits(value, plain) and all(_in_range(value, m) for m in extra)
    if is_union(hint):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return any(value is choice or _equal(value, choice) for choice in get_args(hint))
    if origin is Callable:
        return callable(value)
    if is_tuple(hint):
        parts = get_args(hint)
        return (
            isinstance(value, tuple | list)
            and len(value) == len(parts)
            and all(_fits(v, part) for v, part in zip(value, parts, strict=True))
        )
    if is_list(hint):
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            return False
        (element,) = get_args(hint)[:1] or (Any,)
        return not isinstance(value, list | tuple) or all(_fits(v, element) for v in value)
    return isinstance(value, hint) if _is_component(hint) else True


def _equal(value: Any, choice: Any) -> bool:
    return type(value) is type(choice) and bool(value == choice)


def _in_range(value: Any, meta: Any) -> bool:
    if not isinstance(meta, Meta):
        return True
    return (
        (meta.ge is None or value >= meta.ge)
        and (meta.gt is None or value > meta.gt)
        and (meta.le is None or value <= meta.le)
        and (meta.lt is None or value < meta.lt)
    )


def _words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Annotated:
        plain, *extra = get_args(hint)
        return " ".join([_words(plain), *(_range(m) for m in extra if isinstance(m, Meta))])
    if is_union(hint):
        return _one_of([_words(part) for part in get_args(hint)])
    if origin is Literal:
        return _one_of([repr(choice) for choice in get_args(hint)])
    if origin is Callable:
        return "a function"
    if hint in _PLAIN:
        return _PLAIN[hint][1]
    if is_tuple(hint):
        return f"({', '.join(map(_words, get_args(hint)))})"
    if is_list(hint):
        return f"a list, each {_words(get_args(hint)[0])}"
    return f"a {hint.__name__}" if _is_component(hint) else "of the right type"


def _one_of(words: list[str]) -> str:
    words = list(dict.fromkeys(words))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _range(meta: Meta) -> str:
    low = meta.gt if meta.ge is None else meta.ge
    high = meta.lt if meta.le is None else meta.le
    if low is not None and high is not None:
        return f"in {'(' if meta.ge is None else '['}{low}, {high}{')' if meta.le is None else ']'}"
    if low is not None:
        return f"> {low}" if meta.ge is None else f"of at least {low}"
    return f"< {high}" if meta.le is None else f"of at most {high}"


def is_union(hint: Any) -> bool:
    """Whether it is of several types."""
    return get_origin(hint) in (Union, types.UnionType)


def is_list(hint: Any) -> bool:
    """Whether it is a type of sequences that says what their elements are."""
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Sequence) and not is_tuple(hint)


def is_tuple(hint: Any) -> bool:
    """Whether it is a type of sequences of a length, each element of its own type."""
    return get_origin(hint) is tuple and Ellipsis not in get_args(hint)


def _is_component(hint: Any) -> bool:
    return isinstance(hint, type) and hasattr(hint, "check_params")
