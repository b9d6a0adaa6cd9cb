"""Write a report: one HTML page, and the same as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from solera.study.report.blocks import Section
from solera.study.report.groups import StudyResults
from solera.study.report.html import render_html
from solera.study.report.markdown import write_markdown
from solera.study.report.sections import SECTIONS
from solera.study.run.folder import write_text
from solera.study.run.runner import StudyRun


def write_report(folder: Path, title: str, sections: Sequence[Section]) -> None:
    """``report.html`` and ``report.md`` of these sections."""
    write_text(folder / "report.html", render_html(title, sections))
    write_markdown(title, sections, folder / "report.md")


def write_study_report(run: StudyRun, extra: Sequence[Section] = ()) -> None:
    """The reports of a study, with ready-made sections after the results."""
    write_report(run.folder, run.study.name, sections_of(run, extra))


def sections_of(run: StudyRun, extra: Sequence[Section] = ()) -> list[Section]:
    """The sections of a study that have something to show."""
    study = StudyResults(run)
    sections: list[Section] = []
    for title, make in SECTIONS.items():
        if blocks := make(study):
            sections.append(Section(title, blocks))
        if title == "Results":
            sections += extra
    return sections
