"""A job file: a learner that a coordinator runs by itself, declared in TOML.

name = "readmission"     # the job's name; the file's name by default
federation = "cardio"
owner = "dr. vega"       # who asks, for the clients' policies and logs
seed = 0
clients = 3              # begin once that many have joined
deadline = 86400         # seconds until the job as a whole is over; none by default
standing = false         # true: clients contribute at any time, until the job is cancelled
evaluate = "test"        # judge the model on what clients keep apart; "" for no judgement

[learner]
kind = "FedHEONN"        # any learner, and its parameters, as in a run file
lam = 0.01
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from solera.core.config import Problem, check_call, component, line_of
from solera.core.errors import UsageError
from solera.learn.base import Additive, Learner
from solera.serve.wire import NAME


@dataclass(frozen=True)
class JobSpec:
    """What a coordinator shall run. ``text`` is the file as it was written."""

    name: str
    federation: str
    learner: Learner
    owner: str = ""
    seed: int = 0
    clients: int = 1
    deadline: float | None = None
    standing: bool = False
    evaluate: Literal["", "train", "test"] = ""
    text: str = ""


def read_job(path: str | os.PathLike[str]) -> JobSpec:
    """The job that a TOML file declares."""
    path = Path(path)
    try:
        return parse_job(path.read_text(encoding="utf-8"), file=str(path), name=path.stem)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error.reason}") from None


def parse_job(text: str, *, file: str = "job", name: str = "") -> JobSpec:
    """The job that TOML text declares; ``file`` is named in errors, ``name`` is its default."""
    try:
        return _job({"name": name, **tomllib.loads(text)}, text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: this is not TOML: {error}") from None
    except Problem as problem:
        line = line_of(text, problem.where)
        raise UsageError(f"{file}:{line}: {problem.message}", hint=problem.hint) from None


def _job(table: Mapping[str, Any], text: str) -> JobSpec:
    check_call(JobSpec, "a job", table, (), without=("text",))
    for key, least in (("seed", 0), ("clients", 1), ("deadline", 0)):
        if not table.get(key, least) >= least:
            raise Problem((key,), f"{key} = {table[key]} must be at least {least}")
    for key in ("name", "federation"):
        if not re.fullmatch(NAME, table[key]):
            raise Problem((key,), f"{key} {table[key]!r} is not a name", hint="like cardio-2")
    learner = component(Learner, table["learner"], ("learner",))
    if table.get("standing") and not isinstance(learner, Additive):
        raise Problem(
            ("learner", "kind"),
            f"{table['learner']['kind']} cannot stand: it needs its clients at the same time",
            hint="FedHEONN adds up what clients bring one by one",
        )
    return JobSpec(**{**table, "learner": learner, "text": text})
