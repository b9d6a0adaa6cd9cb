"""A table of one's own, as a frame or as a data set: a file, a folder of files, or a query.

patients.csv  patients.csv.gz  patients.parquet     one file
yeast.arff                                          labels that yeast.xml names, as MULAN has them
exports/                                            all such files of a folder, by name
sql:postgresql://reader@db/cardio#SELECT age, …     a query; nothing is ever committed
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.constraints import ProperFraction
from solera.core.errors import DataError, MissingExtra, UsageError
from solera.core.schema import Kind, Unknown
from solera.data.adapters import from_pandas
from solera.data.arff import label_names
from solera.data.dataset import Dataset, held_out
from solera.data.files import require_pandas
from solera.data.table_files import ENDINGS, TableFile, table_files

_READ_ONLY = {"sqlite": "PRAGMA query_only = ON", "postgresql": "SET TRANSACTION READ ONLY"}


def is_own(name: str) -> bool:
    """Whether it says where a table is, rather than naming a data set."""
    return name.startswith("sql:") or name.endswith(ENDINGS) or "/" in name or Path(name).is_dir()


def read_table(url: str) -> Any:
    """The pandas frame that a file, a folder or ``sql:…#SELECT …`` holds."""
    if url.startswith("sql:"):
        return _from_query(url.removeprefix("sql:"))
    return _from_files(Path(url))


def own(
    file: str,
    *,
    target: str | Sequence[str] | None = None,
    group: str | None = None,
    columns: Sequence[str] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    unknown: Unknown = "error",
    test: ProperFraction = 0.25,
    seed: int = 0,
) -> Dataset:
    """A table of one's own as a :class:`Dataset`, of which the share ``test`` is held out.

    Columns are read as by :func:`solera.from_pandas`; test rows are drawn within each class. An XML
    file of MULAN as the ``target`` names the labels.
    """
    answers = target_columns(file, target)
    reading: dict[str, Any] = {"target": answers, "group": group, "columns": columns}
    whole = from_pandas(read_table(file), kinds=kinds, unknown=unknown, **reading)
    if not whole.X.shape[0]:
        raise DataError(f"{_shown(file)} has no rows")
    strata = np.zeros(whole.X.shape[0], dtype=np.int64) if whole.y is None else whole.y
    marked = held_out("data", strata, whole.schema.target, test, seed)
    return replace(
        whole,
        name=table_name(file),
        title=f"{whole.X.shape[0]:,} rows of one's own",
        source=_shown(file),
        X=whole.X[~marked],
        y=None if whole.y is None else whole.y[~marked],
        X_test=whole.X[marked],
        y_test=None if whole.y is None else whole.y[marked],
        groups={name: values[~marked] for name, values in whole.groups.items()},
        groups_test={name: values[marked] for name, values in whole.groups.items()},
    )


def target_columns(file: str, target: Any) -> Any:
    """The columns to predict, also those that an XML file names, which may lie beside the table."""
    if not isinstance(target, str) or not target.endswith(".xml"):
        return target
    beside = Path(file).parent / target
    return label_names(beside if beside.is_file() else target)


def table_name(file: str) -> str:
    """What a table is called: its file without folder and ending, or its database."""
    if file.startswith("sql:"):
        return Path(_shown(file).rpartition("/")[2]).stem or "query"
    return Path(file).name.partition(".")[0]


def digest(file: str) -> str:
    """What the content of files comes to; of a query only its text is known."""
    if file.startswith("sql:"):
        return hashlib.sha256(file.encode()).hexdigest()
    total = hashlib.sha256()
    for path in table_files(Path(file)):
        total.update(path.read_bytes())
    return total.hexdigest()


def _shown(file: str) -> str:
    """Where a table is, without what may be a password."""
    return re.sub(r"//[^/#]*@", "//", file.partition("#")[0]) if file.startswith("sql:") else file


# --- files ---


def _from_files(path: Path) -> Any:
    pandas = require_pandas("a table of one's own")
    files = table_files(path)
    frames = [TableFile(file).read() for file in files]
    for file, frame in zip(files[1:], frames[1:], strict=True):
        _check_alike(file, frame, files[0], frames[0])
    return pandas.concat([frame[frames[0].columns] for frame in frames], ignore_index=True)


def _check_alike(file: Path, frame: Any, first: Path, wanted: Any) -> None:
    """Same columns, and numbers where the first file has numbers."""
    from pandas.api.types import is_numeric_dtype

    for name in wanted.columns:
        if name not in frame.columns:
            raise DataError(f"{file} has no column {name!r}, {first.name} has")
        ours, theirs = frame[name], wanted[name]
        if ours.isna().all() or theirs.isna().all():
            continue
        if is_numeric_dtype(ours.dtype) != is_numeric_dtype(theirs.dtype):
            kinds = ("numbers", "text") if is_numeric_dtype(ours.dtype) else ("text", "numbers")
            raise DataError(f"{file}: column {name!r} holds {kinds[0]}, {kinds[1]} in {first.name}")
    for name in frame.columns:
        if name not in wanted.columns:
            raise DataError(f"{file} has a column {name!r}, {first.name} has not")


# --- a query ---


def _from_query(place: str) -> Any:
    """What a SELECT returns. Nothing it might change is committed."""
    url, mark, query = place.partition("#")
    if not re.match(r"\s*(select|with)\b", query, re.IGNORECASE):
        raise UsageError(f"sql:{'…#' + query if mark else '…'}: a SELECT must follow a #")
    pandas = require_pandas("a table of one's own")
    try:
        import sqlalchemy
    except ImportError:
        raise MissingExtra.of("a data source sql:…", "serve") from None
    try:
        engine = sqlalchemy.create_engine(url)
    except sqlalchemy.exc.ArgumentError:  # its text may hold the password
        raise DataError("sql:… is not the URL of a database SQLAlchemy knows") from None
    except ImportError as error:
        raise DataError(f"the driver of the database is not installed: {error}") from None
    name = engine.url.database
    if engine.dialect.name == "sqlite" and name and ":" not in name and not Path(name).is_file():
        raise DataError(f"there is no database {name}")
    try:
        with engine.connect() as connection:  # leaving it rolls back
            if engine.dialect.name in _READ_ONLY:
                connection.exec_driver_sql(_READ_ONLY[engine.dialect.name])
            result = connection.exec_driver_sql(query)
            rows = result.fetchall()
            return pandas.DataFrame.from_records(rows, columns=[*result.keys()], coerce_float=True)
    except sqlalchemy.exc.SQLAlchemyError as error:
        reason = _first_line(getattr(error, "orig", None) or error)
        raise DataError(f"the query on database {name!r} failed: {reason}") from None
    finally:
        engine.dispose()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
