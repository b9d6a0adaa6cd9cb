"""How many threads numerical libraries may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def limited_threads(threads: int | None) -> Iterator[None]:
    """PyTorch, where it is loaded, uses so many threads inside; None leaves it alone."""
    torch: Any = sys.modules.get("torch")
    if threads is None or torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
