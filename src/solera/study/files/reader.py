"""A study file: what a run file says once may be said several times, and is multiplied.

    name = "digits-grid"
    seeds = [0, 1, 2]                       # or { from = 0, to = 9 }
    schemes = ["alone", "federated", "centralised"]
    metrics = ["macro_f1", "accuracy"]      # the first decides what is best
    folds = 5                               # cross-validation inside every client

    [data]
    name = ["digits", "wine"]
    clients = [5, 20]

    [[partition]]
    kind = "IID"
    [[partition]]
    kind = "Dirichlet"
    alpha = [0.1, 1.0]

    [[learner]]
    kind = "FedLinear"
    lr = { from = 1e-4, to = 0.1, steps = 4, scale = "log" }
    [[learner]]
    kind = "FedHEONN"
    lam = { values = [0.01, 1.0] }

    [search]
    kind = "grid"                           # or "random" with draws, or "halving"

    [budget]
    cells = 500
    seconds = 3600
    wh = 5

    [energy]
    country = "ESP"

See :mod:`solera.study.files.grid` for lists and ranges. A file that uses none of this is a run
file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from solera.core.config import Problem, check_call, nearest
from solera.data.partition import Partition
from solera.green.energy import EnergyOptions
from solera.learn.base import Learner
from solera.study.files.grid import Point, Range, Variant, span, variants
from solera.study.files.tables import (
    STUDY_KEYS,
    DataSpec,
    EngineSpec,
    Spec,
    build,
    checked_seeds,
    errors_located,
    folder_name,
    read_text,
)

Scheme = Literal["alone", "federated", "centralised"]
SCHEMES: tuple[Scheme, ...] = ("alone", "federated", "centralised")
LOWER_IS_BETTER = ("hamming_loss", "mse", "mae", "loss")
METRICS = (
    "accuracy", "balanced_accuracy", "macro_precision", "macro_recall", "macro_f1",
    "subset_accuracy", "micro_f1", "hamming_loss", "mse", "mae", "r2",
)  # fmt: skip


@dataclass(frozen=True)
class SearchSpec:
    """Which points of the grid are run.

    ``random`` draws ``draws`` of them. ``halving`` (Jamieson & Talwalkar 2016) starts with all, or
    with ``draws`` of them, gives each ``least`` of the ``resource`` (a whole-number parameter of
    the learner, or "seeds"), keeps the best 1/``factor`` by validation rows, gives these ``factor``
    times as much, and so on up to ``most``.
    """

    kind: Literal["grid", "random", "halving"] = "grid"
    draws: int | None = None
    seed: int = 0
    resource: str = "rounds"
    least: int = 1
    most: int | None = None
    factor: int = 3


@dataclass(frozen=True)
class BudgetSpec:
    """When to stop: so many cells, seconds or watt-hours of all cells together."""

    cells: int | None = None
    seconds: float | None = None
    wh: float | None = None


@dataclass(frozen=True)
class Study:
    """A declared set of runs. ``text`` is the file as it was written."""

    name: str
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...] = (0,)
    schemes: tuple[Scheme, ...] = ("federated",)
    metrics: tuple[str, ...] = ()
    folds: int = 0
    search: SearchSpec = SearchSpec()
    budget: BudgetSpec = BudgetSpec()
    energy: EnergyOptions | None = None
    text: str = field(default="", compare=False, repr=False)

    def points(self) -> list[Point]:
        """Every point of the grid."""
        return [point for variant in self.variants for point in variant.points()]


def read(path: str | os.PathLike[str]) -> Spec | Study:
    """The run or the study that a TOML file declares."""
    return parse(read_text(path), file=str(path), name=Path(path).stem)


def parse(text: str, *, file: str, name: str) -> Spec | Study:
    """The run or the study that TOML text declares."""
    with errors_located(text, file):
        content = {"name": name, **tomllib.loads(text)}
        if not _is_study(content):
            return build(content, text)
        return _study(content, text)


def _is_study(content: Mapping[str, Any]) -> bool:
    if content.keys() & set(STUDY_KEYS) or isinstance(content.get("seeds"), dict):
        return True
    tables = [content.get(section) for section in ("data", "partition", "learner")]
    if any(isinstance(table, list) for table in tables):
        return True
    if not all(isinstance(table, dict) for table in tables if table is not None):
        return False
    if any(isinstance(t.get(k), list) for t in tables if t for k in ("kind", "name")):
        return True
    return any(variant.axes for variant in variants(content))


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
    seeds: Sequence[int] | _Span = ()
    schemes: Sequence[str] = ()
    metrics: Sequence[str] = ()
    folds: int = 0
    search: SearchSpec | None = None
    budget: BudgetSpec | None = None
    energy: EnergyOptions | None = None


def _study(content: Mapping[str, Any], text: str) -> Study:
    check_call(_File, "the file", content, ())
    study = Study(
        name=folder_name(content["name"]),
        variants=tuple(variants(content)),
        seeds=_seeds(content.get("seeds", [0])),
        schemes=_names(content, "schemes", SCHEMES) or ("federated",),  # type: ignore[arg-type]
        metrics=_names(content, "metrics", METRICS),
        folds=content.get("folds", 0),
        search=_search(content.get("search", {})),
        budget=_budget(content.get("budget", {})),
        energy=_energy(content),
        text=text,
    )
    if study.folds < 0 or study.folds == 1:
        raise Problem(("folds",), f"folds = {study.folds}: at least 2 are needed, or 0 for none")
    _check_points(study)
    return study


def _check_points(study: Study) -> None:
    """Every point must be possible, so that a mistake shows before the first cell runs."""
    search = study.search
    if search.kind == "halving":
        if not study.folds:
            raise Problem(
                ("search",),
                "halving keeps what does best on validation rows, and there are none",
                hint="add folds = 3",
            )
        if "federated" not in study.schemes:
            raise Problem(("schemes",), "halving judges points by the scheme 'federated'")
    if search.kind == "random" and search.draws is None:
        raise Problem(("search",), "random search needs a number of draws", hint="add draws = 20")
    sizes = [variant.size for variant in study.variants]
    drawn = search.draws is not None and (sum(sizes) > search.draws or _has_ranges(study))
    if not drawn:
        points = study.points()
    else:
        import numpy as np

        points = [v.draw(np.random.default_rng(0)) for v in study.variants]
    if search.kind == "halving":
        for point in points:
            _check_resource(point, search)


def _has_ranges(study: Study) -> bool:
    return any(isinstance(a.values, Range) for v in study.variants for a in v.axes)


def _check_resource(point: Point, search: SearchSpec) -> None:
    if search.resource == "seeds":
        return
    holder: Any = point.spec.learner
    for key in search.resource.split("."):
        holder = getattr(holder, key, None) if not key.isdigit() else holder[int(key)]
    if not isinstance(holder, int) or isinstance(holder, bool):
        raise Problem(
            ("search", "resource"),
            f"{point.spec.learner!r} has no whole number {search.resource!r}",
            hint='name a parameter of the learner, or resource = "seeds"',
        )


def _seeds(given: Any) -> tuple[int, ...]:
    if isinstance(given, dict):
        values = span(given, ("seeds",), whole=True)
        if not isinstance(values, tuple):
            raise Problem(("seeds",), "seeds on a log scale need steps")
        given = list(values)
    return checked_seeds(given)


def _names(content: Mapping[str, Any], key: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(content.get(key, ()))
    for name in names:
        if name not in known:
            raise Problem((key,), f"{key}: there is no {name!r}", hint=nearest(name, known))
    if len(set(names)) < len(names) or (key in content and not names):
        raise Problem((key,), f"{key} = {list(names)}: give each once, and at least one")
    return names


def _search(table: Mapping[str, Any]) -> SearchSpec:
    check_call(SearchSpec, "[search]", table, ("search",))
    spec = SearchSpec(**table)
    for name, least in (("draws", 1), ("least", 1), ("most", 1), ("factor", 2)):
        value = getattr(spec, name)
        if value is not None and value < least:
            raise Problem(("search", name), f"{name} = {value}: at least {least} is needed")
    return spec


def _budget(table: Mapping[str, Any]) -> BudgetSpec:
    check_call(BudgetSpec, "[budget]", table, ("budget",))
    for name, value in table.items():
        if not value > 0:
            raise Problem(("budget", name), f"{name} = {value}: must be > 0")
    return BudgetSpec(**table)


def _energy(content: Mapping[str, Any]) -> EnergyOptions | None:
    """Energy is measured when the file says how, or sets a budget of it."""
    table = content.get("energy")
    check_call(EnergyOptions, "[energy]", table or {}, ("energy",))
    if table is None and "wh" not in content.get("budget", {}):
        return None
    return EnergyOptions(**(table or {}))
