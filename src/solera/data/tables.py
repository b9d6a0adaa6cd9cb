"""Tables in ``<name>.csv.gz``: a header, then rows; an empty cell or "?" is missing.

Categories and classes are coded in numeric order where all are numbers, else in order of name.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import FloatArray
from solera.core.errors import DataError
from solera.core.schema import Feature
from solera.data.catalogue import described
from solera.data.dataset import Dataset, divided, held_out
from solera.data.files import DatasetInfo, locate, reading, unavailable

Cells = Sequence[str]

_MISSING = {"", "?"}


@dataclass(frozen=True, kw_only=True)
class Table(DatasetInfo):
    """A table: its columns, those to predict, and how its classes read.

    ``split`` counts the rows of each class in the source's own training and test part; such a
    file has a column ``split``.
    """

    columns: tuple[str, ...] = field(repr=False)
    categorical: frozenset[str] = field(default=frozenset(), repr=False)
    answers: tuple[str, ...] = field(repr=False)
    readable: Mapping[str, str] = field(default_factory=dict, repr=False)
    split: tuple[tuple[int, ...], tuple[int, ...]] | None = field(default=None, repr=False)


TABLES = described("tables", Table)


def load(name: str, test: float = 0.0, seed: int = 0) -> Dataset:
    """Reads a table; without a split of its own, the share ``test`` of its rows is held out."""
    table = TABLES[name]
    path, source = locate(table, store)
    with reading(path):
        columns = read_cells(
            path, (*table.columns, *table.answers, *(["split"] if table.split else []))
        )
        features, X = encode_columns(table.columns, table.categorical, columns)
        y, class_names = _answers(table, columns)
    if table.split:
        marked = np.array([part == "test" for part in columns["split"]])
    else:
        marked = held_out(table.name, y, table.target, test, seed)
    return divided(table, X, y, marked, features, source=source, class_names=class_names)


def read_cells(path: Path, wanted: Sequence[str]) -> dict[str, Cells]:
    """Cells by column name; columns that are not wanted are dropped."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        if not lines.read(1):
            raise DataError("the file is empty")
        lines.seek(0)
        cells = np.loadtxt(lines, dtype=str, delimiter=",", comments=None, quotechar='"', ndmin=2)
    header = cells[0].tolist()
    absent = [name for name in wanted if name not in header]
    if absent:
        raise DataError(f"no column {', '.join(absent)}", hint=f"it has {', '.join(header)}")
    if len(cells) == 1:
        raise DataError("there are no rows below the header")
    return {name: cells[1:, header.index(name)].tolist() for name in wanted}


def encode_columns(
    names: Sequence[str], categorical: Container[str], columns: Mapping[str, Cells]
) -> tuple[list[Feature], FloatArray]:
    """Features and, column by column, the codes or numbers of their cells."""
    features = []
    X = np.empty((len(columns[names[0]]), len(names)))
    for j, name in enumerate(names):
        if name in categorical:
            X[:, j], categories = encode(columns[name])
            features.append(Feature(name, "categorical", categories))
        else:
            X[:, j] = numbers(name, columns[name])
            features.append(Feature(name))
    return features, X


def _answers(table: Table, columns: Mapping[str, Cells]) -> tuple[NDArray[Any], tuple[str, ...]]:
    names = ", ".join(table.answers)
    if table.target == "numbers":
        y: NDArray[Any] = np.column_stack([numbers(a, columns[a]) for a in table.answers])
        class_names: tuple[str, ...] = ()
    else:
        y, values = encode(columns[table.answers[0]])
        class_names = tuple(table.readable.get(value, value) for value in values)
        if len(values) != table.outputs:
            found = ", ".join(values[:10])
            raise DataError(f"column {names} has {len(values)} classes ({found})")
    if np.isnan(y).any():
        raise DataError(f"column {names} has missing values")
    return (y if table.target == "numbers" else y.astype(np.int64)), class_names


def encode(cells: Cells) -> tuple[FloatArray, tuple[str, ...]]:
    """Codes of text cells, NaN where missing, and the categories they stand for."""
    present = set(cells) - _MISSING
    try:
        values = sorted(present, key=float)
        categories = tuple(f"{float(value):g}" for value in values)
    except ValueError:
        values = sorted(present)
        categories = tuple(values)
    return looked_up(cells, {value: float(code) for code, value in enumerate(values)}), categories


def numbers(name: str, cells: Cells) -> FloatArray:
    try:
        return looked_up(cells, {value: float(value) for value in set(cells) - _MISSING})
    except ValueError as error:
        raise DataError(f"column {name}: {error}") from error


def looked_up(cells: Cells, numbers: dict[str, float]) -> FloatArray:
    """The number of each cell, NaN where missing: distinct cells are far fewer than cells."""
    numbers.update(dict.fromkeys(_MISSING, np.nan))
    return np.fromiter(map(numbers.__getitem__, cells), np.float64, len(cells))


def store(table: Table, data: Any, target: Any, path: Path) -> None:
    """Writes OpenML's data frame and target as the file :func:`load` reads, columns by position."""
    header = [*table.columns, *table.answers]
    columns = [_text(data.iloc[:, j]) for j in range(table.features)] + [_text(target)]
    if table.split:
        header.append("split")
        columns.append(_original_split(table, columns[-1]))
    with gzip.open(path, "wt", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))


def _text(series: Any) -> list[str]:
    return ["" if gone else str(v) for v, gone in zip(series, series.isna(), strict=True)]


def _original_split(table: Table, classes: list[str]) -> list[str]:
    """The source's own split of rows that lie part after part, recognised by its class counts."""
    assert table.split is not None
    train, test = table.split
    values = sorted(set(classes))
    for first, second in ((("train", train), ("test", test)), (("test", test), ("train", train))):
        cut = sum(first[1])
        counts = Counter(classes[:cut])
        if tuple(counts[value] for value in values) == first[1]:
            return [first[0]] * cut + [second[0]] * (len(classes) - cut)
    raise unavailable(table, "OpenML's copy does not keep the training and test rows apart")
