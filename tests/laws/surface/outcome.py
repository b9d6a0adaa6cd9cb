"""How a cell ended: right, refused as it should be, absent, or neither."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import solera as so
from surface.surfaces import Absent, Wrong

WAY_OUT = re.compile(r"\((?=[^()]*\w)|\bneed(s|ed)?\b|\bmust\b|\bgive\b|\buse\b")
NAMED = re.compile(r"\bso\.(\w+(?:\.\w+)*)")


@dataclass(frozen=True)
class Outcome:
    """``what`` is right, refused, absent or wrong; ``why`` says what is wrong."""

    what: str
    why: str = ""


def outcome(check: Callable[[], None], steps: Any = ()) -> Outcome:
    """What came of a check; ``steps`` are those of the learner, which no way out may name again."""
    try:
        check()
    except Absent:
        return Outcome("absent")
    except Wrong as wrong:
        return Outcome("wrong", str(wrong))
    except so.errors.SoleraError as refusal:
        objection = objection_to(refusal, steps)
        return Outcome("wrong", objection) if objection else Outcome("refused", str(refusal))
    except Exception as error:
        return Outcome("wrong", f"raw {type(error).__name__}: {error}")
    return Outcome("right")


def objection_to(refusal: so.errors.SoleraError, steps: Any) -> str | None:
    """What is missing of a refusal: the thing, a way out, or names that there are."""
    text = str(refusal)
    if not refusal.message.strip():
        return "an empty refusal"
    if not refusal.hint and not WAY_OUT.search(text):
        return f"no way out: {type(refusal).__name__}: {text}"
    for name in NAMED.findall(text):
        try:
            there = reduce(getattr, name.split("."), so)
        except AttributeError:
            return f"there is no so.{name}: {text}"
        if any(type(step) is there for step in steps):
            return f"the way out is a step that is there: {text}"
    return None
