"""Cells of a study: one training each, stored on its own as soon as it is finished.

A cell is known by a digest of all that decides its outcome, so that a study that is started again,
or that has grown by a few values, finds what is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from solera.core.checkpoint import fingerprint
from solera.core.component import describe
from solera.study.files.grid import Point
from solera.study.files.reader import Study
from solera.study.run.folder import write_json
from solera.study.run.results import Result
from solera.study.run.schemes import Fold, Training


@dataclass(frozen=True)
class Cell:
    """One training of a study; ``params`` are its values on the axes of the grid."""

    training: Training
    params: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """A digest of what decides the outcome."""
        training, spec = self.training, self.training.spec
        return fingerprint(
            spec.data.name,
            spec.data.clients,
            spec.data.client_test,
            dict(spec.data.options),
            describe(spec.partition),
            describe(spec.learner),
            spec.engine.kind,
            training.seed,
            training.scheme,
            None if training.fold is None else list(training.fold),
        )[:16]

    @property
    def labels(self) -> dict[str, Any]:
        """What the cell is called in tables."""
        training, spec = self.training, self.training.spec
        return {
            "cell": self.key,
            "data": spec.data.name,
            "partition": repr(spec.partition),
            "learner": repr(spec.learner),
            "scheme": training.scheme,
            "seed": training.seed,
            "fold": None if training.fold is None else training.fold.number,
            **self.params,
        }

    def __str__(self) -> str:
        spec = self.training.spec
        fold = "" if self.training.fold is None else f", fold {self.training.fold.number}"
        return (
            f"{self.training.scheme} {spec.learner!r} on {spec.data.name} by {spec.partition!r}, "
            f"seed {self.training.seed}{fold}"
        )


def cells_of(study: Study, point: Point, seeds: tuple[int, ...] | None = None) -> list[Cell]:
    """All trainings of one point: schemes × seeds × folds."""
    folds: list[Fold | None] = [Fold(i, study.folds) for i in range(study.folds)]
    spec = replace(point.spec, name=study.name, text="")
    return [
        Cell(Training(spec, seed, scheme, fold), point.params)
        for scheme in study.schemes
        for seed in (study.seeds if seeds is None else seeds)
        for fold in folds or [None]
    ]


class Stored(msgspec.Struct):
    """What a cell's file holds."""

    labels: dict[str, Any]
    result: Result


class CellFiles:
    """The files of cells in a run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("cells", "models", "checkpoints"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def checkpoint(self, cell: Cell) -> Path:
        return self.folder / "checkpoints" / f"{cell.key}.sol"

    def model(self, cell: Cell) -> Path:
        return self.folder / "models" / f"{cell.key}.sol"

    def result(self, cell: Cell) -> Path:
        return self.folder / "cells" / f"{cell.key}.json"

    def write(self, cell: Cell, result: Result) -> None:
        """Store what a cell came to; with that it is finished."""
        write_json(self.result(cell), Stored(cell.labels, result))
        self.checkpoint(cell).unlink(missing_ok=True)

    def read(self, cell: Cell) -> Result | None:
        """What a cell came to, or None where it is not finished or its file is damaged."""
        try:
            return msgspec.json.decode(self.result(cell).read_bytes(), type=Stored).result
        except (FileNotFoundError, msgspec.DecodeError):
            return None
