"""Sections about clients: what they hold, how often they are chosen, how they fare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from solera.evaluation.metrics import metric_label
from solera.study.files.tables import SCHEMES
from solera.study.formatting import capital
from solera.study.report import figures
from solera.study.report.blocks import Blocks, Paragraph, Table
from solera.study.report.groups import Group, StudyResults, class_names
from solera.study.run.results import Result
from solera.study.run.schemes import divided, load

MOST_BOXES = 24
MOST_SLOPES = 4
Scores = Mapping[str, Mapping[int, float]]
"""The score of every client by method or scheme."""


def partitions(study: StudyResults) -> Blocks:
    """Who holds how many rows of which class, one picture for each division."""
    blocks: Blocks = []
    for division, groups in study.shown_divisions:
        cell = replace(groups[0].cells[0], fold=None)
        dataset = load(cell.variant.data)
        data = divided(cell, dataset)
        called = class_names(dataset)
        names = {"class_names": called} if called else {}
        held = {"classes": " and class", "labels": " and label"}.get(data.schema.target, "")
        caption = f"Rows per client{held} on {', '.join(division)}, with seed {cell.seed}."
        summary = data.summary()
        if summary.class_rows is not None and len(called) == len(summary.class_rows):
            rows = dict(zip(called, summary.class_rows.values(), strict=True))
            summary = replace(summary, class_rows=rows)
        facts = [line.split(":", 1) for line in str(summary).splitlines()]
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
    caption = f"{capital(metric)} of every client on its own test rows, over all seeds."
    shown = dict(list(scores.items())[:MOST_BOXES])
    header = ["", "worst", "tenth", "median", "best", "spread", "Jain's index"]
    return [figures.drawn(figures.spreads(shown, metric), caption), Table(rows, header)]


def one_by_one(study: StudyResults) -> Blocks:
    """How every client fares with each method, and from alone to federated to centralised."""
    blocks: Blocks = []
    for division, groups in study.shown_divisions:
        by_name = {group.name: client_means(group.results) for group in groups}
        by_name = {name: scores for name, scores in by_name.items() if len(scores) > 1}
        if not by_name:
            continue
        first = next(g for g in groups if g.name in by_name).results[0]
        metric, names = metric_label(first.score or "score"), first.names
        if len(by_name) > 1:
            shown = dict(list(by_name.items())[:MOST_BOXES])
            picture = figures.heat_map(shown, metric, names)
            caption = f"{capital(metric)} of every client by method on {', '.join(division)}."
            blocks.append(figures.drawn(picture, caption))
        for method, schemes in _by_scheme(groups, by_name).items():
            where = f"{method} on {', '.join(division)}"
            caption = (
                f"{capital(metric)} of every client with {where}, {' → '.join(schemes)}; the "
                "thick line is their mean."
            )
            blocks.append(figures.drawn(figures.slopes(schemes, metric, names), caption))
    return blocks


def client_means(results: Sequence[Result]) -> dict[int, float]:
    """The mean over seeds of each client's score."""
    clients = dict.fromkeys(client for result in results for client in result.clients)
    return {
        client: float(np.mean([r.clients[client] for r in results if client in r.clients]))
        for client in clients
    }


def _by_scheme(groups: Sequence[Group], scores: Scores) -> dict[str, Scores]:
    """The scores of a method in each scheme, for methods that were tried in several."""
    methods: dict[str, dict[str, Mapping[int, float]]] = {}
    for scheme in SCHEMES:
        for group in groups:
            if group.scheme == scheme and group.name in scores:
                methods.setdefault(group.method, {})[scheme] = scores[group.name]
    several = {method: schemes for method, schemes in methods.items() if len(schemes) > 1}
    return dict(list(several.items())[:MOST_SLOPES])


def jain(scores: Sequence[float]) -> float:
    """Jain's index of fairness (1984): 1 when all fare alike, 1/n when one has it all."""
    values = np.asarray(scores, dtype=float)
    squares = float((values**2).sum())
    return float(values.sum() ** 2 / (len(values) * squares)) if squares else 1.0
