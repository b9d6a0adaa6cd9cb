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
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from solera.core.config import Problem, component, line_of
from solera.core.errors import UsageError
from solera.learn.base import Additive, Learner

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


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
    evaluate: str = ""
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
    known = [f.name for f in fields(JobSpec) if f.name != "text"]
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise Problem((key,), f"unknown key {key!r}", hint=hint)
    for key in ("federation", "learner"):
        if key not in table:
            raise Problem((), f"the job has no {key}")
    learner = table["learner"]
    if not isinstance(learner, Mapping):
        raise Problem(("learner",), "learner must be a table", hint="write [learner]")
    for key, kind in (("name", str), ("federation", str), ("owner", str), ("evaluate", str)):
        _check(table, key, kind)
    for key in ("seed", "clients"):
        _check(table, key, int, least=0 if key == "seed" else 1)
    _check(table, "standing", bool)
    _check(table, "deadline", float, least=0)
    for key in ("name", "federation"):
        if not _NAME.fullmatch(table[key]):
            raise Problem((key,), f"{key} {table[key]!r} is not a name", hint="like cardio-2")
    if table.get("evaluate", "") not in ("", "train", "test"):
        raise Problem(("evaluate",), "evaluate must be 'test', 'train' or ''")
    built = component(Learner, learner, ("learner",))
    if table.get("standing") and not isinstance(built, Additive):
        raise Problem(
            ("learner", "kind"),
            f"{learner['kind']} cannot stand: it needs its clients at the same time",
            hint="FedHEONN adds up what clients bring one by one",
        )
    return JobSpec(**{**table, "learner": built, "text": text})


def _check(table: Mapping[str, Any], key: str, kind: type, least: float | None = None) -> None:
    value = table.get(key)
    if value is None:
        return
    right = isinstance(value, int | float if kind is float else kind)
    if not right or (kind is not bool and isinstance(value, bool)):
        raise Problem((key,), f"{key} must be {_KINDS[kind]}, not {value!r}")
    if least is not None and not value >= least:
        raise Problem((key,), f"{key} = {value} must be at least {least:g}")
