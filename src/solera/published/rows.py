"""The lines of a published table."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from solera.published.theses import Cell

Row = dict[str, Any]
Rows = list[Row]
"""What :func:`row` makes."""
AS_PUBLISHED, OURS = "as published", "ours"
"""Whose protocol a row follows: the thesis's own (its program where text and program disagree), or
the one that we recommend."""
ORIGINAL = "as in the thesis"
"""The size of a row that is not scaled down."""


def row(
    label: str,
    cell: Cell | None,
    measured: float | None,
    *,
    protocol: str = AS_PUBLISHED,
    form: str = ".4g",
    note: str = "",
    size: str = "",
    compare: bool = True,
) -> Row:
    """A number measured here beside the one a thesis prints.

    ``cell`` is None where no thesis has such a number, ``measured`` where it was left out.
    ``form`` is how its numbers are written, ``note`` what a reader should know, ``size`` how the
    run differs in size from the original where that is not what the study's ``SIZES`` say.
    ``compare`` is False where a difference would say nothing: seconds and energies of two machines.
    """
    thesis = None if cell is None else cell.value
    known = thesis is not None and measured is not None and compare
    difference = measured - thesis if known else None  # type: ignore[operator]
    return {
        "label": label,
        "cell": cell,
        "source": "" if cell is None else cell.source,
        "protocol": protocol,
        "thesis": thesis,
        "measured": measured,
        "difference": difference,
        "form": form,
        "size": size,
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
