"""Refusals are counted, not written one by one: whoever is refused would else fill the disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

SECONDS = 600.0
"""The first refusal of a kind is written at once, those that follow within this time as one."""
MOST_KINDS = 50
_OTHERS = "of other kinds"


@dataclass
class _Kind:
    """Refusals of one kind: how many are not written yet, and when the last ones were."""

    count: int = 0
    written: float = float("-inf")


class Refusals:
    """Counts of refusals by what was refused and to whom, in bounded room."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}

    def count(self, what: str) -> None:
        """One more; ``what`` is for people."""
        if what not in self._kinds and len(self._kinds) >= MOST_KINDS:
            what = _OTHERS
        self._kinds.setdefault(what[:500], _Kind()).count += 1

    def due(self) -> list[tuple[str, int]]:
        """What is to be written now, and how many of each; those of long ago are forgotten."""
        now = self._clock()
        found = []
        for what, kind in list(self._kinds.items()):
            if now - kind.written < SECONDS:
                continue
            if kind.count:
                found.append((what, kind.count))
                self._kinds[what] = _Kind(0, now)
            else:
                del self._kinds[what]
        return found
