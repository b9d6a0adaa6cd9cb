"""Steps by name, as scikit-learn's pipelines have them: ``name`` and ``name__parameter``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def automatic_names(steps: Sequence[Any]) -> list[str]:
    """The kind in small letters, numbered where there are several."""
    kinds = [type(step).__name__.lower() for step in steps]
    total, seen = Counter(kinds), Counter[str]()
    names = []
    for kind in kinds:
        seen[kind] += 1
        names.append(kind if total[kind] == 1 else f"{kind}-{seen[kind]}")
    return names


def as_tuples(steps: Sequence[Any]) -> tuple[Any, ...]:
    """Steps as they are written; files and messages know lists only."""
    return tuple(tuple(step) if isinstance(step, list) else step for step in steps)


def with_named(params: dict[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters, the named steps, and theirs."""
    for name, step in named.items():
        params[name] = step
        params |= {f"{name}__{inner}": v for inner, v in step.get_params(deep=True).items()}
    return params


def set_named(
    named: Mapping[str, Any], params: Mapping[str, Any], replace: Callable[[str, Any], None]
) -> dict[str, Any]:
    """Change steps and their parameters by name; returns what names no step.

    Steps that are replaced are, before parameters of the new ones are set.
    """
    rest = {}
    named = dict(named)
    for key in sorted(params, key=lambda key: "__" in key):
        name, _, inner = key.partition("__")
        if name not in named:
            rest[key] = params[key]
        elif inner:
            named[name].set_params(**{inner: params[key]})
        else:
            named[name] = params[key]
            replace(name, params[key])
    return rest
