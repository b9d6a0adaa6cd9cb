"""Tables in ``<name>.csv.gz``: a header, then rows; an empty cell or "?" is missing.

Categories and classes are coded in numeric order where all are numbers, else in order of name.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.errors import DataError
from solera.core.schema import Feature
from solera.data.dataset import Dataset, divided, held_out
from solera.data.files import DatasetInfo, locate, reading, unavailable

Cells = Sequence[str]
FloatArray = NDArray[np.float64]

_MISSING = {"", "?"}


@dataclass(frozen=True, kw_only=True)
class Table(DatasetInfo):
    """A table: its columns, those to predict, and how its classes read.

    ``split`` counts the rows of each class in the source's own training and test part; such a
    file has a column ``split``.
    """

    columns: tuple[str, ...] = field(repr=False)
    categorical: frozenset[str] = field(repr=False)
    answers: tuple[str, ...] = field(repr=False)
    readable: Mapping[str, str] = field(repr=False)
    split: tuple[tuple[int, ...], tuple[int, ...]] | None = field(repr=False)


def _table(
    name: str,
    title: str,
    uci: int,
    rows: int,
    columns: str,
    outputs: int,
    *,
    answers: str = "class",
    readable: Mapping[str, str] | None = None,
    split: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    openml: tuple[str, int] | None = None,
) -> Table:
    """A table in short: categorical columns carry a ``*``, several answers are numbers."""
    names = tuple(c.rstrip("*") for c in columns.split())
    return Table(
        name=name,
        title=title,
        rows=rows,
        features=len(names),
        outputs=outputs,
        target="numbers" if len(answers.split()) > 1 else "classes",
        licence=f"UCI {uci}, CC BY 4.0",
        file=f"{name}.csv.gz",
        openml=openml,
        columns=names,
        categorical=frozenset(c[:-1] for c in columns.split() if c.endswith("*")),
        answers=tuple(answers.split()),
        readable=readable or {},
        split=split,
    )


TABLES = {
    table.name: table
    for table in (
        _table(
            "nursery",
            "Nursery-school applications",
            76,
            12960,
            "parents* has_nurs* form* children* housing* finance* social* health*",
            5,
            openml=("nursery", 1),
        ),
        _table(
            "car",
            "Car evaluation",
            19,
            1728,
            "buying* maint* doors* persons* lug_boot* safety*",
            4,
            openml=("car", 3),
        ),
        _table(
            "adult",
            "Adult, income in the 1994 census",
            2,
            48842,
            "age workclass* fnlwgt education* education-num marital-status* occupation* "
            "relationship* race* sex* capital-gain capital-loss hours-per-week native-country*",
            2,
            split=((24720, 7841), (12435, 3846)),
            openml=("adult", 2),
        ),
        _table(
            "credit2",
            "Default of credit-card clients",
            350,
            30000,
            "LIMIT_BAL SEX* EDUCATION* MARRIAGE* AGE PAY_0 PAY_2 PAY_3 PAY_4 PAY_5 PAY_6 "
            "BILL_AMT1 BILL_AMT2 BILL_AMT3 BILL_AMT4 BILL_AMT5 BILL_AMT6 "
            "PAY_AMT1 PAY_AMT2 PAY_AMT3 PAY_AMT4 PAY_AMT5 PAY_AMT6",
            2,
            answers="default",
            readable={"0": "paid", "1": "default"},
            openml=("default-of-credit-card-clients", 1),
        ),
        _table(
            "ildp",
            "Indian liver patients (ILPD)",
            225,
            583,
            "age gender* tb db alkphos sgpt sgot tp alb ag_ratio",
            2,
            readable={"1": "patient", "2": "no patient"},
            openml=("ilpd", 1),
        ),
        _table(
            "drybean",
            "Dry beans, shape of the grain",
            602,
            13611,
            "Area Perimeter MajorAxisLength MinorAxisLength AspectRation Eccentricity ConvexArea "
            "EquivDiameter Extent Solidity roundness Compactness "
            "ShapeFactor1 ShapeFactor2 ShapeFactor3 ShapeFactor4",
            7,
            answers="Class",
        ),
        _table(
            "carbon_nanotubes",
            "Carbon nanotubes, atomic coordinates",
            448,
            10721,
            "n m u v w",
            3,
            answers="u_calc v_calc w_calc",
        ),
        _table(
            "skin",
            "Skin segmentation",
            229,
            245057,
            "B G R",
            2,
            readable={"1": "skin", "2": "not skin"},
            openml=("skin-segmentation", 1),
        ),
        _table(
            "optdigits",
            "Optical recognition of handwritten digits",
            80,
            5620,
            " ".join(f"p{i}" for i in range(64)),
            10,
            split=(
                (376, 389, 380, 389, 387, 376, 377, 387, 380, 382),
                (178, 182, 177, 183, 181, 182, 181, 179, 174, 180),
            ),
            openml=("optdigits", 1),
        ),
        _table(
            "heart_cleveland",
            "Heart disease, Cleveland",
            45,
            303,
            "age sex* cp* trestbps chol fbs* restecg* thalach exang* oldpeak slope* ca thal*",
            5,
            answers="num",
        ),
        _table(
            "german_credit",
            "German credit risk",
            144,
            1000,
            "status* duration credit_history* purpose* amount savings* employment* "
            "installment_rate personal_status* other_debtors* residence_since property* age "
            "other_plans* housing* existing_credits job* people_liable telephone* foreign_worker*",
            2,
            readable={"1": "good", "2": "bad"},
        ),
    )
}


def load(table: Table, *, test: float = 0.0, seed: int = 0) -> Dataset:
    """Reads a table; without a split of its own, the share ``test`` of its rows is held out."""
    path, source = locate(table, store)
    with reading(path):
        columns = read_cells(
            path, (*table.columns, *table.answers, *(["split"] if table.split else []))
        )
        features, X = _features(table, columns)
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


def _features(table: Table, columns: Mapping[str, Cells]) -> tuple[list[Feature], FloatArray]:
    features = []
    X = np.empty((len(columns[table.columns[0]]), table.features))
    for j, name in enumerate(table.columns):
        if name in table.categorical:
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
    return _looked_up(cells, {value: float(code) for code, value in enumerate(values)}), categories


def numbers(name: str, cells: Cells) -> FloatArray:
    try:
        return _looked_up(cells, {value: float(value) for value in set(cells) - _MISSING})
    except ValueError as error:
        raise DataError(f"column {name}: {error}") from error


def _looked_up(cells: Cells, numbers: dict[str, float]) -> FloatArray:
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
