"""The text of a closed job: what owners approve, and all that a run follows from.

Its canonical bytes are JSON with sorted names and nothing between them. It holds no arrays, no
state and no code; numbers have at most three significant digits, so that nobody hides a message or
a row in one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from solera.core.component import describe
from solera.core.errors import PayloadError, UsageError
from solera.trust.board.hashing import digest

Kind = Literal["statistics", "evaluation", "training", "atoms"]
"""Those of an owner's ``jobs``, and the one in which agents find the atoms of an epoch."""
REPEATS = 10
"""A seed of a closed job is the number of a repeat, below this."""
_DIGITS = 3
_KEY = 32


@dataclass(frozen=True)
class JobText:
    """What is run on whose rows, for whom.

    Parameters
    ----------
    kind: what it is for owners.
    learner: the learner as :func:`solera.core.component.describe` describes it, or the learner. Of
        a grid a list of them: they are fitted one after the other, and the one with the smallest
        mean loss over the validation folds is the result.
    population, columns, target: which rows of the dictionary, and what of them.
    positive: the class of two that counts as positive; without it the second.
    training, validation, test: the folds (0 to 9) of every part; a fold is in one of them.
    metrics: what an evaluation gives.
    callbacks: what stops rounds early: ``EarlyStopping`` and ``StopAt``, described.
    model: the hash of an earlier closed result, to be judged or to start from.
    repeat: 0 to 9; another one has other draws.
    patience: days that an owner who is away is waited for.
    researcher, researcher_key: who gets the result, and the X25519 key that it is sealed to.
    """

    kind: Kind
    learner: Any
    population: str = "all"
    columns: tuple[str, ...] = ()
    target: str | tuple[str, ...] | None = None
    positive: str = ""
    training: tuple[int, ...] = tuple(range(10))
    validation: tuple[int, ...] = ()
    test: tuple[int, ...] = ()
    metrics: tuple[str, ...] = ()
    callbacks: tuple[Any, ...] = ()
    model: str | None = None
    repeat: int = 0
    patience: int = 7
    researcher: str = ""
    researcher_key: bytes = field(default=bytes(_KEY))

    def __post_init__(self) -> None:
        for name in ("learner", "callbacks"):
            object.__setattr__(self, name, _plain(describe(getattr(self, name)), name))
        _check(self)

    @property
    def learners(self) -> list[Any]:
        """The points of a grid; of a text without one, its learner."""
        return self.learner if isinstance(self.learner, list) else [self.learner]


def canonical(text: JobText) -> bytes:
    """The one way to write this text."""
    content = {**asdict(text), "researcher_key": text.researcher_key.hex()}
    line = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return line.encode()


def parse(content: bytes) -> JobText:
    """The text of canonical bytes; others are refused."""
    try:
        given = json.loads(content)
        names = {one.name for one in fields(JobText)}
        if not isinstance(given, dict) or set(given) != names:
            raise ValueError("it has other entries than a text")
        given["researcher_key"] = bytes.fromhex(given["researcher_key"])
        lists = {name: tuple(value) for name, value in given.items() if _is_tuple(name, value)}
        text = JobText(**{**given, **lists})
        same = canonical(text) == content
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PayloadError(f"this is no text of a closed job: {error}") from None
    if not same:
        raise PayloadError("the text of a closed job is not in its canonical form")
    return text


def jid(epoch: bytes, content: bytes) -> bytes:
    """H("job", epoch, canonical text): by what a job is known."""
    return digest("job", epoch, content)


def seed_of(epoch: bytes, learner: str, repeat: int) -> int:
    """What fixes the draws of a learner in an epoch; points of a grid share it."""
    return int.from_bytes(digest("seed", epoch, learner, repeat)[:4], "little")


def check_number(value: float, name: str) -> None:
    """Refuse a number of more than three significant digits, and name the rounded one."""
    if not math.isfinite(value):
        raise UsageError(f"{name}={value!r}: a closed job takes finite numbers")
    rounded = float(f"{value:.{_DIGITS}g}")
    if value != rounded:
        raise UsageError(
            f"{name}={value!r} has more than {_DIGITS} significant digits, which a closed job does "
            "not carry",
            hint=f"{name.rpartition('.')[2]}={rounded!r}",
        )


def _plain(value: Any, name: str) -> Any:
    """Text, numbers, truth values, lists and tables of them; anything else is refused."""
    if isinstance(value, float):
        check_number(value, name)
    elif isinstance(value, Mapping):
        inside = {"params": name, "$component": name}
        return {
            key: _plain(inner, inside.get(key, f"{name}.{key}")) for key, inner in value.items()
        }
    elif isinstance(value, list | tuple):
        return [_plain(inner, f"{name}.{i}") for i, inner in enumerate(value)]
    elif value is not None and not isinstance(value, str | bool | int):
        raise UsageError(
            f"{name} holds {type(value).__name__}, which the text of a closed job does not carry",
            hint="names and numbers; a model is named by the hash of an earlier closed result",
        )
    return value


def _is_tuple(name: str, value: Any) -> bool:
    return isinstance(value, list) and name != "learner"


def _check(text: JobText) -> None:
    if text.kind not in get_args(Kind):
        raise UsageError.of(text, "kind", text.kind, f"must be one of {', '.join(get_args(Kind))}")
    if type(text.repeat) is not int or not 0 <= text.repeat < REPEATS:
        raise UsageError(
            f"seed={text.repeat!r}: the seed of a closed job is its repeat, 0 to {REPEATS - 1}",
            hint="seed=0",
        )
    if type(text.patience) is not int or text.patience < 1:
        raise UsageError.of(text, "patience", text.patience, "must be a number of days")
    if isinstance(text.learner, list) and not (len(text.learner) > 1 and text.validation):
        raise UsageError(
            "the points of a grid are compared by their losses over validation folds, here are "
            f"{len(text.learner)} points and {len(text.validation)} folds",
            hint="validation = 0.2",
        )
    folds = [*text.training, *text.validation, *text.test]
    if not all(type(fold) is int and 0 <= fold < 10 for fold in folds):
        raise UsageError(f"folds are 0 to 9, not {folds}")
    if len(set(folds)) < len(folds):
        raise UsageError("a fold is in two parts", hint="training=(0, …, 7), test=(8, 9)")
    if len(text.researcher_key) != _KEY or not any(text.researcher_key):
        raise UsageError(f"researcher_key= is missing: {_KEY} bytes, to which results are sealed")
