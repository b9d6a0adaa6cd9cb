"""Reports as Markdown, with pictures beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from solera.study.report.blocks import Block, Figure, Heading, Marked, Paragraph, Section, Table
from solera.study.report.figures import standalone
from solera.study.run.folder import write_text


def write_markdown(title: str, sections: Sequence[Section], target: Path) -> None:
    """The words and tables of a report as Markdown; its pictures as SVG files in ``figures/``."""
    parts = [f"# {title}"]
    pictures: list[str] = []
    for section in sections:
        parts.append(f"## {section.title}")
        for block in section.blocks:
            if isinstance(block, Figure):
                pictures.append(block.svg)
                link = f"figures/{target.stem}-{len(pictures)}.svg"
                parts.append(f"![{block.caption}]({link})")
            parts.append(_block(block))
    figures = target.parent / "figures"
    for old in figures.glob(f"{target.stem}-*.svg"):
        old.unlink()
    if pictures:
        figures.mkdir(parents=True, exist_ok=True)
    for i, picture in enumerate(pictures, start=1):
        write_text(figures / f"{target.stem}-{i}.svg", standalone(picture))
    write_text(target, "\n\n".join(filter(None, parts)) + "\n")


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"### {text}"
        case Paragraph(text):
            return text
        case Figure(_, caption):
            return caption
        case Table(rows, header):
            return _table(rows, header)
        case _:
            return f"```\n{block.text.strip()}\n```"


def _table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    lines = [list(map(_cell, row)) for row in rows]
    if header:
        lines.insert(0, list(map(_cell, header)))
    text = [f"| {' | '.join(cells)} |" for cells in lines]
    text.insert(1, "|" + "---|" * len(lines[0]))
    return "\n".join(text)


def _cell(cell: Any) -> str:
    text = " ".join(str(cell).split()).replace("|", "\\|")
    return f"**{text}**" if isinstance(cell, Marked) else text
