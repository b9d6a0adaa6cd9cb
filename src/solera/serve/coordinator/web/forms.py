"""A job from a form: the parameters that a learner declares, and the file that they make."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from solera.core.component import installed_components
from solera.learn.base import Learner


@dataclass(frozen=True)
class Parameter:
    """One line of the form."""

    name: str
    kind: str
    default: str
    given: str


def learners() -> list[str]:
    """The learners that can be started, by name."""
    found = installed_components().items()
    return sorted(
        name
        for name, kind in found
        if issubclass(kind, Learner) and not inspect.isabstract(kind) and kind.__doc__
    )


def about(kind: str) -> str:
    """The first line of what a learner says of itself."""
    return (inspect.getdoc(installed_components()[kind]) or "").partition("\n")[0]


def parameters(kind: str, given: Mapping[str, str]) -> list[Parameter]:
    """What the constructor of a learner takes, and what was given so far."""
    signature = inspect.signature(installed_components()[kind])
    found = []
    for name, parameter in signature.parameters.items():
        hint = parameter.annotation
        words = hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
        default = "" if parameter.default is parameter.empty else repr(parameter.default)
        found.append(Parameter(name, words[:60], default[:60], given.get(name, "")))
    return found


def job_file(
    federation: str, kind: str, name: str, clients: int, owner: str, given: Mapping[str, str]
) -> str:
    """The file that declares the job; values are TOML, and text that is not is taken as text."""
    lines = [
        f"name = {json.dumps(name)}",
        f"federation = {json.dumps(federation)}",
        f"owner = {json.dumps(owner, ensure_ascii=False)}",
        f"clients = {clients}",
        'evaluate = "test"',
        "scores = true",
        "",
        "[learner]",
        f"kind = {json.dumps(kind)}",
    ]
    lines += [f"{key} = {_value(text)}" for key, text in given.items() if text.strip()]
    return "\n".join(lines) + "\n"


def _value(text: str) -> str:
    text = " ".join(text.split())
    try:
        read: Any = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return json.dumps(text, ensure_ascii=False)
    return text if list(read) == ["value"] else json.dumps(text, ensure_ascii=False)
