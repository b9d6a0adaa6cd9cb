"""Cells of a study: one training each, stored on its own as soon as it is finished.

A cell is known by all that decides its outcome, so that a study that is started again, or that has
grown by a few values, finds what is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from solera.study.files.reader import Study
from solera.study.files.tables import Scheme, Variant
from solera.study.run.folder import write_json
from solera.study.run.results import Result


class Fold(NamedTuple):
    """Which part of a k-fold cross-validation."""

    number: int
    of: int


@dataclass(frozen=True)
class Cell:
    """One training of a variant: which seed, in which scheme, and which fold is left out.

    ``scores`` says whether it is judged by its probabilities, too.
    """

    variant: Variant
    seed: int
    scheme: Scheme = "federated"
    fold: Fold | None = None
    scores: bool = False

    @cached_property
    def key(self) -> str:
        """Its name in tables and the stem of its files: all that decides the outcome."""
        fold = "" if self.fold is None else f"-fold{self.fold.number}of{self.fold.of}"
        scores = "-scores" if self.scores else ""
        return f"{self.variant.key}-{self.scheme}-seed{self.seed}{fold}{scores}"

    @property
    def stem(self) -> str:
        """What its files are called: the label of its learner, where it has one, and its key."""
        label = re.sub(r"[^\w.=+-]+", "_", self.variant.label)
        return f"{label}-{self.key}" if label else self.key

    @property
    def title(self) -> str:
        """What tells it apart from other cells of its variant."""
        parts: list[str] = [] if self.scheme == "federated" else [self.scheme]
        parts.append(f"seed {self.seed}")
        if self.fold is not None:
            parts.append(f"fold {self.fold.number}")
        return ", ".join(parts)

    @property
    def labels(self) -> dict[str, Any]:
        """What the cell is called in tables."""
        return {
            "cell": self.key,
            "data": self.variant.data.name,
            "partition": self.variant.setting,
            "learner": self.variant.method,
            "scheme": self.scheme,
            "seed": self.seed,
            "fold": None if self.fold is None else self.fold.number,
            **self.variant.params,
        }

    def __str__(self) -> str:
        variant = self.variant
        where = f"{variant.data.name} by {variant.setting}"
        return f"{variant.method} on {where}, {self.title}"


def cells_of(study: Study, variant: Variant, seeds: tuple[int, ...] | None = None) -> list[Cell]:
    """All trainings of a variant: schemes × seeds × folds."""
    folds: list[Fold | None] = [Fold(i, study.folds) for i in range(study.folds)]
    return [
        Cell(variant, seed, scheme, fold, study.scores)
        for scheme in study.schemes
        for seed in (study.seeds if seeds is None else seeds)
        for fold in folds or [None]
    ]


class Stored(msgspec.Struct):
    """What a cell's file holds."""

    labels: dict[str, Any]
    result: Result


class CellStore:
    """The files of cells in a run folder: results, fitted models, checkpoints of rounds."""

    FOLDERS = ("cells", "models", "checkpoints")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in self.FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)

    def checkpoint(self, cell: Cell) -> Path:
        return self.folder / "checkpoints" / f"{cell.stem}.sol"

    def model(self, cell: Cell) -> Path:
        return self.folder / "models" / f"{cell.stem}.sol"

    def result(self, cell: Cell) -> Path:
        return self.folder / "cells" / f"{cell.stem}.json"

    def variants(self) -> set[str]:
        """Keys of the variants that have results."""
        names = (path.name for path in (self.folder / "cells").glob("*.json"))
        found = (re.search(r"([0-9a-f]{12})-[a-z]+-seed\d+", name) for name in names)
        return {match[1] for match in found if match}

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
