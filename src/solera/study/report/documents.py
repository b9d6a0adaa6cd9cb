"""A report as Markdown with pictures beside it, or as PDF."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from solera.core.errors import SoleraError, UsageError
from solera.study.report.html import BLUE
from solera.study.run.folder import write_text

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)


class NoBrowser(SoleraError):
    """Neither Chromium nor Chrome is installed."""


def convert(report: Path, target: Path) -> None:
    """Write a report as ``.md`` or ``.pdf``, by the ending of the target."""
    if not report.exists():
        raise UsageError(f"{report.parent} has no report", hint="start the run again to write it")
    if target.suffix == ".pdf":
        write_pdf(report, target)
    elif target.suffix == ".md":
        write_markdown(report.read_text(encoding="utf-8"), target)
    else:
        raise UsageError(f"{target} is neither .md nor .pdf")


def write_markdown(html: str, target: Path) -> None:
    """The words and tables of a page as Markdown; its pictures as SVG files in ``figures/``."""
    figures = target.parent / "figures"
    pictures = _SVG.findall(html)
    if pictures:
        figures.mkdir(parents=True, exist_ok=True)
    reader = _Reader()
    for i, picture in enumerate(pictures, start=1):
        name = f"{target.stem}-{i}.svg"
        write_text(figures / name, _standalone(picture))
        caption = re.search(r'aria-label="([^"]*)"', picture)
        label = "" if caption is None else caption[1]
        html = html.replace(picture, f'<img alt="{label}" src="figures/{name}">', 1)
    reader.feed(html)
    write_text(target, re.sub(r"\n{3,}", "\n\n", "".join(reader.text)).strip() + "\n")


def write_pdf(report: Path, target: Path) -> None:
    """Print a page with a headless Chromium or Chrome."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise NoBrowser(
            "a PDF is printed by Chromium or Chrome, and neither is installed",
            hint="open report.html in any browser and print it there",
        )
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
            "--no-pdf-header-footer", f"--print-to-pdf={target.resolve()}",
            report.resolve().as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode or not target.exists():
        raise SoleraError(f"{browser} could not print {report}: {done.stderr.strip()[-200:]}")


def _standalone(picture: str) -> str:
    """A picture outside its page: colours of its own and the namespaces a file needs."""
    picture = picture.replace("var(--accent)", BLUE).replace("currentColor", "#000000")
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return picture.replace("<svg", f"<svg {spaces}", 1) + "\n"


class _Reader(HTMLParser):
    """Turns the markup of :mod:`solera.study.report.html` into Markdown."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text: list[str] = []
        self._cells: list[str] | None = None
        self._cell: list[str] | None = None
        self._rows = 0
        self._skip = 0
        self._pre = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("style", "title"):
            self._skip += 1
        elif tag in ("h1", "h2", "h3"):
            self._add("\n\n" + "#" * int(tag[1]) + " ")
        elif tag == "p":
            self._add("\n\n")
        elif tag == "pre":
            self._pre = True
            self._add("\n\n```\n")
        elif tag == "table":
            self._rows = 0
            self._add("\n\n")
        elif tag == "tr":
            self._cells = []
        elif tag in ("td", "th"):
            self._cell = []
        elif tag in ("strong", "b"):
            self._add("**")
        elif tag == "img":
            self._add(f"\n\n![{given.get('alt')}]({given.get('src')})\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("style", "title"):
            self._skip -= 1
        elif tag == "pre":
            self._pre = False
            self._add("\n```\n")
        elif tag in ("strong", "b"):
            self._add("**")
        elif tag in ("td", "th") and self._cells is not None and self._cell is not None:
            self._cells.append(" ".join("".join(self._cell).split()).replace("|", "\\|"))
            self._cell = None
        elif tag == "tr" and self._cells is not None:
            self._row(self._cells)
            self._cells = None

    def _row(self, cells: list[str]) -> None:
        if self._rows == 0 and self.text and not cells[0].strip():
            cells[0] = " "
        self.text.append("| " + " | ".join(cells) + " |\n")
        if self._rows == 0:
            self.text.append("|" + "---|" * len(cells) + "\n")
        self._rows += 1

    def handle_data(self, data: str) -> None:
        if self._pre:
            self.text.append(data)
        elif not self._skip:
            self._add(re.sub(r"\s+", " ", data) if data.strip() else "")

    def _add(self, text: str) -> None:
        (self.text if self._cell is None else self._cell).append(text)
