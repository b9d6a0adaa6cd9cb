"""The lines of a published table."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from solera.study.named import row

Row = dict[str, Any]
Rows = list[Row]
"""What :func:`~solera.study.named.row` makes."""
__all__ = ["AS_PUBLISHED", "ORIGINAL", "OURS", "Row", "Rows", "quiet", "row"]

AS_PUBLISHED, OURS = "as published", "ours"
"""Whose protocol a row follows: the thesis's own (its program where text and program disagree), or
the one that we recommend."""
ORIGINAL = "as in the thesis"
"""The size of a row that is not scaled down."""


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
