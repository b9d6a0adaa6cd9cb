"""Studies whose clients have few rows because a thesis's have."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Clients with few rows are the thesis's own choice: no warning for each of a thousand."""
    log = logging.getLogger("solera")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
