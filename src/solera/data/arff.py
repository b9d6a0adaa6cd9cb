"""ARFF files as Weka, Meka and MULAN write them, dense or sparse, and the XML that names labels.

    numeric, real, integer    numbers
    {0,1}                     whole numbers
    {red,green}               a category of these, in this order

``?`` is missing. A file of sparse rows, ``{1 0.5, 4 1}``, becomes a frame of sparse columns: what a
row does not name is 0, of a category its first value.
"""

from __future__ import annotations

import csv
import io
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.errors import DataError
from solera.data.files import reading, require_pandas
from solera.data.tables import looked_up, numbers

_DATA = re.compile(r"^\s*@data.*$", re.IGNORECASE | re.MULTILINE)
_LABEL = re.compile(r"<label\b[^>]*?\bname\s*=\s*[\"']([^\"']+)")


def read_arff(path: Path) -> Any:
    """The rows of a file as a pandas frame."""
    from scipy.io.arff import loadarff

    text = path.read_text(encoding="utf-8")
    header = _DATA.search(text)
    if header is None:
        raise DataError("there is no line @data")
    _, about = loadarff(io.StringIO(text[: header.end()]))
    kinds = {name: about[name] for name in about.names()}
    values = {name: named if kind == "nominal" else () for name, (kind, named) in kinds.items()}
    lines = map(str.strip, text[header.end() :].splitlines())
    rows = [line for line in lines if line and line[0] != "%"]
    is_sparse = bool(rows) and rows[0][0] == "{"
    frame = _frame(rows, values, is_sparse)
    return _named(frame, values, is_sparse)


def label_names(path: str | Path) -> list[str]:
    """The labels that an XML file of MULAN names, in its order; also those inside others."""
    with reading(Path(path)):
        names = _LABEL.findall(Path(path).read_text(encoding="utf-8"))
    if not names:
        raise DataError(f"{path} names no labels", hint='MULAN writes <label name="…"/>')
    return [unescape(name) for name in names]


def _frame(rows: list[str], values: dict[str, tuple[str, ...]], is_sparse: bool) -> Any:
    """Numbers, and codes in the place of values that are listed."""
    from scipy.sparse import csc_matrix

    pandas = require_pandas("an ARFF file")
    places: list[list[int]] = [[] for _ in values]
    texts: list[list[str]] = [[] for _ in values]
    for number, row in enumerate(rows):
        cells: Any = _cells(row.strip("{}"))
        if is_sparse:
            cells = [cell.split(maxsplit=1) for cell in cells if cell]
        elif len(cells) == len(values):
            cells = enumerate(cells)
        else:
            raise DataError(f"row {number} has {len(cells)} values for {len(values)} columns")
        for column, cell in cells:
            places[int(column)].append(number)
            texts[int(column)].append(cell.strip("'\""))
    columns = {
        name: _numbers(name, cells, named)
        for (name, named), cells in zip(values.items(), texts, strict=True)
    }
    if not is_sparse:
        return pandas.DataFrame(columns)
    ends = np.cumsum([0, *map(len, places)])
    stored = np.concatenate([*columns.values()]), np.concatenate(places).astype(int), ends
    matrix = csc_matrix(stored, (len(rows), len(columns)))
    return pandas.DataFrame.sparse.from_spmatrix(matrix, columns=list(values))


def _cells(row: str) -> list[str]:
    quote = re.search("['\"]", row) or '"'
    reader = csv.reader([row], quotechar=quote[0], escapechar="\\", skipinitialspace=True)
    return [cell.strip() for cell in next(reader, [])]


def _numbers(name: str, cells: list[str], named: tuple[str, ...]) -> Any:
    try:
        codes = {text: float(code) for code, text in enumerate(named)}
        return looked_up(cells, codes) if named else numbers(name, cells)
    except KeyError as error:
        raise DataError(f"column {name!r} holds {error}, which is not declared") from None


def _named(frame: Any, values: dict[str, tuple[str, ...]], is_sparse: bool) -> Any:
    """The frame with categories, and 0 and 1, in the place of codes."""
    pandas = require_pandas("an ARFF file")
    for name, named in values.items():
        codes = frame[name].to_numpy(dtype=float)
        if named and {*named} != {"0", "1"}:
            places = np.nan_to_num(codes, nan=-1).astype(int)
            frame[name] = pandas.Categorical.from_codes(places, named)
        elif named:
            if named[0] == "1":
                frame[name] = 1 - codes
            if np.isfinite(codes).all():
                whole = pandas.SparseDtype(int, 0) if is_sparse else int
                frame[name] = frame[name].astype(whole)
    return frame
