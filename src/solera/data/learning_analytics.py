"""Students who drop out: XuetangX actions, KDD Cup 2015 by course, OULAD by presentation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from solera.core import rng
from solera.core.clients import FloatArray, IntArray
from solera.core.constraints import Count, check_arguments
from solera.core.errors import DataError
from solera.core.schema import Feature
from solera.data.catalogue import described
from solera.data.dataset import Dataset, divided, held_out
from solera.data.files import DatasetInfo, arrays, find, locate, reading, unavailable
from solera.data.tables import Cells, encode_columns, load, numbers, read_cells


@dataclass(frozen=True, kw_only=True)
class Tables(DatasetInfo):
    """A data set of several files."""

    others: tuple[str, ...]

    @property
    def at_hand(self) -> bool:
        return all(find(file) is not None for file in (self.file, *self.others))


(COURSES,) = described("courses", DatasetInfo).values()
(OULAD,) = described("several", Tables).values()
_PERSON = ("gender", "region", "highest_education", "imd_band", "age_band", "disability")
_NUMBERS = ("num_of_prev_attempts", "studied_credits")
Days = Annotated[int, Meta(ge=1, le=30)]
_WORK = ("due", "submitted", "late", "banked", "mean_score")


def schools(
    students: ArrayLike, size: Count = 1000, *, strata: ArrayLike | None = None, seed: int = 0
) -> IntArray:
    """The number of a school for every row: about ``size`` students each, none in two schools.

    ``students`` names the student of a row. ``strata`` names a category of that student, for
    example of the dropout rate; then no school has students of two categories. Make clients of the
    result with ``so.partitions.ByGroup``.
    """
    check_arguments(schools, size=size)
    _, student = np.unique(np.asarray(students), return_inverse=True)
    student = student.reshape(-1)
    kinds = np.zeros(len(student), np.int64)
    if strata is not None:
        kinds = np.unique(np.asarray(strata), return_inverse=True)[1].reshape(-1)
    kind = np.zeros(int(student.max()) + 1, dtype=np.int64)
    kind[student] = kinds
    if (kind[student] != kinds).any():
        raise DataError("a student is in two strata", hint="strata belong to students, not to rows")
    order = rng.generator(seed, "schools").permutation(len(kind))
    school, first = np.empty(len(kind), dtype=np.int64), 0
    for one in range(int(kind.max()) + 1):
        members = order[kind[order] == one]
        count = max(1, round(len(members) / size))
        school[members] = first + np.arange(len(members)) % count
        first += count
    return school[student]


def xuetangx_actions16k(*, test: float = 0.3, seed: int = 0) -> Dataset:
    """Dropout from online courses: 16,412 enrolments, counts of 21 kinds of activity, 2 classes.

    A real part of :func:`xuetangx`, those with 100 to 1,000 actions: 44 % drop out, against 76 % of
    all. It does not say who the students are, nor which course they took.
    """
    return load("xuetangx_actions16k", test, seed)


def kddcup2015(*, days: Days = 30, test: float = 0.3, seed: int = 0) -> Dataset:
    """Dropout from 31 online courses: 57,366 enrolments, 7 kinds of events on 30 days, 2 classes.

    KDD Cup 2015, as counted by Talebi et al. (2024); the 8 largest of the 39 courses are not in the
    file. ``days`` keeps the first days only. Group: ``course``.
    """
    check_arguments(kddcup2015, days=days)
    path, source = locate(COURSES)
    with reading(path):
        held = arrays(path)
        X, y, course = held["X"], held["y"].astype(np.int64), held["course"]
        names, events = held["course_names"], held["event_names"]
        if X.shape != (len(y), 30, len(events)) or course.max() >= len(names):
            raise DataError(f"X is of shape {X.shape}")
    kinds = [str(event).removeprefix("event_") for event in events]
    features = [Feature(f"day{d}_{kind}") for d in range(days) for kind in kinds]
    return divided(
        COURSES,
        X[:, :days].reshape(len(X), -1).astype(np.float64),
        y,
        held_out(COURSES.name, y, "classes", test, seed),
        features,
        source=source,
        class_names=("stayed", "dropped out"),
        groups={"course": names[course]},
    )


def oulad(*, day: int = 60, test: float = 0.3, seed: int = 0) -> Dataset:
    """Withdrawal from the Open University: 32,593 enrolments, 13 features, 2 classes.

    Kuzilek et al. (2017), UCI 349. Six features say who the student is, two what was studied
    before, five sum up the assessments until ``day`` of the presentation. Clicks are not in the
    files. Groups: ``presentation`` (22), ``student``.
    """
    paths = []
    for file in (OULAD.file, *OULAD.others):
        path = find(file)
        if path is None:
            raise unavailable(OULAD, f"{file} is missing")
        paths.append(path)
    with reading(paths[0]):
        people = read_cells(
            paths[0],
            ("code_module", "code_presentation", "id_student", *_PERSON, *_NUMBERS, "final_result"),
        )
        y = np.array([result == "Withdrawn" for result in people["final_result"]], dtype=np.int64)
        features, person = encode_columns((*_PERSON, *_NUMBERS), _PERSON, people)
    presentation = _joined(people["code_module"], people["code_presentation"])
    student = np.array(people["id_student"])
    work = _work(paths[1], paths[2], presentation, student, day)
    features += map(Feature, _WORK)
    return divided(
        OULAD,
        np.column_stack([person, work]),
        y,
        held_out(OULAD.name, y, "classes", test, seed),
        features,
        source=str(paths[0].parent),
        class_names=("stayed", "withdrew"),
        groups={"presentation": presentation, "student": student},
    )


def _joined(first: Cells, second: Cells) -> NDArray[np.str_]:
    return np.array([f"{a} {b}" for a, b in zip(first, second, strict=True)])


def _work(
    submitted: Path,
    assessments: Path,
    presentation: NDArray[np.str_],
    student: NDArray[np.str_],
    day: int,
) -> FloatArray:
    """Per enrolment: assessments due, handed in, late and banked by that day, and their mean."""
    with reading(assessments):
        given = read_cells(
            assessments, ("code_module", "code_presentation", "id_assessment", "date")
        )
        dates = numbers("date", given["date"])  # a final exam without a date is never due
    of = _joined(given["code_module"], given["code_presentation"])
    due = {name: int((dates[of == name] <= day).sum()) for name in np.unique(of).tolist()}
    task = {key: (str(of[i]), dates[i]) for i, key in enumerate(given["id_assessment"])}
    with reading(submitted):
        wanted = ("id_assessment", "id_student", "date_submitted", "is_banked", "score")
        handed = read_cells(submitted, wanted)
        when, scores = (numbers(name, handed[name]) for name in ("date_submitted", "score"))
        row = {key: i for i, key in enumerate(zip(presentation.tolist(), student.tolist(),
                                                  strict=True))}  # fmt: skip
        unknown = set(handed["id_assessment"]) - task.keys()
        if unknown:
            raise DataError(f"assessment {min(unknown)} is not in {assessments.name}")
    work = np.zeros((len(student), len(_WORK)))
    work[:, 0] = [due.get(name, 0) for name in presentation.tolist()]
    marked = np.zeros(len(student))
    early = np.flatnonzero(when <= day).tolist()
    for i in early:
        course, deadline = task[handed["id_assessment"][i]]
        place = row.get((course, handed["id_student"][i]))
        if place is None:
            raise DataError(f"student {handed['id_student'][i]} is not enrolled in {course}")
        banked = handed["is_banked"][i] == "1"
        work[place, 1:4] += (1, when[i] > deadline, banked)
        if not np.isnan(scores[i]):
            work[place, 4] += scores[i]
            marked[place] += 1
    work[:, 4] /= np.maximum(marked, 1)
    return work
