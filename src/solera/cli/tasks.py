"""``solera tasks``: all that can be asked of a client, what it takes and what it lets out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import typer

from solera.cli.data import AsJson
from solera.cli.output import first_line, print_json, print_table
from solera.core.constraints import is_list, is_union
from solera.core.errors import UsageError
from solera.trust.declared import Classes, Fitted, Shape

if TYPE_CHECKING:
    from solera.core.task import Task


def tasks(
    name: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="Tell all of this one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The tasks installed here: what each takes, what it lets out, and which policies allow that.

    A task that does not say what it lets out runs in simulations only.
    """
    from solera.core.config import nearest
    from solera.core.task import installed_tasks

    installed = installed_tasks()
    if name is not None and name not in installed:
        raise UsageError(f"no task {name!r} is installed", hint=nearest(name, installed))
    chosen = sorted(installed) if name is None else [name]
    told = [_told(installed[task]) for task in chosen]
    if as_json:
        print_json(told)
    elif name is not None:
        for key, value in told[0].items():
            lines = value if isinstance(value, list) else [value]
            for line in lines or ([] if key == "instead" else ["nothing"]):
                typer.echo(f"{key:9} {line}")
    else:
        rows = [
            [t["name"], t["version"], ", ".join(t["kinds"]) or "-", t["allowed"], t["does"]]
            for t in told
        ]
        print_table(["name", ">version", "lets out", "allowed from", "does"], rows)


def _told(task: Task) -> dict[str, Any]:
    """A task in words."""
    from solera.trust.release import releases_of

    releases = releases_of(task)
    return {
        "name": task.name,
        "version": task.version,
        "module": task.one.__module__,
        "does": first_line(task.one),
        "takes": _takes(task.ask),
        "lets out": [f"{_entries(r.entries)}: {r.says}" for r in releases],
        "instead": list(dict.fromkeys(r.instead for r in releases if r.instead)),
        "kinds": list(dict.fromkeys(release.kind for release in releases)),
        "allowed": _allowed(task),
    }


def _entries(names: Sequence[str]) -> str:
    """Entries of a reply; of those that are numbered through, the first and the last."""
    numbered: dict[str, list[str]] = {}
    for name in names:
        numbered.setdefault(name.rstrip("0123456789"), []).append(name)
    said = [own if len(own) < 3 else [f"{own[0]} … {own[-1]}"] for own in numbered.values()]
    return ", ".join(name for own in said for name in own) or "the reply"


def _takes(declared: Any) -> list[str]:
    """Every entry of a payload and what it may be."""
    if not is_typeddict(declared):
        return []
    hints = get_type_hints(declared, include_extras=True)
    return [f"{name}: {_words(hint).strip()}" for name, hint in hints.items()]


def _words(hint: Any) -> str:
    """A declared type as people say it."""
    if isinstance(hint, type(None)) or hint is type(None):
        return "nothing"
    if get_origin(hint) is Annotated:
        plain, *rules = get_args(hint)
        return " ".join([_plain(plain, rules), *filter(None, map(_rule, rules))])
    if get_origin(hint) is NotRequired:
        return f"{_words(get_args(hint)[0])}, or absent"
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if is_union(hint):
        return " or ".join(_words(part) for part in get_args(hint))
    if is_list(hint):
        return f"a list, each {_words(get_args(hint)[0])}"
    if is_typeddict(hint):
        return f"a table ({'; '.join(_takes(hint))})"
    return getattr(hint, "__name__", str(hint))


def _plain(hint: Any, rules: list[Any]) -> str:
    return "" if any(isinstance(rule, Shape | Classes | Fitted) for rule in rules) else _words(hint)


def _rule(rule: Any) -> str:
    if isinstance(rule, Shape):
        return f"array of {' × '.join(map(str, rule.axes)) or 'one number'}"
    if isinstance(rule, Classes):
        return "the agreed classes"
    if isinstance(rule, Fitted):
        return f"a fitted {rule.of.__name__}"
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "max_length": "no longer than"}
    limits = [(sign, getattr(rule, name, None)) for name, sign in signs.items()]
    return " ".join(f"{sign} {limit}" for sign, limit in limits if limit is not None)


def _allowed(task: Task) -> str:
    """The strictest named policy under which the task runs, or runs with noise that is counted."""
    from solera.trust.gate import POLICIES
    from solera.trust.release import releases_of

    plain = {name: limits for name, limits in POLICIES.items() if not limits.trusted}
    noised = {f"{name} + noise": replace(plain[name], budget=(1.0, 0.0)) for name in plain}
    for name, limits in {**plain, **noised, **POLICIES}.items():
        if all(release.can_leave(limits) for release in releases_of(task)):
            return name
    return "none"
