"""A job file: a learner that owners run in a closed job, or a coordinator by itself, in TOML.

name = "readmission"     # the job's name; the file's name by default
federation = "cardio"
owner = "dr. vega"       # who asks, for the clients' policies and logs
seed = 0                 # of a closed job its repeat, 0 to 9
clients = 3              # begin once that many have joined
deadline = 86400         # seconds until the job as a whole is over; a week by default
standing = false         # true: clients contribute at any time, until the job is cancelled
secure = false           # true: only sums of what clients send can be read, see so.SecureSum
evaluate = "test"        # judge the model on what clients keep apart; "" for no judgement
positive = "died"        # which of two classes counts as positive; the second unless it is here
scores = false           # true: clients count scores, too, where the model gives any: ROC, AUROC, …

population = "elderly"   # of a closed job: which rows of the epoch, by the dictionary's name
columns = ["age", "bmi"] # of a closed job: the columns to learn from; all by default
target = "died"          # of a closed job: what to predict; the dictionary's target by default
validation = 0.1         # of a closed job: shares of the folds, tenths
test = 0.2

[learner]
kind = "FedHEONN"        # any learner, and its parameters, as in a run file
lam = 0.01               # of a closed job also a grid, as in a study: [0.01, 0.1], or [[learner]]
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from solera.core.config import Problem, Where, check_call, component, errors_located, read_text
from solera.core.constraints import Count, NonNegative, NonNegativeInt
from solera.core.errors import UsageError
from solera.core.grids import tables_of
from solera.learn.base import Additive, Learner, Predictor
from solera.learn.vertical.base import VerticalLearner
from solera.serve.description import Description, learner_table
from solera.serve.wire import DEFAULT_SECONDS, NAME
from solera.trust.epoch.selection import Selection


@dataclass(frozen=True)
class JobSpec:
    """What a coordinator shall run."""

    name: str
    federation: str
    learner: Learner
    owner: str = ""
    seed: NonNegativeInt = 0
    clients: Count = 1
    deadline: NonNegative | None = None
    standing: bool = False
    secure: bool = False
    evaluate: Literal["", "train", "test"] = ""
    scores: bool = False
    positive: str = ""
    population: str | None = None
    columns: tuple[str, ...] = ()
    target: str | tuple[str, ...] | None = None
    validation: NonNegative = 0.0
    test: NonNegative = 0.0
    grid: tuple[Learner, ...] = ()

    @property
    def selection(self) -> Selection:
        """Which rows of an epoch a closed job is about."""
        parts = {"validation": self.validation, "test": self.test}
        return Selection.of(self.columns, self.target, population=self.population, **parts)

    @property
    def evaluates(self) -> bool:
        """Whether clients judge the model at the end."""
        return bool(self.evaluate) and not self.standing and isinstance(self.learner, Predictor)

    @property
    def counts_scores(self) -> bool:
        """Whether clients count scores, too; the parties of a vertical federation do not."""
        return self.scores and self.evaluates and not isinstance(self.learner, VerticalLearner)

    def describe(self, toml: str) -> Description:
        """What owners approve; ``toml`` is the file that declares the job."""
        self.learner.check_params()
        if self.grid:
            raise UsageError(
                "owners who trust the coordinator run one learner a job, this file has "
                f"{len(self.grid)}",
                hint="a job file for each learner",
            )
        return Description(
            job=self.name,
            federation=self.federation,
            kind="standing" if self.standing else "managed",
            owner=self.owner,
            seed=self.seed,
            learner=learner_table(self.learner),
            seconds=self.deadline or (None if self.standing else DEFAULT_SECONDS),
            toml=toml,
        )


def read_job(path: str | os.PathLike[str]) -> JobSpec:
    """The job that a TOML file declares."""
    return parse_job(read_text(path), file=str(path), name=Path(path).stem)


def parse_job(text: str, *, file: str = "job", name: str = "") -> JobSpec:
    """The job that TOML text declares; ``file`` is named in errors, ``name`` is its default."""
    with errors_located(text, file):
        return _job({"name": name, **tomllib.loads(text)})


def _job(table: Mapping[str, Any]) -> JobSpec:
    several = isinstance(table.get("learner"), list)
    given = table["learner"] if several else [table.get("learner")]
    first = {"learner": given[0]} if several and given else {}
    check_call(JobSpec, "a job", {**table, **first}, (), passed=("grid",))
    for key in ("name", "federation"):
        if not re.fullmatch(NAME, table[key]):
            raise Problem((key,), f"{key} {table[key]!r} is not a name", hint="like cardio-2")
    places: list[Where] = [("learner", i) if several else ("learner",) for i in range(len(given))]
    points = [
        component(Learner, point, place)
        for one, place in zip(given, places, strict=True)
        for point in tables_of(Learner, one, place)
    ]
    learner, grid = points[0], tuple(points) if len(points) > 1 else ()
    for point in grid:
        if not isinstance(point, Predictor):
            raise Problem(("learner",), f"{type(point).__name__} predicts nothing to be chosen by")
    if table.get("standing") and not isinstance(learner, Additive):
        raise Problem(
            ("learner", "kind"),
            f"{type(learner).__name__} cannot stand: it needs its clients at the same time",
            hint="FedHEONN adds up what clients bring one by one",
        )
    if table.get("standing") and table.get("secure"):
        raise Problem(
            ("secure",),
            "a standing job has no secure sums: its clients come one by one",
            hint="leave one of the two out",
        )
    lists = {name: tuple(value) for name, value in table.items() if isinstance(value, list)}
    return JobSpec(**{**table, **lists, "learner": learner, "grid": grid})
