"""How many rows clients agreed to have: none may claim more, or it would outweigh all others."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.engine import Ask
from solera.core.replies import Batch, Checked, Failure
from solera.data.agreement import describe

MOST = 2**31
"""Rows of a client of which nothing is known."""

DEVIATIONS = 100
"""How far noise may move a number of rows, in deviations of noise on a count alone."""


class AgreedRows:
    """The rows to train on that each client named when the schema was agreed on.

    A client that did not say, since it has few, has at most as many as the largest that did. What
    is counted on other rows, to evaluate or to select, is not looked at: it weighs no update. A
    count with noise may lie as far off as noise does.
    """

    def __init__(self) -> None:
        self._rows: dict[int, int | None] = {}

    def checked(self, ask: Ask, batch: Batch) -> Checked:
        """The replies that claim no more rows than agreed, and a failure for each other one."""
        if ask.task == describe.name:
            for reply in batch:
                self._rows.setdefault(reply.client, _number(reply.payload))
            return batch, []
        payload = ask.payload if isinstance(ask.payload, dict) else {}
        if "part" in payload or ask.task.startswith("select."):
            return batch, []
        noise = _noise(payload)
        failures = []
        for reply in batch:
            claimed = _number(reply.payload)
            most = self._most(reply.client)
            if claimed is not None and not -noise <= claimed <= most + noise:
                reason = f"the reply claims {claimed:,} rows, the client agreed to {most:,} at most"
                failures.append(Failure(reply.client, "invalid", reason))
        return batch.without(failures)

    def _most(self, client: int) -> int:
        agreed = self._rows.get(client)
        if agreed is not None:
            return agreed
        return max((rows for rows in self._rows.values() if rows is not None), default=MOST)


def _noise(ask: dict[str, Any]) -> float:
    """How far the noise on the sums of a reply may move its number of rows."""
    privacy = ask.get("privacy", {})
    return DEVIATIONS * privacy["noise"] if "mechanism" in privacy else 0.0


def _number(payload: Any) -> int | None:
    """The largest of the reply's ``rows`` if they are numbers, or the least if it is negative."""
    rows = payload.get("rows") if isinstance(payload, dict) else None
    try:
        values = np.asarray(rows)
        if rows is None or values.dtype.kind not in "iuf" or not values.size:
            return None
        return int(values.max() if values.min() >= 0 else values.min())
    except (ValueError, OverflowError, TypeError):
        return -MOST
