"""What a report is made of, whether it is shown as HTML, as Markdown or in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Marked(str):
    """A cell of a table that stands out: the best of its column."""


class Heading(NamedTuple):
    """A heading inside a section."""

    text: str


class Paragraph(NamedTuple):
    """Words; nothing is shown for no words."""

    text: str


class Table(NamedTuple):
    """The first column names the row. Without a header it holds facts in words."""

    rows: Sequence[Sequence[Any]]
    header: Sequence[str] = ()


class Figure(NamedTuple):
    """A picture as SVG for the inside of a page, and what it shows."""

    svg: str
    caption: str = ""


class Preformatted(NamedTuple):
    """Text as it stands, in letters of one width."""

    text: str


Block = Heading | Paragraph | Table | Figure | Preformatted
Blocks = list[Block]


class Section(NamedTuple):
    """A title and what stands below it."""

    title: str
    blocks: Sequence[Block]
