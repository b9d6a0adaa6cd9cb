"""A run file: one data set, one partition, one learner and several seeds, declared in TOML.

    name = "digits-dirichlet"    # also the folder under runs/; the file's name by default
    seeds = [0, 1, 2]

    [data]
    name = "digits"              # any data set of ``solera data list``, and its options:
    test = 0.25                  # here the share of its rows kept apart to score on
    clients = 20
    client_test = 0.2            # the share of its own rows every client keeps to judge by

    [partition]
    kind = "Dirichlet"           # any partition, and its parameters
    alpha = 0.3

    [learner]
    kind = "FedLinear"           # any learner, and its parameters
    rounds = 30

    [engine]
    kind = "local"               # or "processes", with workers = 2

A parameter that is itself a component is a table with a ``kind`` of its own. A parameter called
``kind`` is written ``kind_``, because ``kind`` names the class.

What may be written follows from what it builds: the dataclasses below, the constructors of the
components and the loaders of the data sets. Errors name file, line, key and the nearest valid name.
"""

from __future__ import annotations

import inspect
import os
import re
import tomllib
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from solera.core.component import Component, installed_components
from solera.core.errors import UsageError
from solera.data import datasets
from solera.data.partition import IID, Partition
from solera.learn.base import Learner

Where = tuple[str | int, ...]
"""Keys and positions that lead to an entry: ``("learner", "steps", 0, "kind")``."""


@dataclass(frozen=True)
class DataSpec:
    """Which rows, over how many clients; ``options`` are those of the data set's loader.

    ``client_test`` is the share of its rows that every client keeps to judge the model by.
    """

    name: str
    clients: int | None = None
    client_test: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineSpec:
    """How messages travel."""

    kind: Literal["local", "processes"] = "local"
    workers: int | None = None


@dataclass(frozen=True)
class Spec:
    """What to run. ``text`` is the file as it was written."""

    name: str
    data: DataSpec
    learner: Learner
    partition: Partition = field(default_factory=IID)
    engine: EngineSpec = EngineSpec()
    seeds: tuple[int, ...] = (0,)
    text: str = field(default="", compare=False, repr=False)


class Problem(UsageError):
    """Something is wrong with the entry at ``where``."""

    def __init__(self, where: Where, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.where = where


def read(path: str | os.PathLike[str]) -> Spec:
    """The run that a TOML file declares."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"there is no file {path}", hint="'solera demo' writes one to runs/demo/spec.toml"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error.reason}") from None
    return parse(text, file=str(path), name=path.stem)


def parse(text: str, *, file: str, name: str) -> Spec:
    """The run that TOML text declares; ``file`` is named in errors, ``name`` is its default."""
    try:
        return _spec({"name": name, **tomllib.loads(text)}, text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        where = f"{file}:{at[1]}" if at else file
        raise UsageError(f"{where}: this is not TOML: {error}") from None
    except Problem as problem:
        line = line_of(text, problem.where)
        raise UsageError(f"{file}:{line}: {problem.message}", hint=problem.hint) from None


def component(base: type[Any], table: Mapping[str, Any], where: Where = ()) -> Any:
    """The component that a table describes: ``kind`` names its class, the rest are parameters."""
    known, what = family(base), base.__name__.lower()
    if "kind" not in table:
        raise Problem(where, f"the {what} has no kind", hint=f"one of {', '.join(known)}")
    cls = _choose(known, table["kind"], what, (*where, "kind"))
    given = {("kind" if key == "kind_" else key): v for key, v in table.items() if key != "kind"}
    hints = _check_call(cls, cls.__name__, given, where)
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


def _spec(content: Mapping[str, Any], text: str) -> Spec:
    _check_call(Spec, "the file", content, (), without=("text",))
    name, seeds = content["name"], tuple(content.get("seeds", (0,)))
    if not re.fullmatch(r"\w[\w .+-]*", name):
        raise Problem(("name",), f"name {name!r} cannot be the name of a folder")
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise Problem(("seeds",), f"seeds = {list(seeds)}: give different whole numbers from 0 on")
    return Spec(
        name=name,
        seeds=seeds,
        data=_data(content["data"]),
        partition=component(Partition, content.get("partition", {"kind": "IID"}), ("partition",)),
        learner=component(Learner, content["learner"], ("learner",)),
        engine=_engine(content.get("engine", {})),
        text=text,
    )


def _data(table: Mapping[str, Any]) -> DataSpec:
    where: Where = ("data",)
    if "name" not in table:
        raise Problem(where, "[data] has no name", hint="'solera data list' shows the data sets")
    loaders = {info.name: getattr(datasets, info.name) for info in datasets.available()}
    loader = _choose(loaders, table["name"], "data set", (*where, "name"))
    own = {key: table[key] for key in ("name", "clients", "client_test") if key in table}
    options = {key: value for key, value in table.items() if key not in own}
    _check_call(DataSpec, "[data]", own, where)
    _check_call(
        loader, f"data set {table['name']}", options, where, also=("clients", "client_test")
    )
    spec = DataSpec(**own, options=options)
    if spec.clients is not None and spec.clients < 1:
        raise Problem((*where, "clients"), f"clients = {spec.clients}: at least 1 is needed")
    if not 0 <= spec.client_test < 1:
        rule = "must be a share of at least 0 and below 1"
        raise Problem((*where, "client_test"), f"client_test = {spec.client_test}: {rule}")
    return spec


def _engine(table: Mapping[str, Any]) -> EngineSpec:
    _check_call(EngineSpec, "[engine]", table, ("engine",))
    spec = EngineSpec(**table)
    if spec.workers is not None and (spec.workers < 1 or spec.kind == "local"):
        raise Problem(
            ("engine", "workers"),
            f'workers = {spec.workers} with kind = "{spec.kind}"',
            hint='at least 1, and only with kind = "processes"',
        )
    return spec


def _nested(value: Any, hint: Any, where: Where) -> Any:
    """Tables with a ``kind`` become components, wherever they are."""
    if isinstance(value, list):
        return [_nested(v, hint, (*where, i)) for i, v in enumerate(value)]
    if isinstance(value, dict) and "kind" in value:
        bases = [t for t in _alternatives(hint) if _is_component(t)]
        return component(bases[0] if bases else Component, value, where)
    return value


# --- checking entries against what they are for ---


def _check_call(
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
    hints = _hints(function)
    for name, value in given.items():
        if name not in parameters:
            near = nearest(name, [*parameters, *also])
            raise Problem((*where, name), f"{owner} has no {name!r}", hint=near)
        hint = hints.get(name, Any)
        if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            hint = hints[name] = types.GenericAlias(list, (hint,))
        if not _fits(value, hint):
            raise Problem((*where, name), f"{owner}: {name} = {value!r} is not {_words(hint)}")
    for name, p in parameters.items():
        if name not in given and p.default is p.empty and p.kind is not p.VAR_POSITIONAL:
            is_table = _words(hints.get(name)) == _TABLE
            raise Problem(
                where,
                f"{owner} needs {name}",
                hint=f"add [{name}]" if is_table else f"add {name} = …",
            )
    return hints


def _choose(known: Mapping[str, Any], name: Any, what: str, where: Where) -> Any:
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


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    if isinstance(function, type):
        function = function.__init__  # type: ignore[misc]
    try:
        return get_type_hints(function)
    except NameError:  # names that exist for type checkers only
        return {}


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


def _fits(value: Any, hint: Any) -> bool:
    """Whether a TOML value can be of a type; of types that TOML does not know anything can."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is types.NoneType:
        return False
    if hint in _PLAIN:
        return isinstance(value, _PLAIN[hint][0]) and (hint is bool) == isinstance(value, bool)
    if _is_component(hint) or is_dataclass(hint):
        return isinstance(value, dict)
    if _is_sequence(hint):
        return isinstance(value, list) and all(_fits(v, get_args(hint)[0]) for v in value)
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
