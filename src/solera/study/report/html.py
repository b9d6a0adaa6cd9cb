"""Reports as one HTML page that needs nothing from outside and trusts nothing from inside.

Everything that is not markup of this module passes through :func:`html.escape`. Pictures are SVG
inside the page and follow the reader's light or dark preference.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from solera.study.report.blocks import Block, Figure, Heading, Marked, Paragraph, Section, Table


def render_html(title: str, sections: Sequence[Section]) -> str:
    """A whole HTML document."""
    body = "\n".join(map(_section, sections))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    content = "".join(map(_block, section.blocks))
    return f"<section>\n<h2>{escape(section.title)}</h2>\n{content}\n</section>"


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h3>{escape(text)}</h3>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>" if text else ""
        case Figure(svg, caption):
            return svg + _block(Paragraph(caption))
        case Table(rows, header):
            return _table(rows, header)
        case _:
            return f"<pre>{escape(block.text)}</pre>"


def _table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    lines = []
    for first, *rest in rows:
        names = header[1:] if header else [""] * len(rest)
        cells = "".join(_cell(cell, name) for cell, name in zip(rest, names, strict=True))
        lines.append(f'<tr><th scope="row">{escape(str(first))}</th>{cells}</tr>')
    body = "\n".join(lines)
    if not header:
        return f'<table class="facts"><tbody>\n{body}\n</tbody></table>'
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _cell(cell: Any, column: str) -> str:
    text = escape(str(cell).strip())
    text = f"<strong>{text}</strong>" if isinstance(cell, Marked) else text
    return f'<td data-column="{escape(column)}">{text}</td>' if column else f"<td>{text}</td>"


_STYLE = """
:root { --ink: #1b1f24; --faint: #5b6570; --paper: #ffffff; --line: #d8dee4; --wash: #f5f7f9;
  --accent: #0072b2 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --faint: #9aa5b1; --paper: #14181c; --line: #343b43; --wash: #1d2329;
    --accent: #56b4e9 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width: 75rem; margin: 0 auto; padding: 1.5rem 1rem 4rem }
h1 { font-size: 1.8rem; margin: .5rem 0; overflow-wrap: anywhere }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; padding-bottom: .25rem;
  border-bottom: 1px solid var(--line) }
p { max-width: 52rem; overflow-wrap: anywhere }
.wide { overflow-x: auto; font-size: .8rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 }
th, td { padding: .35rem .4rem; text-align: right; border-bottom: 1px solid var(--line) }
th { font-weight: 600 }
thead th { color: var(--faint); font-weight: 500; vertical-align: bottom }
tbody th, thead th:first-child { text-align: left; white-space: nowrap }
.wide tbody th { white-space: normal; min-width: 7rem }
.wide td { white-space: normal }
.facts th { padding-left: 0 }
.facts td { text-align: left; white-space: normal }
svg { display: block; width: 100%; max-width: 44rem; height: auto; color: var(--ink) }
svg text { fill: currentColor; font-family: inherit !important }
section > svg + p, .wide + p { color: var(--faint); font-size: .9rem }
@media (max-width: 40rem) {
  .facts th { white-space: normal; min-width: 8rem }
  .wide thead { display: none }
  .wide table, .wide tbody, .wide tr, .wide th, .wide td { display: block }
  .wide th, .wide td { border: 0; padding: .1rem 0; white-space: normal }
  .wide td { display: flex; justify-content: space-between; gap: 1rem }
  .wide td::before { content: attr(data-column); color: var(--faint) }
  .wide tr { padding: .6rem 0; border-bottom: 1px solid var(--line) }
}
@media print { section { break-inside: avoid-page } pre { white-space: pre-wrap } }
pre { overflow-x: auto; padding: 1rem; background: var(--wash); border-radius: .4rem;
  font-size: .9rem }
"""
