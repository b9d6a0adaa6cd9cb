"""What each client told of its own training, for the people who watch the job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from solera.core.replies import Batch, Failure
from solera.core.task import Task
from solera.data.agreement import SMALLEST_COUNT
from solera.serve.wire import MOST_TOLD


class Told:
    """The mean loss that came with every client's last update, by task.

    It is in the reply that the client's policy let out. A loss that was withheld (it is 0 then),
    one over fewer than five rows, and one folded in secret, of which no reply can be read, are not
    told. Of more than ``MOST_TOLD`` clients the first ones are kept.
    """

    def __init__(self) -> None:
        self._losses: dict[str, dict[int, float]] = {}

    def note(self, task: str, batch: Batch, failures: Iterable[Failure]) -> None:
        """Keep what these replies tell, but those that could not be used."""
        losses = self._losses.setdefault(task, {})
        for reply in batch:
            loss = _loss(reply.payload)
            if loss is not None and (reply.client in losses or len(losses) < MOST_TOLD):
                losses[reply.client] = loss
        for failure in failures:
            losses.pop(failure.client, None)

    def take(self, task: Task) -> dict[int, float]:
        """What was told since this was asked last."""
        return self._losses.pop(task.name, {})


def _loss(payload: Any) -> float | None:
    if not isinstance(payload, Mapping):
        return None
    change = payload.get("change")
    update = change if isinstance(change, Mapping) else payload
    loss, rows = update.get("loss"), payload.get("rows")
    if not isinstance(loss, float) or not isinstance(rows, int | float):
        return None
    if not math.isfinite(loss) or loss == 0 or rows < SMALLEST_COUNT:
        return None
    return float(f"{loss:.6g}")
