"""Pictures that show themselves: at the end of a notebook's cell, without importing pyplot."""

from __future__ import annotations

import io
from functools import cache
from typing import Any


def new_figure(**options: Any) -> Any:
    """An empty matplotlib figure; ``options`` are those of ``matplotlib.figure.Figure``."""
    return _shown_figure()(**{"layout": "constrained", **options})


@cache
def _shown_figure() -> type[Any]:
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        """A figure whose picture a notebook asks for by itself."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png", dpi=110)
            return picture.getvalue()

    return ShownFigure
