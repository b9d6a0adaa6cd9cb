"""Tables that notebooks show for objects; everything in them is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def html_table(rows: Iterable[Sequence[Any]], header: Sequence[str] = (), title: str = "") -> str:
    """A table whose rows begin with their name."""
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in header)
    body = "".join(
        f"<tr><th>{escape(str(first))}</th>{''.join(f'<td>{_cell(c)}</td>' for c in rest)}</tr>"
        for first, *rest in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table>{caption}{top}<tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))
