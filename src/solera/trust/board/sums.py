"""How one ask becomes one or two sums, the same at every owner.

First the own terms, unless some numbers rest on some rows only: then marks go first that say behind
which numbers some owner has enough persons, and the terms of the others stay out, absent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

import numpy as np

from solera.core.absent import with_gaps
from solera.core.aggregation import Aggregation
from solera.core.replies import map_leaves
from solera.trust.board.hashing import digest

TERMS, ENOUGH = "terms", "enough"

Own = Callable[[], tuple[Any, bytes]]
"""Works out what is added up, and the client's state after it."""
Sums = Generator[tuple[bytes, Own], Any, Any]
"""Yields a question and what the owner adds, is sent the total, and returns the partial."""


class OwnAnswer(Protocol):
    """An owner's answer to one ask; its task runs when a method is called, and only once."""

    def first(self) -> tuple[Any, bytes]:
        """``{"terms": …}``, or ``{"enough": …}`` where marks go first; and the client's state."""

    def told(self, absent: dict[str, Any]) -> tuple[Any, bytes]:
        """``{"terms": …}`` without what is absent; and the client's state."""

    def conclude(self, terms: Any) -> None:
        """What all owners' terms add up to."""


def sums_of(question: bytes, aggregation: Aggregation, owners: int, own: OwnAnswer) -> Sums:
    """The partial over all owners, with what is absent of it."""
    absent: dict[str, Any] = {}
    total = yield question, own.first
    if ENOUGH in total:
        marks = map_leaves(lambda total: np.asarray(total) == 0, total[ENOUGH])
        absent = {entry: mark for entry, mark in marks.items() if _any(mark)}
        total = yield digest("told", question), lambda: own.told(absent)
    own.conclude(total[TERMS])
    partial = aggregation.from_terms(total[TERMS])
    if not absent:
        return partial
    return with_gaps(partial, map_leaves(lambda mark: owners * mark.astype(np.int64), absent))


def _any(marks: Any) -> bool:
    return any(map(_any, marks)) if isinstance(marks, list) else bool(np.any(marks))
