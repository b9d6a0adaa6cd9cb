"""Sections about clients: what they hold, how often they are chosen, how they fare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from solera.study.formatting import metric_label
from solera.study.report import figures
from solera.study.report.blocks import Blocks, Paragraph, Table
from solera.study.report.groups import StudyResults
from solera.study.run.schemes import divided, load

MOST_BOXES = 24


def partitions(study: StudyResults) -> Blocks:
    """Who holds how many rows of which class, one picture for each division."""
    blocks: Blocks = []
    for division, groups in study.shown_divisions:
        cell = replace(groups[0].cells[0], fold=None)
        dataset = load(cell.variant.data)
        data = divided(cell, dataset)
        names = {"class_names": dataset.class_names} if dataset.class_names else {}
        held = "client" if data.class_counts() is None else "client and class"
        caption = f"Rows per {held} on {', '.join(division)}, with seed {cell.seed}."
        facts = [line.split(":", 1) for line in str(data.summary()).splitlines()]
        blocks += [figures.drawn(data.plot(**names), caption), Table(facts)]
    return blocks


def selection(study: StudyResults) -> Blocks:
    """Who took part how often, where not everybody always did."""
    chosen = {}
    for name, results in study.series.items():
        if some := [r for r in results if r.selected and min(r.selected) < r.rounds]:
            chosen[name] = some
    if not chosen:
        return []
    shown = dict(list(chosen.items())[: figures.MOST_SERIES])
    rows = []
    for name, results in shown.items():
        counts = np.concatenate([np.array(r.selected) for r in results])
        never = float(np.mean(counts == 0))
        few, most = int(counts.min()), int(counts.max())
        rows.append([name, few, f"{counts.mean():.1f}", most, f"{never:.1%}"])
    caption = "How evenly clients were chosen: clients by the share of rounds they took part in."
    header = ["", "fewest rounds", "mean", "most", "never chosen"]
    return [figures.drawn(figures.selection(shown), caption), Table(rows, header)]


def fairness(study: StudyResults) -> Blocks:
    """How differently clients fare with the same model."""
    scores = {}
    for name, results in study.series.items():
        if values := [score for r in results for score in r.clients.values()]:
            scores[name] = values
    if not scores:
        return [
            Paragraph(
                "No client keeps rows to test on. client_test = 0.2 in the [data] table sets a "
                "fifth of every client's rows aside and shows here how each client fares."
            )
        ]
    every_result = (r for results in study.series.values() for r in results)
    metric = metric_label(next((r.score for r in every_result if r.score), "score"))
    rows = [
        [
            name,
            *(f"{quantile:.3f}" for quantile in np.quantile(values, [0, 0.1, 0.5, 1])),
            f"{float(np.std(values)):.3f}",
            f"{jain(values):.3f}",
        ]
        for name, values in scores.items()
    ]
    caption = f"{metric.capitalize()} of every client on its own test rows, over all seeds."
    shown = dict(list(scores.items())[:MOST_BOXES])
    header = ["", "worst", "tenth", "median", "best", "spread", "Jain's index"]
    return [figures.drawn(figures.spreads(shown, metric), caption), Table(rows, header)]


def jain(scores: Sequence[float]) -> float:
    """Jain's index of fairness (1984): 1 when all fare alike, 1/n when one has it all."""
    values = np.asarray(scores, dtype=float)
    squares = float((values**2).sum())
    return float(values.sum() ** 2 / (len(values) * squares)) if squares else 1.0
