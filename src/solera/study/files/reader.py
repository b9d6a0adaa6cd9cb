"""A study file: one data set, one partition, one learner and several seeds, or many of each.

    name = "digits-dirichlet"    # also the folder under runs/; the file's name by default
    seeds = [0, 1, 2]            # or { from = 0, to = 9 }

    [data]
    name = "digits"              # any data set of ``solera data list``, and its options:
    test = 0.25                  # here the share of its rows kept apart to score on
    clients = 20
    client_test = 0.2            # the share of its own rows every client keeps to judge by
    # positive = "died"          # which of two classes is positive; the second in order by default

    [partition]
    kind = "Dirichlet"           # any partition, and its parameters
    alpha = 0.3

    [learner]
    kind = "FedLinear"           # any learner, and its parameters
    label = "logistic"           # what tables call it; made from what differs by default
    rounds = 30

    [engine]
    kind = "local"               # or "processes", with workers = 2

    [attack]                     # clients that lie, of so.robust; of scheme "federated" alone
    kind = "SignFlip"
    share = [0.0, 0.2]           # 0 is nobody

``secure = true``, above the tables, folds what adds up so that nobody sees a single reply.

A table of one's own takes the place of a data set. The file lies beside this one; it may also be
a folder, or ``sql:…#SELECT …``. ``solera data show`` shows what is understood of it.

    [data]
    file = "patients.csv"
    target = "outcome"
    group = "hospital"           # whose row it is, instead of a partition
    columns = ["age", "smokes"]  # all by default
    kinds = { ward = "categorical" }

A parameter that is itself a component is a table with a ``kind`` of its own. A parameter called
``kind`` is written ``kind_``, because ``kind`` names the class.

That is a run: a study of one variant. What it says once may be said several times, and is
multiplied; see :mod:`solera.study.files.grid` for lists and ranges. Further entries:

    schemes = ["alone", "federated", "centralised"]
    metrics = ["macro_f1", "accuracy"]      # the first decides what is best
    scores = true                           # AUROC, calibration and the like, and their curves
    folds = 5                               # cross-validation inside every client

    [search]
    kind = "grid"                           # or "random" with draws, or "halving"

    [budget]
    cells = 500
    seconds = 3600
    wh = 5

    [energy]
    country = "ESP"

What may be written follows from what it builds: the dataclasses of
:mod:`solera.study.files.tables`, the constructors of the components and the loaders of the data
sets. Errors name file, line, key and the nearest valid name.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.config import Problem, build_table, check_call, errors_located, nearest, read_text
from solera.core.grids import span
from solera.data.partition import Partition
from solera.evaluation.metrics import EVALUATED, METRICS
from solera.green.energy import EnergyOptions
from solera.learn.base import Learner
from solera.robust.attacks import Attack
from solera.study.files.grid import Grid, grids_of, resource_of
from solera.study.files.tables import (
    SCHEMES,
    BudgetSpec,
    DataSpec,
    EngineSpec,
    Scheme,
    SearchSpec,
    TomlTable,
    Variant,
)


@dataclass(frozen=True)
class Study:
    """A declared set of trainings. ``text`` is the file as it was written."""

    name: str
    grids: tuple[Grid, ...]
    seeds: tuple[int, ...] = (0,)
    schemes: tuple[Scheme, ...] = ("federated",)
    metrics: tuple[str, ...] = ()
    scores: bool = False
    folds: int = 0
    search: SearchSpec = field(default_factory=SearchSpec)
    budget: BudgetSpec = field(default_factory=BudgetSpec)
    energy: EnergyOptions | None = None
    text: str = field(default="", compare=False, repr=False)

    def variants(self) -> list[Variant]:
        """Every point of the grids."""
        return [variant for grid in self.grids for variant in grid.variants()]

    @property
    def one_variant(self) -> bool:
        """Whether nothing but seeds and schemes varies."""
        return len(self.grids) == 1 and not self.grids[0].axes and not self.folds

    @property
    def is_run(self) -> bool:
        """Whether this is one variant, trained federated, once for every seed."""
        return self.one_variant and self.schemes == ("federated",)


def read(path: str | os.PathLike[str]) -> Study:
    """The study that a TOML file declares."""
    text = read_text(path, hint="'solera demo' writes one to runs/demo/spec.toml")
    return parse(text, file=str(path), name=Path(path).stem)


def parse(text: str, *, file: str, name: str) -> Study:
    """The study that TOML text declares; ``file`` is named in errors, ``name`` is its default."""
    with errors_located(text, file):
        content = {"name": name, **tomllib.loads(text)}
        return _study(_with_paths(content, Path(file).parent), text)


def _with_paths(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The content of a file whose tables of one's own lie beside it, unless elsewhere."""
    if "data" not in content:
        return content
    given = content["data"]
    several = isinstance(given, list)
    tables = []
    for table in given if several else [given]:
        if isinstance(table, dict) and "file" in table:
            files = table["file"]
            found = [_beside(f, folder) for f in files] if isinstance(files, list) else files
            table = {**table, "file": _beside(found, folder) if found is files else found}
        tables.append(table)
    return {**content, "data": tables if several else tables[0]}


def _beside(file: Any, folder: Path) -> Any:
    if not isinstance(file, str) or file.startswith("sql:"):
        return file
    return str(folder / file)


@dataclass(frozen=True)
class _Span:
    """Seeds from one number to another; see :func:`solera.study.files.grid.span`."""


@dataclass(frozen=True)
class _File:
    """The entries of a study file and their types."""

    name: str
    data: DataSpec | Sequence[DataSpec]
    learner: Learner | Sequence[Learner]
    partition: Partition | Sequence[Partition] | None = None
    engine: EngineSpec | None = None
    attack: Attack | Sequence[Attack] | None = None
    secure: bool = False
    seeds: Sequence[int] | _Span = ()
    schemes: Sequence[str] = ()
    metrics: Sequence[str] = ()
    scores: bool = False
    folds: int = 0
    search: SearchSpec | None = None
    budget: BudgetSpec | None = None
    energy: EnergyOptions | None = None


def _study(content: TomlTable, text: str) -> Study:
    check_call(_File, "the file", content, ())
    if not re.fullmatch(r"\w[\w .+-]*", content["name"]):
        raise Problem(("name",), f"name {content['name']!r} cannot be the name of a folder")
    metrics = _names(content, "metrics", EVALUATED)
    study = Study(
        name=content["name"],
        grids=tuple(grids_of(content)),
        seeds=_seeds(content.get("seeds", [0])),
        schemes=_names(content, "schemes", SCHEMES) or ("federated",),  # type: ignore[arg-type]
        metrics=metrics,
        scores=content.get("scores", False) or any(METRICS[name].needs_scores for name in metrics),
        folds=content.get("folds", 0),
        search=build_table(SearchSpec, "[search]", content.get("search", {}), ("search",)),
        budget=build_table(BudgetSpec, "[budget]", content.get("budget", {}), ("budget",)),
        energy=_energy(content),
        text=text,
    )
    if study.folds < 0 or study.folds == 1:
        raise Problem(("folds",), f"folds = {study.folds}: at least 2 are needed, or 0 for none")
    _check_search(study)
    return study


def _check_search(study: Study) -> None:
    """Every variant must be possible, so that a mistake shows before the first cell runs."""
    search = study.search
    halving = search.kind == "halving"
    if halving and not study.folds:
        raise Problem(
            ("search",),
            "halving keeps what does best on validation rows, and there are none",
            hint="add folds = 3",
        )
    if halving and "federated" not in study.schemes:
        raise Problem(("schemes",), "halving judges variants by the scheme 'federated'")
    if search.kind == "random" and search.draws is None:
        raise Problem(("search",), "random search needs a number of draws", hint="add draws = 20")
    ranges = any(grid.ranges for grid in study.grids)
    size = sum(grid.size for grid in study.grids)
    if search.draws is not None and (ranges or size > search.draws):
        variants = [grid.draw(np.random.default_rng(0)) for grid in study.grids]
    else:
        variants = study.variants()
    if halving and search.resource != "seeds":
        for variant in variants:
            amount = resource_of(variant.learner, search.resource)
            if not isinstance(amount, int) or isinstance(amount, bool):
                raise Problem(
                    ("search", "resource"),
                    f"{variant.learner!r} has no whole number {search.resource!r}",
                    hint='name a parameter of the learner, or resource = "seeds"',
                )


def _seeds(given: Any) -> tuple[int, ...]:
    if isinstance(given, dict):
        values = span(given, ("seeds",), whole=True)
        if not isinstance(values, tuple):
            raise Problem(("seeds",), "seeds on a log scale need steps")
        given = list(values)
    if not given or len(set(given)) < len(given) or min(given) < 0:
        raise Problem(("seeds",), f"seeds = {given}: give different whole numbers from 0 on")
    return tuple(given)


def _names(content: TomlTable, key: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(content.get(key, ()))
    for name in names:
        if name not in known:
            raise Problem((key,), f"{key}: there is no {name!r}", hint=nearest(name, known))
    if len(set(names)) < len(names) or (key in content and not names):
        raise Problem((key,), f"{key} = {list(names)}: give each once, and at least one")
    return names


def _energy(content: TomlTable) -> EnergyOptions | None:
    """Energy is measured when the file says how, or sets a budget of it."""
    table = content.get("energy")
    if table is None and "wh" not in content.get("budget", {}):
        return None
    return build_table(EnergyOptions, "[energy]", table or {}, ("energy",))
