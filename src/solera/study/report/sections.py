"""Sections that reports of runs and of studies share; each is left out where there is no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from solera.green.energy import EnergyUse
from solera.learn.base import load
from solera.study.formatting import number
from solera.study.report import figures as pictures
from solera.study.report.figures import Series
from solera.study.report.html import Section, figure_svg, paragraph, table


def selection(series: Series) -> list[Section]:
    """Who took part how often, where not everybody always did."""
    shown = {
        name: [r for r in results if r.selected and min(r.selected) < r.rounds]
        for name, results in series.items()
    }
    shown = {name: results for name, results in shown.items() if results}
    if not shown:
        return []
    shown = dict(list(shown.items())[: pictures.MOST_SERIES])
    rows = []
    for name, results in shown.items():
        counts = np.concatenate([np.array(r.selected) for r in results])
        never = float(np.mean(counts == 0))
        few, most = int(counts.min()), int(counts.max())
        rows.append([name, few, f"{counts.mean():.1f}", most, f"{never:.1%}"])
    caption = "How evenly clients were chosen: clients by the share of rounds they took part in."
    header = ["", "fewest rounds", "mean", "most", "never chosen"]
    body = figure_svg(pictures.selection(shown), caption) + paragraph(caption)
    return [Section("Selection", body + table(rows, header))]


def confusion(series: Series, classes: Sequence[str]) -> list[Section]:
    """Which classes are taken for which, over all seeds."""
    body = ""
    for name, results in series.items():
        matrices = [np.array(r.confusion) for r in results if r.confusion]
        if matrices:
            label = f"{name}: " if name else ""
            caption = f"{label}test rows by true and predicted class, over all seeds."
            body += figure_svg(pictures.confusion(sum(matrices), classes), caption)
            body += paragraph(caption)
    return [Section("Confusion", body)] if body else []


def energy(series: Series) -> list[Section]:
    """What training took, by configuration and by task."""
    rows = []
    total: EnergyUse | None = None
    for name, results in series.items():
        uses = [r.energy for r in results if r.energy is not None]
        if not uses:
            continue
        use = sum(uses[1:], start=uses[0])
        total = use if total is None else total + use
        scores = [r.metrics.get(r.score or "") for r in results]
        known = [score for score in scores if score is not None]
        per_wh = number(use.per_wh(float(np.mean(known))) * len(uses)) if known else number(None)
        rows.append(
            [name, f"{use.kwh:.3e}", f"{1000 * use.co2e:.3g}", f"{use.seconds:.1f}", per_wh]
        )
    if total is None:
        return []
    tasks = {name: 1000 * kwh for name, kwh in sorted(total.tasks.items(), key=lambda t: -t[1])}
    caption = "Watt-hours by task; 'coordinator' is the work between asks."
    note = (
        f"In all {total.kwh:.3e} kWh and {1000 * total.co2e:.3g} g CO₂e, measured by "
        f"'{total.source}'. Score per Wh divides the mean score by the Wh of one training."
    )
    header = ["", "kWh", "g CO₂e", "seconds", "score per Wh"]
    picture = figure_svg(pictures.bars(dict(list(tasks.items())[:12]), "Wh"), caption)
    return [Section("Energy", table(rows, header) + paragraph(note) + picture + paragraph(caption))]


def of_learner(learner: Any, path: Path, title: str = "") -> list[Section]:
    """What a learner, stored at ``path``, has to show: its method ``report_sections``, if any.

    The method returns pairs of a title and a text, a matplotlib figure, or a table as a list of
    dicts with the same keys. Of a pipeline the last step is asked.
    """
    last = getattr(learner, "steps", [learner])[-1]
    if not hasattr(last, "report_sections") or not path.exists():
        return []
    model = load(path)
    found = []
    for name, body in getattr(model, "steps_", [model])[-1].report_sections():
        heading = f"{name}: {title}" if title else name
        found.append(Section(heading, _markup(body, heading)))
    return found


def _markup(body: Any, heading: str) -> str:
    if hasattr(body, "savefig"):
        return figure_svg(body, heading)
    if isinstance(body, list) and body:
        return table([list(row.values()) for row in body], list(body[0]))
    return f"<pre>{escape(str(body))}</pre>"


def environment(found: Mapping[str, Any]) -> Section:
    """What the numbers were computed with."""
    return Section("Environment", table([[name, value] for name, value in found.items()]))


def jain(scores: Sequence[float]) -> float:
    """Jain's index of fairness (1984): 1 when all fare alike, 1/n when one has it all."""
    values = np.asarray(scores, dtype=float)
    squares = float((values**2).sum())
    return float(values.sum() ** 2 / (len(values) * squares)) if squares else 1.0
