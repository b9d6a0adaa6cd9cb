"""Sums over cells that follow from the ask alone, and what several steps would make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from solera.core.clients import Client
from solera.core.release import Cells, Leaving


class OneStep(Cells):
    """Counts and sums after one step over all rows.

    Where the second step begins follows from the first, which nobody judged: cells could be placed
    by what a single row gave. Several steps leave only where the policy trusts the driver with
    rows.

    ``steps``: (client, ask) → how many steps there are; the rest is that of :class:`Cells`.
    """

    says = "counts and sums over at least min_count rows, after one step"

    def __init__(self, *entries: str, steps: Callable[[Client, Any], int], **declared: Any) -> None:
        super().__init__(*entries, **declared)
        self.steps = steps

    def judge(self, leaving: Leaving) -> Any:
        if self.steps(leaving.client, leaving.ask) == 1:
            return super().judge(leaving)
        if not leaving.limits.trusted:
            raise leaving.refuse(
                "several steps, or a part of one, tell of single rows: this needs policy 'trusted'"
            )
        return leaving.reply
