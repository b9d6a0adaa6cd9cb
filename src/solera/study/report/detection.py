"""The section about clients that were not believed: who, when, how often and why."""

from __future__ import annotations

import numpy as np

from solera.study.report.blocks import Blocks, Paragraph, Table
from solera.study.report.groups import StudyResults
from solera.study.run.results import Result

_MOST = 30
_WORDS = {"down_weighted": "down-weighted", "excluded": "excluded"}


def detection(study: StudyResults) -> Blocks:
    """Clients whose updates a robust rule trusted little, or that were no updates."""
    rows = [
        line
        for name, results in study.series.items()
        for result in results
        for line in _lines(name, result)
    ]
    if not rows:
        return []
    header = ["", "client", "what", "rounds", "first", "last", "mean trust", "why, the first time"]
    blocks: Blocks = [Table(rows[:_MOST], header)]
    if len(rows) > _MOST:
        blocks.append(Paragraph(f"{len(rows) - _MOST} more are in the cells' files."))
    return blocks


def _lines(name: str, result: Result) -> list[list[str | int]]:
    seen: dict[tuple[str, str], list[tuple[int, float, str]]] = {}
    for index, entry in enumerate(result.history):
        for key, word in _WORDS.items():
            for client, *about in entry.get(key, []):
                trust = float(about[0]) if len(about) == 2 else 0.0
                found = (index + 1, trust, str(about[-1]))
                seen.setdefault((str(client), word), []).append(found)
    often = sorted(seen.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        [
            name,
            client,
            word,
            len(found),
            found[0][0],
            found[-1][0],
            f"{np.mean([trust for _, trust, _ in found]):.2f}",
            found[0][2],
        ]
        for (client, word), found in often
    ]
