"""The diagrams of the documentation as SVG: boxes, arrows and words, nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

_INK, _PAPER, _LINE = "#2b2b2b", "#ffffff", "#8a6d5b"
_FILLS = {"owner": "#e6f1e4", "middle": "#f7ecdd", "person": "#e4ecf5", "plain": "#f4f4f4"}


@dataclass
class Diagram:
    """A picture of a width and a height; ``says`` is read out to who does not see it."""

    width: int
    height: int
    says: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, w: int, h: int, title: str, *lines: str, kind: str) -> None:
        """A box with a title and lines of text below it."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="{_FILLS[kind]}" '
            f'stroke="{_LINE}" stroke-width="1.5"/>'
        )
        top = y + (24 if lines else h / 2 + 5)
        self.text(x + w / 2, top, title, bold=True)
        for number, line in enumerate(lines):
            self.text(x + w / 2, top + 20 * (number + 1), line, size=13)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        bold: bool = False,
        size: int = 15,
        at: str = "middle",
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{at}"{weight}>'
            f"{escape(words)}</text>"
        )

    def arrow(
        self,
        x1: int,
        y1: int,
        x2: int,
        y2: int,
        words: str = "",
        *,
        dashed: bool = False,
        up: int = 7,
    ) -> None:
        """An arrow; its words stand above its middle."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{_INK}" stroke-width="1.6"'
            f'{dash} marker-end="url(#head)"/>'
        )
        if words:
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - up, words, size=13)

    def save(self, path: Path) -> None:
        body = "\n".join(self.parts)
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'role="img" font-family="system-ui, sans-serif" fill="{_INK}">\n'
            f"<title>{escape(self.says)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
            f'markerHeight="8" orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="{_INK}"/></marker>'
            "</defs>\n"
            f'<rect width="{self.width}" height="{self.height}" rx="10" fill="{_PAPER}"/>\n'
            f"{body}\n</svg>\n",
            encoding="utf-8",
        )


def roles() -> Diagram:
    """Driver, coordinator and agents, and what travels between them."""
    drawn = Diagram(860, 380, "A driver asks through a coordinator; agents at data owners answer.")
    drawn.box(20, 130, 190, 110, "driver", "runs the learner", "folds replies", kind="person")
    drawn.box(
        335, 130, 190, 110, "coordinator", "stores and carries", "asks and replies", kind="middle"
    )
    for number, name in enumerate(("north", "south", "west")):
        y = 20 + 125 * number
        drawn.box(
            650, y, 190, 100, f"agent of {name}", "policy and gate", "rows stay here", kind="owner"
        )
        drawn.arrow(650, y + 40, 527, 150 + 30 * number)
        drawn.arrow(527, 160 + 30 * number, 648, y + 60, dashed=True)
    drawn.arrow(212, 165, 333, 165, "asks")
    drawn.arrow(333, 205, 212, 205, "replies", up=-18)
    drawn.text(430, 356, "agents connect outwards only →", size=13)
    drawn.text(430, 290, "people sign in here", size=13)
    drawn.text(115, 290, "people write programs here", size=13)
    return drawn


def ask() -> Diagram:
    """One ask from the learner to the rows and back."""
    drawn = Diagram(900, 300, "An ask goes from a learner to tasks and comes back folded.")
    boxes = (
        ("learner", "train(federation)", "person"),
        ("federation", "checks, meters", "plain"),
        ("engine", "local, processes,", "middle"),
        ("gate", "may this leave?", "owner"),
        ("task", "on the rows", "owner"),
    )
    for number, (title, line, kind) in enumerate(boxes):
        more = ("ray, http",) if title == "engine" else ()
        drawn.box(20 + 178 * number, 70, 148, 90, title, line, *more, kind=kind)
        if number:
            x = 20 + 178 * number
            drawn.arrow(x - 30, 100, x - 2, 100)
            drawn.arrow(x - 2, 135, x - 30, 135)
    drawn.text(450, 45, "ask: task, payload, clients →", size=14)
    drawn.text(450, 195, "← replies, folded on the way: lift, combine, finish", size=14)
    drawn.box(20, 225, 326, 50, "the same program in a simulation", kind="plain")
    drawn.box(376, 225, 504, 50, "or across institutions: only the engine differs", kind="plain")
    return drawn


def layers() -> Diagram:
    """The packages; imports point downwards."""
    rows = (
        (("cli", "plain"),),
        (("published", "plain"),),
        (("study", "person"), ("serve", "middle")),
        (("audit", "plain"), ("select", "plain")),
        (("learn", "person"),),
        (("privacy", "owner"),),
        (("simulate", "plain"), ("green", "plain"), ("robust", "owner")),
        (("data", "owner"), ("engines", "middle")),
        (("trust", "owner"),),
        (("core", "plain"),),
    )
    drawn = Diagram(620, 30 + 52 * len(rows), "Layers of packages; imports point downwards only.")
    for number, row in enumerate(rows):
        width = (560 - 12 * (len(row) - 1)) // len(row)
        for place, (name, kind) in enumerate(row):
            drawn.box(15 + place * (width + 12), 15 + 52 * number, width, 40, name, kind=kind)
    drawn.arrow(598, 30, 598, 10 + 52 * len(rows))
    return drawn


DIAGRAMS = {"roles.svg": roles, "ask.svg": ask, "layers.svg": layers}
