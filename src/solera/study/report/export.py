"""A stored report elsewhere: as Markdown with its pictures, or printed as PDF."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from solera.core.errors import SoleraError, UsageError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class NoBrowser(SoleraError):
    """Neither Chromium nor Chrome is installed."""


def export_report(folder: Path, target: Path) -> None:
    """Write the report of a run folder as ``.md`` or ``.pdf``, by the ending of the target."""
    if target.suffix not in (".md", ".pdf"):
        raise UsageError(f"{target} is neither .md nor .pdf")
    report = folder / ("report.html" if target.suffix == ".pdf" else "report.md")
    if not report.exists():
        raise UsageError(f"{folder} has no {report.name}", hint="start the run again to write it")
    if target.suffix == ".pdf":
        print_pdf(report, target)
    else:
        _copy_markdown(report, target)


def _copy_markdown(report: Path, target: Path) -> None:
    """A copy of Markdown and its pictures, which are named after it."""
    text = report.read_text(encoding="utf-8")
    for picture in sorted((report.parent / "figures").glob(f"{report.stem}-*.svg")):
        name = picture.name.replace(report.stem, target.stem, 1)
        copy = target.parent / "figures" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, copy)
        text = text.replace(f"(figures/{picture.name})", f"(figures/{name})")
    target.write_text(text, encoding="utf-8")


def print_pdf(report: Path, target: Path) -> None:
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
