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

Function = Callable[..., Any]
_functions: dict[str, Function] = new_registry()
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_APART = "~"
"""Between a name and a number that tells functions apart whose code is the same."""


class GivenNetwork:
    """Makes copies of a network that was given as it is."""

    def __init__(self, network: Any) -> None:
        from copy import deepcopy

        self.network = deepcopy(network)
        values = [
            value.detach().cpu().double().numpy().tobytes()
            for part in _networks(network)
            for value in part.state_dict().values()
        ]
        content = repr(network).encode() + b"".join(values)
        self.digest = blake2b(content, digest_size=12).hexdigest()

    def __call__(self) -> Any:
        from copy import deepcopy

        return deepcopy(self.network)


def register_function(function: Any) -> str | None:
    """The name of a function, which is registered under it; a name and None stay what they are."""
    if function is None or isinstance(function, str):
        return function
    if _is_network(function):
        made = GivenNetwork(function)
        _functions.setdefault(f"given/{made.digest}", made)
        return f"given/{made.digest}"
    if not callable(function):
        raise UsageError(f"{function!r} must be a function")
    name = _name(function)
    choice, number = name, 1
    while _functions.setdefault(choice, function) is not function:
        if not _keeps_objects(function):  # the same code on the same values
            _functions[choice] = function
            break
        number += 1
        choice = f"{name}{_APART}{number}"
    return choice


def stable_name(function: Any) -> str | None:
    """The name that a function has in every process."""
    name = register_function(function)
    return None if name is None else name.partition(_APART)[0]


def find_function(name: str) -> Function:
    """The function registered under a name."""
    known = name if name in _functions else name.partition(_APART)[0]
    if known not in _functions:
        shown = name.partition("/")[0]
        raise UsageError(
            f"the function {name!r} is not known in this process: a saved model holds no code",
            hint=f"so.load(path, model=…) takes the network; to train on, make so.FedTorch with "
            f"{shown} before so.load",
        )
    return _functions[known]


def _is_network(value: Any) -> bool:
    return any(True for _ in _networks(value))


def _networks(value: Any) -> Iterator[Any]:
    """A network, or those of a table."""
    parts = value.values() if isinstance(value, dict) else [value]
    for part in parts:
        if not isinstance(part, type) and hasattr(part, "named_parameters"):
            yield part


def _name(function: Function) -> str:
    home = getattr(function, "__module__", None) or type(function).__module__
    own = getattr(function, "__qualname__", None) or type(function).__qualname__
    content = "\n".join(_content(function, set()))
    return f"{home}.{own}/{blake2b(content.encode(), digest_size=9).hexdigest()}"


def _content(value: Any, seen: set[int]) -> Iterator[str]:
    """All of a function that says what it does, as lines of text."""
    if id(value) in seen:
        return
    if isinstance(value, _PLAIN):
        yield repr(value)
        return
    seen.add(id(value))
    if isinstance(value, FunctionType):
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


def _keeps_objects(function: Any) -> bool:
    """Whether it closes over something of which its name does not say what it is."""
    if isinstance(function, partial):
        held = [*function.args, *function.keywords.values(), function.func]
    elif isinstance(function, FunctionType):
        held = [_held(cell) for cell in function.__closure__ or ()]
    else:
        return not isinstance(function, type)
    return any(not _is_plain(value) for value in held)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, FunctionType):
        return not _keeps_objects(value)
    return isinstance(value, (*_PLAIN, type))
