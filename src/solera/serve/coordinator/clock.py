"""Time that is not believed at once: a clock set forward must not end what is going on.

A deadline is a moment of the system's clock, so that it holds across restarts. Where that clock has
leapt forward against the time that has really passed, nothing is ended or deleted for some minutes:
whoever sets it right again has lost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LEAP = 60.0
"""Seconds that the system's clock may be ahead of what has passed, as when it is adjusted."""
DOUBT = 900.0
"""Seconds for which a clock that has leapt is not believed."""
LONGEST_ABSENCE = 2 * 24 * 3600.0
"""A coordinator that was away for longer doubts the clock that says so."""


class Clock:
    """The system's clock, and whether it is to be believed; ``last`` is when something happened."""

    def __init__(
        self,
        last: float | None = None,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()
        away = 0.0 if last is None else wall() - last
        self._doubt_until = steady() + DOUBT if away > LONGEST_ABSENCE else float("-inf")

    def believed(self) -> bool:
        """Whether what is over by the system's clock is over."""
        steady = self._steady()
        offset = self._wall() - steady
        if offset > self._offset + LEAP:
            self._doubt_until = steady + DOUBT
        if offset < self._offset - LEAP:  # set back, also after a leap: nothing is late by that
            self._doubt_until = float("-inf")
        self._offset = offset
        return steady >= self._doubt_until
