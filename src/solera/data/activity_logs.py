"""Raw activity logs of online courses: one line per click, made into one row per enrolment.

Two layouts are read, recognised by their headers. KDD Cup 2015 has ``enrollment_*.csv`` (enrolment,
username, course), ``log_*.csv`` (enrolment, time, source, event, object) and ``truth_*.csv``
(enrolment, dropout; no header). XuetangX as in Feng, Tang & Liu (2019) has the username and the
course in every line of its logs. Files may be compressed (``.csv.gz``).

A log is read as a stream: memory holds the counts, the names of the enrolments and one block of
lines, however long the log is.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import IntArray
from solera.core.errors import DataError
from solera.core.schema import Feature
from solera.data.catalogue import described
from solera.data.dataset import Dataset, divided, held_out
from solera.data.files import DatasetInfo, folders, reading, unavailable

_BLOCK = 1 << 17
"""Activities that are counted at once; their lines are not held."""
_ENROLMENT = ("enrollment_id", "enroll_id")
_STUDENT = ("username", "user_id", "id_student")
_COURSE = ("course_id",)
_KIND = ("event", "action")
_DROPOUT = ("dropout", "truth", "label", "result")


@dataclass(frozen=True, kw_only=True)
class RawLogs(DatasetInfo):
    """A data set that is built from the raw files of a folder."""

    folder: str

    @property
    def at_hand(self) -> bool:
        return self.place() is not None

    def place(self) -> Path | None:
        """The first folder of that name that has logs in it."""
        return next((f / self.folder for f in folders() if _files(f / self.folder, "log")), None)


(XUETANGX,) = described("logs", RawLogs).values()


def xuetangx(*, test: float = 0.3, seed: int = 0) -> Dataset:
    """Dropout from online courses: 225,642 enrolments, counts of 21 kinds of activity, 2 classes.

    Built from the raw logs of XuetangX (Feng et al. 2019), or from those of KDD Cup 2015,
    which are read as a stream from the folder ``xuetangx`` of ``$SOLERA_DATA``: ``log_*.csv``,
    ``truth_*.csv`` and, where the logs do not name students and courses, ``enrollment_*.csv``. No
    student is in both the training and the test rows. Groups: ``student``, ``course``.
    """
    place = XUETANGX.place()
    if place is None:
        raise unavailable(XUETANGX, "there is no download for it")
    with reading(place):
        made = read_folder(place)
    students, of_row = np.unique(made.students, return_inverse=True)
    chosen = held_out(XUETANGX.name, np.zeros(len(students), np.int64), "classes", test, seed)
    return divided(
        XUETANGX,
        made.counts.astype(np.float64),
        made.dropout,
        chosen[of_row.reshape(-1)],
        map(Feature, made.kinds),
        source=str(place),
        class_names=("stayed", "dropped out"),
        groups={"student": made.students, "course": made.courses},
    )


@dataclass(frozen=True)
class Activities:
    """Counts of every kind of activity (columns) in every enrolment (rows)."""

    counts: NDArray[np.uint32]
    kinds: tuple[str, ...]
    enrolments: NDArray[Any]
    students: NDArray[Any]
    courses: NDArray[Any]
    dropout: IntArray


def read_folder(folder: Path) -> Activities:
    """All enrolments of the raw files in a folder whose outcome is known."""
    enrolments, logs, truths = (_files(folder, name) for name in ("enrollment", "log", "truth"))
    if not logs or not truths:
        absent = "log_*.csv" if not logs else "truth_*.csv"
        raise DataError(f"no {absent}", hint="the raw files are log_*, truth_* and enrollment_*")
    counter = _Counter()
    for path in enrolments:
        counter.enrol(path)
    for path in logs:
        counter.read(path, closed=bool(enrolments))
    return counter.finish(_outcomes(truths))


class _Counter:
    """Counts activities while their log goes by."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}
        self._column: dict[str, int] = {}
        self._students: list[str] = []
        self._courses: list[str] = []
        self._counts: NDArray[np.uint32] = np.zeros((1024, 32), dtype=np.uint32)

    def enrol(self, path: Path) -> None:
        """Take in the enrolments of a file without a log."""
        for _, (enrolment, student, course) in _lines(path, (_ENROLMENT, _STUDENT, _COURSE)):
            self._add(enrolment, student, course)

    def _add(self, enrolment: str, student: str, course: str) -> int:
        row = self._row.setdefault(enrolment, len(self._row))
        if row == len(self._students):
            self._students.append(student)
            self._courses.append(course)
        return row

    def read(self, path: Path, *, closed: bool) -> None:
        """Count a log; ``closed``: enrolments are known already, others are an error."""
        wanted = (_ENROLMENT, _KIND) if closed else (_ENROLMENT, _KIND, _STUDENT, _COURSE)
        rows: list[int] = []
        columns: list[int] = []
        for number, (enrolment, kind, *who) in _lines(path, wanted):
            row = self._row.get(enrolment)
            if row is None:
                if closed:
                    raise DataError(
                        f"{path.name} line {number}: enrolment {enrolment!r} is in no "
                        "enrollment file"
                    )
                row = self._add(enrolment, *who)
            rows.append(row)
            columns.append(self._column.setdefault(kind, len(self._column)))
            if len(rows) == _BLOCK:
                self._count(rows, columns)
        self._count(rows, columns)

    def _count(self, rows: list[int], columns: list[int]) -> None:
        """Add a block of activities to the table, which grows by doubling."""
        height, width = self._counts.shape
        if len(self._row) > height or len(self._column) > width:
            grown = max(height, 2 * len(self._row)), max(width, 2 * len(self._column))
            table = np.zeros(grown, dtype=np.uint32)
            table[:height, :width] = self._counts
            self._counts = table
        cells = np.array(rows, dtype=np.int64) * self._counts.shape[1] + np.array(columns, np.int64)
        found, times = np.unique(cells, return_counts=True)
        self._counts.reshape(-1)[found] += times.astype(np.uint32)
        rows.clear()
        columns.clear()

    def finish(self, outcomes: dict[str, int]) -> Activities:
        """The rows whose outcome is known, in order of enrolment, kinds in order of name."""
        known = [name for name in self._row if name in outcomes]
        if not known:
            raise DataError("no enrolment of the logs has an outcome in the truth files")
        known.sort(key=_natural)
        rows = np.array([self._row[name] for name in known])
        kinds = sorted(self._column)
        columns = [self._column[kind] for kind in kinds]
        return Activities(
            counts=np.ascontiguousarray(self._counts[rows][:, columns]),
            kinds=tuple(kinds),
            enrolments=np.array(known),
            students=np.array(self._students)[rows],
            courses=np.array(self._courses)[rows],
            dropout=np.array([outcomes[name] for name in known], dtype=np.int64),
        )


def _natural(name: str) -> tuple[int, str]:
    """Numbers in their own order, before names."""
    return (int(name), name) if name.isdecimal() else (2**63, name)


def _outcomes(paths: Iterable[Path]) -> dict[str, int]:
    """1 for dropout, 0 for completion, by enrolment."""
    outcomes: dict[str, int] = {}
    for path in paths:
        for number, (enrolment, value) in _lines(path, (_ENROLMENT, _DROPOUT), headless=True):
            if value not in ("0", "1"):
                raise DataError(f"{path.name} line {number}: outcome {value!r} is not 0 or 1")
            outcomes[enrolment] = int(value)
    return outcomes


def _lines(
    path: Path, wanted: Sequence[tuple[str, ...]], *, headless: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """The wanted cells of every line of a CSV file with its number; columns go by their names.

    ``headless``: the file may start with data; its columns are then in the wanted order.
    """
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, None)
        if header is None:
            raise DataError(f"{path.name} is empty")
        if headless and header[0].strip().isdecimal():
            places = list(range(len(wanted)))
            yield 1, [header[place].strip() for place in places]
        else:
            places = [_place(path, header, names) for names in wanted]
        most = max(places)
        for row in reader:
            if len(row) > most:
                yield reader.line_num, [row[place] for place in places]
            elif row:
                raise DataError(
                    f"{path.name} line {reader.line_num}: {len(row)} cells, "
                    f"more than {most} are needed"
                )


def _place(path: Path, header: list[str], names: tuple[str, ...]) -> int:
    clean = [cell.strip().lstrip("\ufeff").lower() for cell in header]
    for name in names:
        if name in clean:
            return clean.index(name)
    raise DataError(
        f"{path.name} has no column {' or '.join(names)}", hint=f"it has {', '.join(clean)}"
    )


def _files(folder: Path, kind: str) -> list[Path]:
    """``log_*.csv`` and ``*_log.csv``, compressed or not, in order of name."""
    patterns = (f"{kind}_*.csv", f"{kind}_*.csv.gz", f"*_{kind}.csv", f"*_{kind}.csv.gz")
    return sorted(path for pattern in patterns for path in folder.glob(pattern))
