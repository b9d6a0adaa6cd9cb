"""The lines of a published table."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Row = dict[str, Any]
Rows = list[Row]
"""What :func:`row` makes."""


def row(
    cell: str, thesis: float | None, ours: float | None, *, form: str = ".4g", note: str = ""
) -> Row:
    """A cell of a thesis's table or figure.

    ``thesis`` is None where it prints no number, ``ours`` where the cell was left out. ``form`` is
    how its numbers are written, ``note`` what a reader should know.
    """
    difference = None if thesis is None or ours is None else ours - thesis
    return {
        "cell": cell,
        "thesis": thesis,
        "ours": ours,
        "difference": difference,
        "form": form,
        "note": note,
    }


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
