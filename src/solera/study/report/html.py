"""Pieces of an HTML page that needs nothing from outside and trusts nothing from inside.

Everything that is not markup of this module passes through :func:`html.escape`. Pictures are SVG
inside the page; their black becomes the text colour and their blue the page's, so that they follow
the reader's light or dark preference. Colours are those of Okabe & Ito (2008), which colour-blind
readers can tell apart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PALETTE = (BLUE, RED, GREEN, "#cc79a7", ORANGE, "#56b4e9", "#999999", "#b0a000")
"""Colours of several curves, told apart by their line style too."""


class Section(NamedTuple):
    """A heading and the HTML below it."""

    title: str
    body: str


class Marked(str):
    """A cell of a table that stands out: the best of its column."""


def page(title: str, sections: Sequence[Section]) -> str:
    """A whole HTML document; ``sections`` hold markup, ``title`` is text."""
    body = "\n".join(
        f"<section>\n<h2>{escape(section.title)}</h2>\n{section.body}\n</section>"
        for section in sections
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def paragraph(text: str) -> str:
    """Text as a paragraph; nothing for no text."""
    return f"<p>{escape(text)}</p>" if text else ""


def table(rows: Sequence[Sequence[Any]], header: Sequence[str] = ()) -> str:
    """Rows as a table; the first column names the row. Without a header it holds facts in words."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    lines = []
    for first, *rest in rows:
        cells = "".join(map(_cell, rest))
        lines.append(f'<tr><th scope="row">{escape(str(first))}</th>{cells}</tr>')
    body = "\n".join(lines)
    if not head:
        return f'<table class="facts"><tbody>\n{body}\n</tbody></table>'
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _cell(cell: Any) -> str:
    text = escape(str(cell).strip())
    return f"<td><strong>{text}</strong></td>" if isinstance(cell, Marked) else f"<td>{text}</td>"


def figure_svg(figure: Any, caption: str) -> str:
    """A matplotlib figure as SVG for the inside of a page; ``caption`` is read to the blind."""
    for ax in figure.axes:
        for part in (ax, *ax.child_axes):
            part.set_facecolor("none")
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": caption}):
        figure.savefig(text, format="svg", facecolor="none", metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = inline(svg)
    svg = svg.replace("#000000", "currentColor").replace(BLUE, "var(--accent)")
    prefix = re.sub(r"\W+", "-", caption)[:40]
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    label = escape(caption, quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def inline(svg: str) -> str:
    """A picture as part of a page, which needs no namespaces, and so no address of any kind."""
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)


def axes(x: str, y: str) -> tuple[Any, Any]:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    ax = figure.add_subplot()
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", alpha=0.25)
    for axis, label in ((ax.xaxis, x), (ax.yaxis, y)):
        axis.set_major_locator(MaxNLocator("auto", integer=label in ("round", "clients")))
    return figure, ax


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
main { max-width: 52rem; margin: 0 auto; padding: 1.5rem 1rem 4rem }
h1 { font-size: 1.8rem; margin: .5rem 0; overflow-wrap: anywhere }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; padding-bottom: .25rem;
  border-bottom: 1px solid var(--line) }
p { overflow-wrap: anywhere }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line) }
th { font-weight: 600 }
thead th { color: var(--faint); font-weight: 500; vertical-align: bottom }
tbody th, thead th:first-child { text-align: left; white-space: nowrap }
td { white-space: nowrap }
.facts th { padding-left: 0 }
.facts td { text-align: left; white-space: normal }
svg { display: block; width: 100%; max-width: 44rem; height: auto; color: var(--ink) }
svg text { fill: currentColor; font-family: inherit !important }
section > svg + p, .wide + p { color: var(--faint); font-size: .9rem }
@media (max-width: 40rem) { tbody th { white-space: normal; min-width: 8rem } }
@media print { section { break-inside: avoid-page } pre { white-space: pre-wrap } }
pre { overflow-x: auto; padding: 1rem; background: var(--wash); border-radius: .4rem;
  font-size: .9rem }
"""
