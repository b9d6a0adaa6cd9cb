"""Functions and networks of a user, by names under which tasks ask for them.

A name is made of the function's own name and of a digest of its code, what it closes over and the
constants that it reads: the same in every process, so that a run can go on in another one, and
another one as soon as the function does something else. No code travels to real clients; workers
of a simulation get what was registered here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from types import CodeType, FunctionType
from typing import Any

from solera.core.errors import UsageError
from solera.core.registry import new_registry
from solera.learn.averaging.models import Registered, described

Function = Callable[..., Any]
_functions: dict[str, Function] = new_registry()
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_APART = "~"
"""Between a name and a number that tells functions apart whose code is the same."""


def register_function(function: Any) -> str | None:
    """The name of a function, which is registered under it; a name and None stay what they are."""
    if function is None or isinstance(function, str):
        return function
    if hasattr(function, "named_parameters") and not isinstance(function, type):
        network = described(function)  # a network as it is: its name tells its numbers
        return network.name if isinstance(network, Registered) else None
    if not callable(function):
        raise UsageError(f"{function!r} must be a function")
    name = _name(function)
    choice, number = name, 1
    while _functions.setdefault(choice, function) is not function:
        number += 1
        choice = f"{name}{_APART}{number}"
    return choice


def stable_name(function: Any) -> str | None:
    """The name that a function has in every process."""
    name = register_function(function)
    return None if name is None else name.partition(_APART)[0]


def find_function(name: str) -> Function:
    """The function registered under a name."""
    if name.startswith("given/"):
        return Registered(name).module
    known = name if name in _functions else name.partition(_APART)[0]
    if known not in _functions:
        raise UsageError(
            f"the function {name!r} is not known in this process: a saved model holds no code",
            hint="so.load(path, model=…) takes the network; to train on, make the so.FedTorch "
            "with its functions before so.load",
        )
    return _functions[known]


def _name(function: Function) -> str:
    home = getattr(function, "__module__", None) or type(function).__module__
    own = getattr(function, "__qualname__", None) or type(function).__qualname__
    content = "\n".join(_content(function, set()))
    return f"{home}.{own}/{blake2b(content.encode(), digest_size=9).hexdigest()}"


def _content(value: Any, seen: set[int]) -> Iterator[str]:
    """All of a function that says what it does, as lines of text; ``seen`` are functions."""
    if isinstance(value, _PLAIN):
        yield repr(value)
    elif isinstance(value, FunctionType):
        if id(value) in seen:
            return
        seen.add(id(value))
        yield from _content(value.__code__, seen)
        yield from _content([value.__defaults__, value.__kwdefaults__], seen)
        for cell in value.__closure__ or ():
            yield from _content(_held(cell), seen)
        for name in value.__code__.co_names:
            used = value.__globals__.get(name)
            same_module = getattr(used, "__module__", None) == value.__module__
            if isinstance(used, _PLAIN) or (isinstance(used, FunctionType) and same_module):
                yield name
                yield from _content(used, seen)
    elif isinstance(value, CodeType):
        yield value.co_code.hex()
        yield " ".join(value.co_names)
        yield from _content(value.co_consts, seen)
    elif isinstance(value, partial):
        yield from _content([value.func, value.args, value.keywords], seen)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield repr(key)
            yield from _content(inner, seen)
    elif isinstance(value, list | tuple):
        yield str(len(value))
        for inner in value:
            yield from _content(inner, seen)
    elif isinstance(value, set | frozenset):
        yield repr(sorted(map(repr, value)))
    else:
        kind = value if isinstance(value, type) else type(value)
        yield f"{kind.__module__}.{kind.__qualname__}"


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None
