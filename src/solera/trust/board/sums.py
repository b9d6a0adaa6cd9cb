"""How one ask becomes one or two sums, the same at every owner.

First the own terms, unless some numbers rest on some rows only: then the persons behind these go
first, with noise, and say what of the terms is told.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from solera.core.aggregation import Aggregation
from solera.trust.board.hashing import digest

TERMS, SUPPORTS, ABSENT, NOISED = "terms", "supports", "absent", "noised"

Own = Callable[[], tuple[Any, bytes]]
"""Works out what is added up, and the client's state after it."""
Sums = Generator[tuple[bytes, Own], Any, "Total"]
"""Yields a question and what the owner adds, is sent the total, and returns what all come to."""


@dataclass(frozen=True, slots=True)
class Total:
    """The partial over all owners, and by entry what of it is absent, and which counts carry noise.

    ``absent`` are numbers of owners: all of them, or none.
    """

    partial: Any
    absent: Mapping[str, Any] = field(default_factory=dict)
    noised: tuple[str, ...] = ()


class OwnAnswer(Protocol):
    """An owner's answer to one ask; its task runs when a method is called, and only once."""

    def first(self) -> tuple[Any, bytes]:
        """``{"terms": …}``, or ``{"supports": …}`` where these go first; and the client's state."""

    def told(self, supports: dict[str, Any]) -> tuple[Any, bytes]:
        """``{"terms": …, "absent": …, "noised": …}`` for these supports; and the client's state."""

    def conclude(self, terms: Any) -> None:
        """What all owners' terms add up to."""


def sums_of(question: bytes, aggregation: Aggregation, own: OwnAnswer) -> Sums:
    """What all owners come to: each says the same of what is absent, so that marks add up."""
    total = yield question, own.first
    if SUPPORTS in total:
        supports = total[SUPPORTS]
        total = yield digest("told", question), lambda: own.told(supports)
    own.conclude(total[TERMS])
    partial = aggregation.from_terms(total[TERMS])
    absent = {entry: marks for entry, marks in total.get(ABSENT, {}).items() if _any(marks)}
    noised = tuple(entry for entry, of_entry in total.get(NOISED, {}).items() if of_entry)
    return Total(partial, absent, noised)


def _any(marks: Any) -> bool:
    return any(map(_any, marks)) if isinstance(marks, list) else bool(np.any(marks))
