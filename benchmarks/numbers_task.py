"""The task that ``coordinator.py`` asks of real agents, in a file of its own that they import."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.task import task


@task("bench.numbers")
def numbers(client: Any, size: int) -> Any:
    """As many bytes of numbers as asked for."""
    return {"x": np.full(size // 8, client.id, dtype=np.float64)}
