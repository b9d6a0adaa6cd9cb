"""The lines of a named study."""

from __future__ import annotations

from typing import Any


def row(
    cell: str, thesis: float | None, ours: float | None, *, form: str = ".4g", note: str = ""
) -> dict[str, Any]:
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
