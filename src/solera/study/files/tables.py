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

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from solera.core.config import Problem, Where, check_call, choose, component, line_of
from solera.core.errors import UsageError
from solera.data import datasets
from solera.data.partition import IID, Partition
from solera.learn.base import Learner

SECTIONS = ("data", "partition", "learner")
"""The tables that a study may have several of."""
STUDY_KEYS = ("schemes", "metrics", "folds", "search", "budget", "energy")
"""What only studies declare; see :mod:`solera.study.files.reader`."""


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


def read(path: str | os.PathLike[str]) -> Spec:
    """The run that a TOML file declares."""
    return parse(read_text(path), file=str(path), name=Path(path).stem)


def read_text(path: str | os.PathLike[str]) -> str:
    """A text file, or an error that says what is wrong with it."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"there is no file {path}", hint="'solera demo' writes one to runs/demo/spec.toml"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error.reason}") from None


def parse(text: str, *, file: str, name: str) -> Spec:
    """The run that TOML text declares; ``file`` is named in errors, ``name`` is its default."""
    with errors_located(text, file):
        return build({"name": name, **tomllib.loads(text)}, text)


@contextmanager
def errors_located(text: str, file: str) -> Iterator[None]:
    """Errors about entries of ``text`` name file and line."""
    try:
        yield
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        where = f"{file}:{at[1]}" if at else file
        raise UsageError(f"{where}: this is not TOML: {error}") from None
    except Problem as problem:
        line = line_of(text, problem.where)
        raise UsageError(f"{file}:{line}: {problem.message}", hint=problem.hint) from None


def build(
    content: Mapping[str, Any], text: str = "", places: Mapping[str, Where] | None = None
) -> Spec:
    """The run that the content of a file describes.

    ``places`` says where its data, partition and learner stand, unless at the top of the file.
    """
    check_call(Spec, "the file", content, (), without=("text",), also=STUDY_KEYS)
    at = {section: (section,) for section in SECTIONS} | dict(places or {})
    return Spec(
        name=folder_name(content["name"]),
        seeds=checked_seeds(content.get("seeds", [0])),
        data=_data(content["data"], at["data"]),
        partition=component(Partition, content.get("partition", {"kind": "IID"}), at["partition"]),
        learner=component(Learner, content["learner"], at["learner"]),
        engine=_engine(content.get("engine", {})),
        text=text,
    )


def folder_name(name: str) -> str:
    """A name that can be a folder's."""
    if not re.fullmatch(r"\w[\w .+-]*", name):
        raise Problem(("name",), f"name {name!r} cannot be the name of a folder")
    return name


def checked_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """Different whole numbers from 0 on."""
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise Problem(("seeds",), f"seeds = {list(seeds)}: give different whole numbers from 0 on")
    return tuple(seeds)


def _data(table: Mapping[str, Any], where: Where) -> DataSpec:
    if "name" not in table:
        raise Problem(where, "[data] has no name", hint="'solera data list' shows the data sets")
    loaders = {info.name: getattr(datasets, info.name) for info in datasets.available()}
    loader = choose(loaders, table["name"], "data set", (*where, "name"))
    own = {key: table[key] for key in ("name", "clients", "client_test") if key in table}
    options = {key: value for key, value in table.items() if key not in own}
    check_call(DataSpec, "[data]", own, where)
    check_call(loader, f"data set {table['name']}", options, where, also=("clients", "client_test"))
    spec = DataSpec(**own, options=options)
    if spec.clients is not None and spec.clients < 1:
        raise Problem((*where, "clients"), f"clients = {spec.clients}: at least 1 is needed")
    if not 0 <= spec.client_test < 1:
        rule = "must be a share of at least 0 and below 1"
        raise Problem((*where, "client_test"), f"client_test = {spec.client_test}: {rule}")
    return spec


def _engine(table: Mapping[str, Any]) -> EngineSpec:
    check_call(EngineSpec, "[engine]", table, ("engine",))
    spec = EngineSpec(**table)
    if spec.workers is not None and (spec.workers < 1 or spec.kind == "local"):
        raise Problem(
            ("engine", "workers"),
            f'workers = {spec.workers} with kind = "{spec.kind}"',
            hint='at least 1, and only with kind = "processes"',
        )
    return spec
