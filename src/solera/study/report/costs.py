"""Sections about what a study took, what went wrong, and what it was run with."""

from __future__ import annotations

import math
from collections import Counter
from functools import reduce
from operator import add

import numpy as np

from solera.core.meter import size
from solera.evaluation.metrics import metric_label
from solera.green.energy import APART
from solera.study.formatting import capital, number
from solera.study.report import figures
from solera.study.report.blocks import Blocks, Paragraph, Preformatted, Table
from solera.study.report.groups import StudyResults
from solera.study.run.folder import read_environment
from solera.study.run.schemes import divided, load

MOST_TASKS = 12


def traffic(study: StudyResults) -> Blocks:
    """Bytes of one training, where a learner without rounds counts as one round with all."""
    rows = []
    for group, name in zip(study.groups, study.series, strict=True):
        results, variant = group.results, group.cells[0].variant
        clients = variant.data.clients or divided(group.cells[0], load(variant.data)).clients
        rounds = np.array([max(r.rounds, 1) for r in results])
        turns = np.array([sum(h["clients"] for h in r.history) or clients for r in results])
        mean_rounds = float(np.mean([result.rounds for result in results]))
        for way, field in (("to clients", "bytes_down"), ("from clients", "bytes_up")):
            total = np.array([getattr(result, field) for result in results], dtype=float)
            sizes = [size(float(each.mean())) for each in (total, total / rounds, total / turns)]
            rows.append([f"{name}: {way}", f"{mean_rounds:g}", *sizes])
    header = ["", "rounds", "in all", "per round", "per client and round"]
    note = "Sizes of the encoded payloads of one training, mean over seeds and folds."
    return [Table(rows, header), Paragraph(note)]


def score_by_cost(study: StudyResults) -> Blocks:
    """The metric that decides against bytes and against energy, one picture for each division."""
    blocks: Blocks = []
    metric = metric_label(study.metric)
    for division, groups in study.shown_divisions:
        sent: dict[str, tuple[float, float]] = {}
        used: dict[str, tuple[float, float]] = {}
        for group in groups:
            score = group.mean(study.metric)
            if math.isnan(score) or len(sent) == figures.MOST_POINTS:
                continue
            exchanged = float(np.mean([r.bytes_down + r.bytes_up for r in group.results]))
            if exchanged:  # a client alone sends nothing
                sent[group.name] = exchanged / 1e6, score
            watt_hours = [r.energy.of_work().wh for r in group.results if r.energy is not None]
            if watt_hours:
                used[group.name] = float(np.mean(watt_hours)), score
        where = f"on {', '.join(division)}"
        for points, cost in (
            (sent, "MB exchanged in training"),
            (used, "Wh of training and prediction"),
        ):
            if len(points) > 1:
                picture = figures.scatter(points, cost, metric)
                caption = f"{capital(metric)} against {cost} {where}, means over the seeds."
                blocks.append(figures.drawn(picture, caption))
    return blocks


def energy(study: StudyResults) -> Blocks:
    """What training and prediction took, by configuration and by task, and what else did."""
    rows = []
    by_series = []
    for name, results in study.series.items():
        uses = [r.energy for r in results if r.energy is not None]
        if not uses:
            continue
        use = reduce(add, uses)
        work = use.of_work()
        by_series.append(use)
        scores = [r.metrics.get(r.score or "") for r in results]
        known = [score for score in scores if score is not None]
        per_wh = work.per_wh(float(np.mean(known))) * len(uses) if known else None
        rows.append(
            [
                name,
                f"{work.kwh:.3e}",
                f"{1000 * work.co2e:.3g}",
                f"{sum(r.seconds + r.predicting for r in results):.1f}",
                number(per_wh),
                f"{use.kwh - work.kwh:.3e}",
            ]
        )
    if not by_series:
        return []
    total = reduce(add, by_series)
    by_task = sorted(total.tasks.items(), key=lambda task: -task[1])[:MOST_TASKS]
    bars = figures.bars({name: 1000 * kwh for name, kwh in by_task}, "Wh")
    caption = "Watt-hours by task; 'coordinator' is the work between asks."
    note = (
        f"Of training and prediction; apart are {', '.join(APART)}. In all {total.kwh:.3e} kWh and "
        f"{1000 * total.co2e:.3g} g CO₂e, measured by '{total.source}'. Score per Wh divides the "
        "mean score by the Wh of one cell."
    )
    header = ["", "kWh", "g CO₂e", "seconds", "score per Wh", "kWh apart"]
    return [Table(rows, header), Paragraph(note), figures.drawn(bars, caption)]


def failures(study: StudyResults) -> Blocks:
    """Cells that raised an error."""
    cells = {cell.key: cell for cell in study.run.cells}
    rows = [[str(cells[key]), error] for key, error in study.run.failures.items() if key in cells]
    return [Table(rows, ["cell", "error"])] if rows else []


def warnings(study: StudyResults) -> Blocks:
    """What this start warned of, and what earlier trainings did."""
    earlier = Counter(text for r in study.run.results.values() for text in r.warnings)
    every = earlier | Counter(study.run.warnings)
    rows = [[f"{times} cells", text] for text, times in every.items()]
    return [Table(rows)] if rows else []


def study_file(study: StudyResults) -> Blocks:
    """What was declared."""
    return [Preformatted(study.run.study.text)]


def environment(study: StudyResults) -> Blocks:
    """What the numbers were computed with."""
    return [Table(list(read_environment(study.run.folder).items()))]
